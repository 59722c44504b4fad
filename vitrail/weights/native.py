"""vitrail's own weights: a folder of ``model.safetensors`` and ``config.json``, or one ``.safetensors`` file with the same
description in its header. Either holds all that predicting, serving and exporting need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes

from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import disk_errors, dump_json, replace_file, replace_folder, stage_folder
from vitrail.tasks import Task
from vitrail.weights.description import KEY, OWN, check_version, describe, described
from vitrail.weights.folders import CONFIG, WHOLE, check_replaceable
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.resolve import find
from vitrail.weights.tensors import parse_json, read_json, read_tensors


def save_model(
    path: str | Path,
    model: Task,
    *,
    metrics: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``model`` whole or not at all: aside, synced, then renamed over what was there.

    Args:
        path: a folder, or a file whose name ends in ``.safetensors``. A folder that is there is replaced if it is
            empty or holds a model and nothing else.
        metrics: figures of its judgement.
        provenance: plain facts on where the weights come from; by default those it was loaded with.

    Returns:
        The path.

    Raises:
        ConfigError: the folder holds other things, or the model is an exported graph.
        DiskError: the disk is full or refuses; what was there before is intact.
    """
    path = Path(path)
    description = describe(model, metrics=metrics, provenance=provenance)
    if path.suffix == ".safetensors":
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, as_file(model, description))
        return path
    check_replaceable(path)
    with stage_folder(path, as_folder(model, description)) as aside:
        replace_folder(path, aside)
    return path


def as_folder(model: Task, description: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a model folder by name."""
    content = to_bytes(_tensors(model), {KEY: ""})  # the description is in config.json
    told = {**description, "sha256": hashlib.sha256(content).hexdigest()}
    return {WHOLE: content, CONFIG: dump_json(told).encode()}


def as_file(model: Task, description: Mapping[str, Any]) -> bytes:
    """A file with the description in its header."""
    return to_bytes(_tensors(model), {KEY: json.dumps(description, ensure_ascii=False)})


def _tensors(model: Task) -> dict[str, Any]:
    if isinstance(model.backbone, ExportedBackbone):
        raise ConfigError("an exported graph has no weights to save", "save the model that it was exported from")
    own = {f"{OWN}{name}": tensor for name, tensor in model.own.state_dict().items()}
    tensors = {**model.backbone.state_dict(), **own}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def load_model(path: str | Path) -> Task:
    """The model of a folder or file that `save_model` wrote, on the CPU, ready to predict.

    Raises:
        CheckpointError: damaged, of another format version, or tensors that are not exactly those of its config.
    """
    path = Path(path)
    if path.is_dir():
        description = read_json(path / CONFIG)
        check_version(description, path)
        tensors, _ = read_tensors(path / WHOLE, sha256=description.get("sha256"))
        return described(description, tensors, path)
    tensors, metadata = read_tensors(path)
    return from_single_file(tensors, metadata, path)


def from_single_file(tensors: dict[str, Any], metadata: Mapping[str, str], path: Path) -> Task:
    """The model of a file that was read already. Raises `CheckpointError` as `load_model` does."""
    if not metadata.get(KEY):
        what = f"{path} holds the tensors of a model folder, without the config.json that belongs to them"
        raise CheckpointError(what, "copy the folder whole")
    description = parse_json(metadata[KEY], f"the header of {path}")
    check_version(description, path)
    return described(description, tensors, path)


def set_temperature(model: str | Path, temperature: float) -> Path:
    """Stores a temperature with a model, and changes nothing else of it; returns the file that was rewritten.

    Raises:
        CheckpointError: the weights are not vitrail's own and have no place for one.
    """
    found = find(model)
    if found.layout == "native folder":
        config = found.path / CONFIG
        description = {**read_json(config), "temperature": temperature}
        check_version(description, config)
        replace_file(config, dump_json(description))
        return config
    if found.layout == "onnx file":
        what = f"{found.path} is an exported graph, and its temperature is part of what was proved of it"
        raise CheckpointError(what, "calibrate the model that it was exported from, and export that again")
    tensors, metadata = read_tensors(found.path) if found.layout == "file" else ({}, {})
    if not metadata.get(KEY):
        what = f"{found.path} is not vitrail's own and has no place for a temperature"
        raise CheckpointError(what, f"vitrail convert {model} DST --to native, and calibrate that")
    description = {**parse_json(metadata[KEY], f"the header of {found.path}"), "temperature": temperature}
    replace_file(found.path, to_bytes(tensors, {**metadata, KEY: json.dumps(description, ensure_ascii=False)}))
    return found.path
