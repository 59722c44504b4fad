"""vitrail's own weights: a folder of ``model.safetensors`` and ``config.json``, or one ``.safetensors`` file with the same
description in its header. Either holds all that predicting, serving and exporting need.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes

from vitrail.data.images import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import disk_errors, replace_file, sync_folder, write_bytes
from vitrail.models import ARCHITECTURES
from vitrail.tasks.classification import Classifier
from vitrail.weights.find import find
from vitrail.weights.tensors import AGAIN, filled_backbone, parse_json, read_json, read_tensors

FORMAT_VERSION = 1
TENSORS, CONFIG = "model.safetensors", "config.json"
KEY = "vitrail"  # in the header of the tensors: the description, or nothing where config.json has it


def save_model(
    path: str | Path,
    classifier: Classifier,
    *,
    metrics: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``classifier`` whole or not at all: aside, synced, then renamed over what was there.

    Args:
        path: a folder, or a file whose name ends in ``.safetensors``. A folder that is there is replaced if it is
            empty or holds a model and nothing else.
        metrics: figures of its judgement.
        provenance: plain facts on where the weights come from; by default those it was loaded with.

    Returns:
        The path.

    Raises:
        ConfigError: the folder holds other things.
        DiskError: the disk is full or refuses; what was there before is intact.
    """
    path = Path(path)
    description = describe(classifier, metrics or {}, classifier.provenance if provenance is None else provenance)
    tensors = {name: each.detach().cpu().contiguous() for name, each in classifier.backbone.state_dict().items()}
    if path.suffix == ".safetensors":
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, to_bytes(tensors, {KEY: json.dumps(description, ensure_ascii=False)}))
        return path
    _check_replaceable(path)
    content = to_bytes(tensors, {KEY: ""})
    description["sha256"] = hashlib.sha256(content).hexdigest()
    with disk_errors(path):
        _write_folder(path, {TENSORS: content, CONFIG: _text(description)})
    return path


def load_model(path: str | Path) -> Classifier:
    """The classifier of a folder or file that `save_model` wrote, on the CPU, ready to predict.

    Raises:
        CheckpointError: damaged, of another format version, or tensors that are not exactly those of its config.
    """
    path = Path(path)
    if path.is_dir():
        description = read_json(path / CONFIG)
        check_version(description, path)
        tensors, _ = read_tensors(path / TENSORS, sha256=description.get("sha256"))
        return _build(description, tensors, path)
    tensors, metadata = read_tensors(path)
    return from_single_file(tensors, metadata, path)


def from_single_file(tensors: dict[str, Any], metadata: Mapping[str, str], path: Path) -> Classifier:
    """The classifier of a file that was read already. Raises `CheckpointError` as `load_model` does."""
    if not metadata.get(KEY):
        what = f"{path} holds the tensors of a model folder, without the config.json that belongs to them"
        raise CheckpointError(what, "copy the folder whole")
    description = parse_json(metadata[KEY], f"the header of {path}")
    check_version(description, path)
    return _build(description, tensors, path)


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
        with disk_errors(config):
            replace_file(config, _text(description))
        return config
    tensors, metadata = read_tensors(found.path) if found.layout == "file" else ({}, {})
    if not metadata.get(KEY):
        what = f"{found.path} is not vitrail's own and has no place for a temperature"
        raise CheckpointError(what, "load it, save it with vitrail.weights.native.save_model, and calibrate that")
    description = {**parse_json(metadata[KEY], f"the header of {found.path}"), "temperature": temperature}
    with disk_errors(found.path):
        replace_file(found.path, to_bytes(tensors, {**metadata, KEY: json.dumps(description, ensure_ascii=False)}))
    return found.path


def check_version(description: Mapping[str, Any], where: Path) -> None:
    """Refuses a description of a format that this vitrail does not read. Raises `CheckpointError`."""
    version = description.get("format_version")
    if version != FORMAT_VERSION:
        what = f"{where} has format version {version!r}; this vitrail reads {FORMAT_VERSION}"
        raise CheckpointError(what, "read it with the vitrail that wrote it, or a newer one")
    if (architecture := description.get("architecture")) not in ARCHITECTURES:
        what = f"{where} is of the architecture {architecture!r}; this vitrail knows {', '.join(ARCHITECTURES)}"
        raise CheckpointError(what, "read it with the vitrail that wrote it, or a newer one")


def describe(classifier: Classifier, metrics: Mapping[str, float], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known of a model but its tensors, as plain values for JSON."""
    return {
        "format_version": FORMAT_VERSION,
        "architecture": classifier.config.architecture,
        "config": classifier.config.to_dict(),
        "preprocessing": classifier.preprocessing.to_dict(),
        "classes": list(classifier.classes),
        "multi_label": classifier.multi_label,
        "temperature": classifier.temperature,
        # JSON has no NaN
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "provenance": dict(provenance),
    }


def _build(description: Mapping[str, Any], tensors: dict[str, Any], where: Path) -> Classifier:
    try:
        config = ARCHITECTURES[description["architecture"]].from_dict(description["config"])
        preprocessing = Preprocessing.from_dict(description["preprocessing"])
        classes = list(description["classes"])
        multi_label, temperature = bool(description["multi_label"]), float(description["temperature"])
        provenance = dict(description.get("provenance") or {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"the description in {where} cannot be used: {reason}", AGAIN) from error
    backbone = filled_backbone(config, tensors, where)
    try:
        classifier = Classifier(
            backbone, classes, preprocessing, multi_label=multi_label, temperature=temperature, provenance=provenance
        )
    except ConfigError as error:
        raise CheckpointError(f"the description in {where} cannot be used: {error.what}", AGAIN) from error
    return classifier.eval()


def _text(description: Mapping[str, Any]) -> bytes:
    return (json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode()


def _check_replaceable(folder: Path) -> None:
    held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if held - {TENSORS, CONFIG} or folder.is_file():
        other = ", ".join(sorted(held - {TENSORS, CONFIG})[:5]) or "it is a file"
        raise ConfigError(f"{folder} is there and is no model folder ({other})", "choose a folder that is new or empty")


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    aside, old = (folder.with_name(f".{folder.name}.{word}-{os.getpid()}") for word in ("writing", "replaced"))
    try:
        aside.mkdir(parents=True)
        for name, content in files.items():
            write_bytes(aside / name, content)
        sync_folder(aside)
        if folder.is_dir():
            os.rename(folder, old)
        os.rename(aside, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if old.is_dir() and not folder.is_dir():
            os.rename(old, folder)
        shutil.rmtree(old, ignore_errors=True)
