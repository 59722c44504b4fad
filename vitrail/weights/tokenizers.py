"""The weights of visual tokenizers: a folder of ``model.safetensors`` and ``config.json``, with the same checks as a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.runtime.progress import LogFunction
from vitrail.weights.description import FORMAT_VERSION, TOKENIZER, check_format, reading_description
from vitrail.weights.folders import CONFIG, WHOLE
from vitrail.weights.native import write_folder
from vitrail.weights.resolve import resolve_model
from vitrail.weights.tensors import AGAIN, build_network, read_json, read_tensors, warn_of_broken


class SavedTokenizer(NamedTuple):
    """A tokenizer with its preprocessing and the provenance of its weights."""

    tokenizer: Tokenizer
    preprocessing: Preprocessing
    provenance: dict[str, Any]


def save_tokenizer(
    path: str | Path,
    tokenizer: Tokenizer,
    preprocessing: Preprocessing,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a folder atomically, as `vitrail.weights.native.save_model` does, and returns its path.

    Args:
        path: a folder. An existing folder is replaced if it is empty or holds a model and nothing else.
        preprocessing: preprocessing of the training images.
        provenance: JSON values on the origin of the weights.

    Raises:
        ConfigError: the folder holds other files.
        DiskError: the disk is full or refuses the write; an earlier folder is intact.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tokenizer.state_dict().items()}
    description = {
        "format_version": FORMAT_VERSION,
        "kind": TOKENIZER,
        "config": tokenizer.config.to_dict(),
        "preprocessing": preprocessing.to_dict(),
        "provenance": dict(provenance or {}),
    }
    return write_folder(Path(path), tensors, description)


def load_tokenizer(path: str | Path, log: LogFunction) -> SavedTokenizer:
    """Loads a tokenizer on the CPU, in evaluation mode.

    Args:
        path: a folder written by `save_tokenizer`, a run directory with one, or ``latest``.
        log: called with a line if weights are not finite.

    Raises:
        ConfigError: the path does not exist.
        CheckpointError: the files are damaged, of another format version, or not a tokenizer; lists the tensors that do
            not fit.
    """
    resolved = resolve_model(path)
    description = read_json(resolved.path / CONFIG) if resolved.layout == "native folder" else {}
    if description.get("kind") != TOKENIZER:
        remedy = "train one with `vitrail pretrain DATA --objective tokenizer`"
        raise CheckpointError(f"{resolved.path} is not a tokenizer", remedy)
    check_format(description, resolved.path)
    with reading_description(resolved.path):
        config = TokenizerConfig.from_dict(description["config"])
        preprocessing = Preprocessing.from_dict(description["preprocessing"])
        provenance = dict(description.get("provenance") or {})
    if preprocessing.channels != config.in_channels:
        channels = f"{config.in_channels} input channels, but its preprocessing {preprocessing.channels}"
        what = f"{resolved.path} has {channels}"
        raise CheckpointError(what, AGAIN)
    tensors, _ = read_tensors(resolved.path / WHOLE, sha256=str(description.get("sha256")))

    def sketch() -> Tokenizer:
        with torch.device("meta"):
            return Tokenizer(config)

    tokenizer = build_network(sketch, config.blocks, tensors, resolved.path)
    warn_of_broken(tokenizer.state_dict(), resolved.path, log)
    return SavedTokenizer(tokenizer.eval(), preprocessing, provenance)
