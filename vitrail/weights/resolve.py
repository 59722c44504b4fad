"""Finding the path and the layout of the weights that a name refers to, and fetching those of the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from vitrail.checksums import sha256_of
from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.files import read_checksummed, settle
from vitrail.models import MODELS
from vitrail.weights.description import hash_file
from vitrail.weights.folders import CONFIG, OF_A_FOLDER
from vitrail.weights.onnx import read_contents
from vitrail.weights.public import list_public
from vitrail.weights.tensors import check_intact, printable, read_json

READABLE = (
    "a run directory, a model folder, a .safetensors file (of vitrail, or in the layout of timm, torchvision or the authors) "
    "or a pickled one (.pt, .pth, .bin, .ckpt), a folder as timm or Hugging Face transformers save it, hf:owner/name, a Google "
    ".npz, an .onnx of `vitrail export`, or 'latest'"
)
ADAPTER = "adapter_config.json"
LATER = {".h5": "Keras .h5", ".msgpack": "Flax .msgpack", ".gguf": "GGUF"}

Layout = Literal[
    "native folder", "timm folder", "huggingface folder", "google file", "pickled file", "onnx file", "file"
]
PICKLED_FILE: Layout = "pickled file"
SUFFIXES: dict[str, Layout] = {
    ".safetensors": "file",
    ".npz": "google file",
    ".onnx": "onnx file",
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".th", ".tar"), PICKLED_FILE),
}


@dataclass(frozen=True)
class ResolvedModel:
    """A folder or file of weights and its layout. The layout of a ``.safetensors`` file is determined when it is read."""

    path: Path
    layout: Layout


def resolve_model(model: object) -> ResolvedModel:
    """Finds the weights of ``model``: a path, ``latest`` or ``hf:owner/name``.

    Raises:
        ConfigError: the model does not exist, and similar names are suggested; or it is no path but a model in memory.
        CheckpointError: the file or folder cannot be read, or the hub cannot be reached.
    """
    if not isinstance(model, str | os.PathLike):
        what = f"weights are needed, and not a {type(model).__name__} in memory"
        raise ConfigError(what, "save it first: vitrail.weights.native.save_model(FOLDER, model)")
    if str(model).startswith(REMOTE):
        return _resolve_folder(fetch(str(model)))
    path = newest_finished(Path("runs")) if str(model) == "latest" else Path(model).expanduser()
    for folder in (path, path / "model"):
        settle(folder)
    try:
        if path.is_dir():
            return _resolve_folder(path)
        if path.is_file():
            return _resolve_file(path)
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
        files = read_contents(path).list_files(path) if resolved.layout == "onnx file" else [path]
    hashes = [hash_file(file) for file in files]
    if len(files) == 1:
        return hashes[0]
    return sha256_of("".join(f"{digest}  {file.name}\n" for digest, file in zip(hashes, files)).encode())


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


def _resolve_folder(folder: Path) -> ResolvedModel:
    if (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    config = folder / CONFIG
    if not config.is_file():
        if (folder / "config.yaml").is_file():
            what = f"the run {folder} has no model yet; its state is {_state(folder / 'status.json')!r}"
            raise CheckpointError(what, f"let it finish: vitrail train --resume {folder}")
        if (folder / ADAPTER).is_file():
            what = f"{folder} is an adapter of PEFT, which has not the weights of the model itself"
            remedy = "merge it and give the result: model.merge_and_unload().save_pretrained(FOLDER)"
            raise CheckpointError(what, remedy)
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise CheckpointError(f"{folder} is not a model: it contains {names}", f"give {READABLE}")
    config_fields = read_json(config, log=lambda line: None)
    layout = _find_layout(config_fields)
    if layout != "huggingface folder":
        check_intact(config_fields, config)
    if layout is None:
        raise CheckpointError(f"{config} does not describe a known model", f"give {READABLE}")
    return ResolvedModel(folder, layout)


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
    if (path.parent / "manifest.json").is_file():
        raise CheckpointError(f"{path} is part of a run's checkpoint", "give the run directory, two folders above")
    if suffix == ".tar":  # checkpoints named .pth.tar are no archives
        with open(path, "rb") as file:
            if file.read(262)[257:] == b"ustar":
                raise CheckpointError(f"{path} is an archive of files, not of weights", f"give {READABLE}")
    if suffix in SUFFIXES:
        return ResolvedModel(path, SUFFIXES[suffix])
    if suffix in LATER:
        raise CheckpointError(f"{path} is {LATER[suffix]}, which is not supported", f"give {READABLE}")
    raise CheckpointError(f"{path} is not a known format of weights", f"give {READABLE}")


def _explain_missing(path: Path, name: str) -> ConfigError:
    if name in MODELS:
        public = next(iter(list_public(name).values()), None)
        weights = f", or start from public weights such as {public.source}" if public is not None else ""
        what = f"{name!r} is the name of a model, not of weights"
        return ConfigError(what, f"train it from scratch: --model {name}{weights}")
    parent = next(folder for folder in path.parents if folder.is_dir())
    missing = path.relative_to(parent).parts[0]
    try:
        names = sorted(path.name for path in parent.iterdir())
    except OSError:
        names = []
    close = [str(parent / name) for name in get_close_matches(missing, names, n=3, cutoff=0.5)]
    close += get_close_matches(name, ["latest"])
    remedy = "did you mean " + " or ".join(map(repr, close)) + "?" if close else f"give {READABLE}"
    nearest = f"nearest existing folder: {parent.absolute()}"
    return ConfigError(f"there are no weights at {name!r}", remedy, value=nearest)


REMOTE = "hf:"
NAME = re.compile(r"hf:(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w-][\w./-]*))?", re.ASCII)
DESCRIPTIONS, SAFETENSORS, PICKLED = "*.json", "model*.safetensors", "pytorch_model*.bin"
SHA256 = re.compile(r"[0-9a-f]{64}")
ELSEWHERE = "*/*"  # subfolders: training checkpoints, and conversions to other tools


def fetch(model: str) -> Path:
    """Downloads descriptions and weights of a model, but no code, and returns the cached folder.

    Raises:
        ConfigError: the name is invalid, the model or revision does not exist, or huggingface_hub is not installed.
        CheckpointError: the model is not in the cache and the hub cannot be reached, or a file is damaged.
    """
    matched = NAME.fullmatch(model)
    if matched is None or ".." in model:
        remedy = "give hf:owner/name, or hf:owner/name@revision"
        raise ConfigError(f"{printable(model, 200)!r} is not the name of a model on the hub", remedy)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(f"{model} needs the package huggingface_hub", "pip install 'vitrail[hub]'") from error

    def download(*patterns: str) -> Path:
        what = {"revision": matched["revision"], "allow_patterns": list(patterns), "ignore_patterns": [ELSEWHERE]}
        return Path(snapshot_download(matched["name"], **what))

    try:
        folder = download(DESCRIPTIONS, SAFETENSORS)
        folder = folder if any(folder.glob(SAFETENSORS)) else download(DESCRIPTIONS, PICKLED)
    except Exception as error:  # the hub's client, its HTTP library and the disk raise many types
        raise _not_fetched(model, error) from error
    for name, expected in list_hashes(folder).items():
        if hash_file(folder / name) != expected:
            what = f"{folder / name} does not match the SHA-256 of the hub, {expected}"
            raise CheckpointError(what, f"delete {(folder / name).resolve()} and run the command again")
    return folder


def list_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 that the hub states for each large file in a folder of its cache, where they lie under this name."""
    files = {path.name: path.resolve().name for path in sorted(folder.iterdir())}
    return {name: blob for name, blob in files.items() if SHA256.fullmatch(blob)}


def _not_fetched(model: str, error: Exception) -> VitrailError:
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    line = printable(str(error).strip().partition("\n")[0], 200) or type(error).__name__
    # gated models raise the first
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError):
        remedy = "check owner, name and revision; for private or gated models run: hf auth login"
        return ConfigError(f"{model} cannot be downloaded from the hub: {line}", remedy)
    remedy = "connect and try again with HF_HUB_OFFLINE unset, or give a folder that `hf download` made elsewhere"
    return CheckpointError(f"{model} is not in the local cache of the hub and cannot be downloaded: {line}", remedy)
