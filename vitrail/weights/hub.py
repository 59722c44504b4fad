"""Models of the Hugging Face hub, by ``hf:owner/name``: fetched into its cache, from where they are read as any folder."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.weights.folders import PICKLED
from vitrail.weights.tensors import printable

REMOTE = "hf:"
NAME = re.compile(r"hf:(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w-][\w./-]*))?", re.ASCII)
DESCRIPTIONS, SAFETENSORS = "*.json", "model*.safetensors"
ELSEWHERE = "*/*"  # folders in the folder: checkpoints of training, and what other tools made of the model


def fetch(model: str) -> Path:
    """The folder to which the model was fetched now or before: descriptions and weights, never code.

    Raises:
        ConfigError: no such name, model or revision; or the package huggingface_hub is not installed.
        CheckpointError: it is not in the cache and the hub cannot be reached.
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
        return folder if any(folder.glob(SAFETENSORS)) else download(DESCRIPTIONS, PICKLED)
    except Exception as error:  # the hub's client, its HTTP library and the disk raise a dozen kinds
        raise _not_fetched(model, error) from error


def _not_fetched(model: str, error: Exception) -> VitrailError:
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(
        error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError
    ):  # gated ones are of the first
        remedy = "check owner, name and revision; where it is private or gated: hf auth login"
        return ConfigError(f"the hub gives no {model}: {_line(error)}", remedy)
    remedy = "connect and try again, or give a folder that was fetched elsewhere (hf download); HF_HUB_OFFLINE must not be set"
    return CheckpointError(f"{model} is not in the hub's cache here and could not be fetched: {_line(error)}", remedy)


def _line(error: Exception) -> str:
    return printable(str(error).strip().partition("\n")[0], 200) or type(error).__name__
