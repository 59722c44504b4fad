"""Finding the path and the layout of the weights that a name refers to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from vitrail.checksums import sha256_of
from vitrail.errors import CheckpointError, ConfigError, find_close_paths, suggest
from vitrail.files import read_checksummed, settle
from vitrail.hub import REMOTE
from vitrail.models import MODELS
from vitrail.models.family import translate_model
from vitrail.text import printable
from vitrail.weights import openvino
from vitrail.weights.description import hash_file
from vitrail.weights.folders import CONFIG, OF_A_FOLDER, OPEN_CLIP, OPEN_CLIP_CONFIG, PEFT_CONFIG
from vitrail.weights.hub import PICKLED, SAFETENSORS, fetch
from vitrail.weights.onnx import read_contents
from vitrail.weights.public import PUBLIC, find_weights
from vitrail.weights.tensors import check_intact, read_json

READABLE = (
    "a run directory, a model folder, a .safetensors file (of vitrail, or in the layout of timm, torchvision or the authors) "
    "or a pickled one (.pt, .pth, .bin, .ckpt), a folder as timm, Hugging Face transformers or open_clip save it, "
    "hf:owner/name, the folder of an adapter of peft, a Google .npz, an .onnx or .xml of `vitrail export`, or 'latest'"
)
LATER = {".h5": "Keras .h5", ".msgpack": "Flax .msgpack", ".gguf": "GGUF"}

Layout = Literal[
    "native folder",
    "timm folder",
    "huggingface folder",
    "open_clip folder",
    "peft folder",
    "google file",
    "pickled file",
    "onnx file",
    "openvino file",
    "file",
]
GRAPH_FILES: tuple[Layout, ...] = ("onnx file", "openvino file")
PICKLED_FILE: Layout = "pickled file"
SUFFIXES: dict[str, Layout] = {
    ".safetensors": "file",
    ".npz": "google file",
    ".onnx": "onnx file",
    ".xml": "openvino file",
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".th", ".tar"), PICKLED_FILE),
}


@dataclass(frozen=True)
class ResolvedModel:
    """A folder or file of weights and its layout. The layout of a ``.safetensors`` file is determined when it is read.

    ``origin`` is the name under which another machine finds the same weights, ``hf:owner/name@commit``; for others the path.
    """

    path: Path
    layout: Layout
    origin: str

    @property
    def name(self) -> str:
        """The name of the repository, of the run's folder, or of the file or folder of weights without its suffix."""
        if self.origin.startswith(REMOTE):
            return self.origin.rpartition("/")[2].partition("@")[0]
        path = self.path.resolve()
        return path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name


def resolve_model(model: object) -> ResolvedModel:
    """Finds the weights of ``model``: a path, ``latest``, ``hf:owner/name``, or the name of public weights.

    Raises:
        ConfigError: the model does not exist, and similar names are suggested; or it is no path but a model in memory.
        CheckpointError: the file or folder cannot be read, or the hub cannot be reached.
    """
    if not isinstance(model, str | os.PathLike):
        what = f"weights are needed, and not a {type(model).__name__} in memory"
        raise ConfigError(what, "save it first, vitrail.save(model, PATH), and give the path")
    if str(model).startswith(REMOTE):
        return _resolve_remote(str(model))
    path = newest_finished(Path("runs")) if str(model) == "latest" else Path(model).expanduser()
    for folder in (path, path / "model"):
        settle(folder)
    try:
        if path.is_dir():
            return _resolve_folder(path)
        if path.is_file():
            return _resolve_file(path)
        if public := find_weights(str(model)):
            return _resolve_remote(public.source)
        raise _explain_missing(path, str(model))
    except OSError as error:
        what = f"{printable(model, 200)} cannot be read: {error.strerror or error}"
        raise ConfigError(what, "check the path and its permissions") from error


def hash_model(resolved: ResolvedModel) -> str:
    """Returns the SHA-256 of a file; of several files that of their hashes, as `sha256sum FILES | sha256sum` prints it.

    Raises:
        CheckpointError: a file cannot be read.
    """
    path = resolved.path
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    else:
        files = _list_files(resolved)
    hashes = [hash_file(file) for file in files]
    if len(files) == 1:
        return hashes[0]
    return sha256_of("".join(f"{digest}  {file.name}\n" for digest, file in zip(hashes, files)).encode())


def _list_files(resolved: ResolvedModel) -> list[Path]:
    path = resolved.path
    if resolved.layout == "onnx file":
        return read_contents(path).list_files(path)
    return openvino.list_files(path) if resolved.layout == "openvino file" else [path]


def check_sha256(model: str | Path, sha256: str) -> None:
    """Raises `CheckpointError` if the weights that ``model`` names are others than those of this hash; see `hash_model`."""
    resolved = resolve_model(model)
    if (actual := hash_model(resolved)) != sha256.lower():
        what = f"{resolved.path} has another SHA-256 than the one given"
        raise CheckpointError(what, "give the file that the hash is of", value=f"given {sha256}\nfound {actual}")


