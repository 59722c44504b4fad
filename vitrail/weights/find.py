"""Which weights a word means: the path, and how they are laid out there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import MODELS
from vitrail.weights.tensors import read_json

READABLE = (
    "a run directory, a model folder, a .safetensors file (of vitrail or in timm's layout), a folder as timm saves it, "
    "a Google .npz, or 'latest'"
)
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".th", ".tar")
LATER = {".onnx": "ONNX", ".h5": "Keras .h5", ".msgpack": "Flax .msgpack", ".gguf": "GGUF"}

Layout = Literal["native folder", "timm folder", "google file", "file"]


@dataclass(frozen=True)
class Found:
    """Weights: the folder or file that holds them, and its layout; what a file holds is seen when it is read."""

    path: Path
    layout: Layout


def find(model: str | Path) -> Found:
    """What ``model`` means.

    Raises:
        ConfigError: there is nothing of that name; says what lies near.
        CheckpointError: there is something, but nothing that can be read.
    """
    if str(model).startswith("hf:"):
        raise CheckpointError(f"{model}: remote models are not read yet", f"give {READABLE}")
    path = newest_finished(Path("runs")) if str(model) == "latest" else Path(model).expanduser()
    if path.is_dir():
        return _find_in_folder(path)
    if path.is_file():
        return _find_file(path)
    raise _nothing_at(path, str(model))


def newest_finished(runs: Path) -> Path:
    """The run under ``runs`` that finished last. Raises `ConfigError` where none has."""
    found = [
        (path.stat().st_mtime_ns, path.parent) for path in runs.glob("*/status.json") if _state(path) == "finished"
    ]
    if not found:
        raise ConfigError(
            f"there is no finished run under {runs.absolute()}", "train one, or give a path instead of 'latest'"
        )
    return max(found)[1]


def _state(status: Path) -> str:
    try:
        return json.loads(status.read_text())["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _find_in_folder(folder: Path) -> Found:
    if (folder / "model" / "config.json").is_file():
        folder = folder / "model"
    config = folder / "config.json"
    if not config.is_file():
        if (folder / "config.yaml").is_file():
            what = f"the run {folder} has no model yet; its state is {_state(folder / 'status.json')!r}"
            raise CheckpointError(what, f"let it finish: vitrail train --resume {folder}")
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise CheckpointError(f"{folder} is no model: it holds {held}", f"give {READABLE}")
    described = read_json(config)
    if "format_version" in described:
        return Found(folder, "native folder")
    if "pretrained_cfg" in described or isinstance(described.get("architecture"), str):
        return Found(folder, "timm folder")
    if "model_type" in described or "architectures" in described:
        raise CheckpointError(f"{folder} is a folder of Hugging Face transformers, not read yet", f"give {READABLE}")
    raise CheckpointError(f"{config} describes no model that is known here", f"give {READABLE}")


def _find_file(path: Path) -> Found:
    suffix = path.suffix.lower()
    if path.name in ("model.safetensors", "config.json") and (path.parent / "config.json").is_file():
        return _find_in_folder(path.parent)
    if (path.parent / "manifest.json").is_file():
        raise CheckpointError(f"{path} is a part of a run's checkpoint", "give the run directory, two folders above")
    if suffix == ".safetensors":
        return Found(path, "file")
    if suffix == ".npz":
        return Found(path, "google file")
    if suffix in PICKLES:
        what = f"{path} is a pickle, which can run any program when it is opened; vitrail never opens one"
        raise CheckpointError(what, "save its state dict as .safetensors where it comes from")
    if suffix in LATER:
        raise CheckpointError(f"{path} is {LATER[suffix]}, not read yet", f"give {READABLE}")
    raise CheckpointError(f"{path} is no file of weights that is known here", f"give {READABLE}")


def _nothing_at(path: Path, given: str) -> ConfigError:
    if given in MODELS:
        return ConfigError(
            f"{given!r} is the name of a model, not of weights", f"train it from scratch: --model {given}"
        )
    parent = next(folder for folder in path.parents if folder.is_dir())
    wanted = path.relative_to(parent).parts[0]
    close = [str(parent / name) for name in get_close_matches(wanted, _names(parent), n=3, cutoff=0.5)]
    close += get_close_matches(given, ["latest"])
    remedy = "did you mean " + " or ".join(map(repr, close)) + "?" if close else f"give {READABLE}"
    return ConfigError(
        f"there are no weights at {given!r}", remedy, value=f"the nearest folder there is: {parent.absolute()}"
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
