"""Models of the Hugging Face hub, ``hf:owner/name``: downloaded into its cache, verified, and then read as local folders."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.weights.description import hash_file
from vitrail.weights.tensors import printable

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
        return Path(
            snapshot_download(
                matched["name"],
                revision=matched["revision"],
                allow_patterns=list(patterns),
                ignore_patterns=[ELSEWHERE],
            )
        )

    try:
        folder = download(DESCRIPTIONS, SAFETENSORS)
        folder = folder if any(folder.glob(SAFETENSORS)) else download(DESCRIPTIONS, PICKLED)
    except Exception as error:  # the hub's client, its HTTP library and the disk raise many types
        raise _not_fetched(model, error) from error
    _verify(folder)
    return folder


def list_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 that the hub states for each large file in a folder of its cache, where they lie under this name."""
    files = {path.name: path.resolve().name for path in sorted(folder.iterdir())}
    return {name: blob for name, blob in files.items() if SHA256.fullmatch(blob)}


def _verify(folder: Path) -> None:
    """Raises `CheckpointError` if a large file is not what the hub has."""
    for name, expected in list_hashes(folder).items():
        if hash_file(folder / name) != expected:
            what = f"{folder / name} does not match the SHA-256 of the hub, {expected}"
            raise CheckpointError(what, f"delete {(folder / name).resolve()} and run the command again")


def _not_fetched(model: str, error: Exception) -> VitrailError:
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(
        error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError
    ):  # gated models raise the first
        remedy = "check owner, name and revision; for private or gated models run: hf auth login"
        return ConfigError(f"{model} cannot be downloaded from the hub: {_line(error)}", remedy)
    remedy = (
        "connect and try again with HF_HUB_OFFLINE unset, or give a folder downloaded on another machine (hf download)"
    )
    return CheckpointError(
        f"{model} is not in the local cache of the hub and cannot be downloaded: {_line(error)}", remedy
    )


def _line(error: Exception) -> str:
    return printable(str(error).strip().partition("\n")[0], 200) or type(error).__name__