def newest_finished(runs: Path) -> Path:
    """Returns the run under ``runs`` that finished last. Raises `ConfigError` if there is none."""
    finished = [path for path in runs.glob("*/status.json") if _state(path) == "finished"]
    if not finished:
        what = f"there is no finished run under {runs.absolute()}"
        raise ConfigError(what, "train one, or give a path instead of 'latest'")
    return max(finished, key=lambda path: (path.stat().st_mtime_ns, path)).parent


def _state(status: Path) -> str:
    return (read_checksummed(status) or {}).get("state", "unknown")


def _resolve_remote(name: str) -> ResolvedModel:
    folder = fetch(name)
    return replace(_resolve_folder(folder), origin=f"{name.partition('@')[0]}@{folder.name}")


def _resolve_folder(folder: Path) -> ResolvedModel:
    if (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    if is_open_clip(folder):
        return ResolvedModel(folder, "open_clip folder", str(folder.resolve()))
    config = folder / CONFIG
    if not config.is_file():
        if (folder / "config.yaml").is_file():
            what = f"the run {folder} has no model yet; its state is {_state(folder / 'status.json')!r}"
            raise CheckpointError(what, f"let it finish: vitrail train --resume {folder}")
        if (folder / PEFT_CONFIG).is_file():
            return ResolvedModel(folder, "peft folder", str(folder.resolve()))
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise CheckpointError(f"{folder} is not a model: it contains {names}", f"give {READABLE}")
    config_fields = read_json(config, log=lambda line: None)
    layout = _find_layout(config_fields)
    if layout != "huggingface folder":
        check_intact(config_fields, config)
    if layout is None:
        raise CheckpointError(f"{config} does not describe a known model", f"give {READABLE}")
    return ResolvedModel(folder, layout, str(folder.resolve()))


def is_open_clip(folder: Path) -> bool:
    """Whether a folder is open_clip's. Files of timm or transformers beside its own have the same weights and are preferred."""
    if any(path for pattern in (SAFETENSORS, PICKLED) for path in folder.glob(pattern)):
        return False
    return all((folder / name).is_file() for name in (OPEN_CLIP_CONFIG, OPEN_CLIP))


def _find_layout(config_fields: Mapping[str, Any]) -> Layout | None:
    if "format_version" in config_fields:
        return "native folder"
    if "pretrained_cfg" in config_fields or isinstance(config_fields.get("architecture"), str):
        return "timm folder"
    return "huggingface folder" if "model_type" in config_fields or "architectures" in config_fields else None


def _resolve_file(path: Path) -> ResolvedModel:
    suffix = path.suffix.lower()
    if path.name in OF_A_FOLDER and (path.parent / CONFIG).is_file():
        return _resolve_folder(path.parent)
    if path.name == OPEN_CLIP and (path.parent / OPEN_CLIP_CONFIG).is_file():
        return ResolvedModel(path.parent, "open_clip folder", str(path.parent.resolve()))
    if (path.parent / "manifest.json").is_file():
        raise CheckpointError(f"{path} is part of a run's checkpoint", "give the run directory, two folders above")
    if suffix == ".tar":  # checkpoints named .pth.tar are no archives
        with open(path, "rb") as file:
            if file.read(262)[257:] == b"ustar":
                raise CheckpointError(f"{path} is an archive of files, not of weights", f"give {READABLE}")
    if suffix in SUFFIXES:
        return ResolvedModel(path, SUFFIXES[suffix], str(path.resolve()))
    if suffix in LATER:
        raise CheckpointError(f"{path} is {LATER[suffix]}, which is not supported", f"give {READABLE}")
    raise CheckpointError(f"{path} is not a known format of weights", f"give {READABLE}")


def _explain_missing(path: Path, name: str) -> ConfigError:
    if name in MODELS:
        what = f"no public weights of {name} are known"
        return ConfigError(what, f"train it from scratch: --model {name}; or give a file or hf:owner/name")
    folder, close = find_close_paths(path)
    close += get_close_matches(name, ["latest", *PUBLIC], cutoff=0.7)
    public = translate_model(path.name.removesuffix(path.suffix))
    public = public if public in PUBLIC else "vit-ti16"
    known = suggest(close) if close else "give a run directory, a model folder or a file"
    named = f"public weights are downloaded by their name, such as {public} (`vitrail models` lists all)"
    as_file = f"`vitrail weights get {public} --out {public}.safetensors` gives a file"
    nearest = f"nearest existing folder: {folder.absolute()}"
    return ConfigError(f"there are no weights at {name!r}", f"{known}\n  or: {named}; {as_file}", value=nearest)
