"""vitrail's own format: a folder of ``model.safetensors`` and ``config.json``, or one ``.safetensors`` file with the same
description in its header. Both hold everything that prediction, serving and export need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from vitrail.checksums import add_checksum, sha256_of
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import disk_errors, dump_json, replace_file, replace_folder, settle, stage_folder
from vitrail.models import Backbone, sketch
from vitrail.models.adapters import has_adapters, merge_tensors
from vitrail.tasks import Classifier, Task
from vitrail.weights.description import KEY, OWN, build_model, build_model_around, check_version, describe
from vitrail.weights.folders import CONFIG, WHOLE, check_replaceable
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.resolve import GRAPH_FILES, resolve_model
from vitrail.weights.tensors import encode_tensors, parse_json, read_json, read_tensors

EXPORTED = "an exported graph has no weights to save"


def save(model: Task | Backbone, path: str | Path, *, metrics: Mapping[str, float] | None = None) -> Path:
    """Writes a model so that `vitrail.load` gives the same one: a folder, or one file if ``path`` ends in ``.safetensors``.

    Args:
        model: of `vitrail.load`, `vitrail.create_model` or a run, trained in any way since; or its backbone.
        path: an existing model is replaced, at once and as a whole; a folder of other files is refused.
        metrics: evaluation metrics to keep with the model.

    Returns:
        The path.

    Raises:
        ConfigError: no model of vitrail, modules that its config does not describe, so that no file could be read again, or a
            folder that holds other files.
        DiskError: the disk is full or refuses the write; an earlier model is intact.
    """
    task = as_task(model)
    if has_adapters(task):
        task = build_model(describe(task), collect_tensors(task), Path("this model"))
    check_as_described(task)
    return save_model(path, task, metrics=metrics)


def as_task(model: object) -> Task:
    """Returns the model, or a `Classifier` around a backbone, with numbers as classes and the paper's preprocessing.

    Raises:
        ConfigError: ``model`` is neither.
    """
    if isinstance(model, Task):
        return model
    if isinstance(model, Backbone):
        config = model.config
        preprocessing = Preprocessing.paper(config.image_size, channels=config.in_channels)
        return Classifier(model, list(map(str, range(config.classes))), preprocessing)
    what = f"a {type(model).__name__} is not a model of vitrail"
    raise ConfigError(what, "give the model itself, not a part of it or what torch.compile returned")


def check_as_described(model: Task) -> None:
    """Raises `ConfigError` unless ``model`` has the modules and the shapes of tensors that its config describes."""
    if isinstance(model.backbone, ExportedBackbone):
        raise ConfigError(EXPORTED, "save the model that it was exported from")
    described = build_model_around(sketch, describe(model), "this model")
    modules = [{name: type(module) for name, module in each.named_modules()} for each in (described, model)]
    shapes = [{name: tuple(tensor.shape) for name, tensor in each.state_dict().items()} for each in (described, model)]
    for theirs, ours, kind in ((*modules, "__name__"), (*shapes, "")):
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                was, now = (getattr(each.get(name), kind, each.get(name)) or "nothing" for each in (theirs, ours))
                what = f"{name or 'the model'} is {now}, and the config of the model describes {was}"
                remedy = "change the config (create_model(..., mlp_width=...)), register the network (vitrail.register_model)"
                raise ConfigError(what, f"a file could not say how to build it: {remedy}, or torch.save its state_dict")


def save_model(
    path: str | Path,
    model: Task,
    *,
    metrics: Mapping[str, float] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``model`` atomically: to a temporary path that is synced and then renamed.

    Args:
        path: a folder, or a file whose name ends in ``.safetensors``. An existing folder is replaced if it is empty or
            holds a model and nothing else.
        metrics: evaluation metrics.
        provenance: JSON values on the origin of the weights; by default those it was loaded with.

    Returns:
        The path.

    Raises:
        ConfigError: the folder holds other files, or the model is an exported graph.
        DiskError: the disk is full or refuses the write; an earlier model is intact.
    """
    path = Path(path)
    description = describe(model, metrics=metrics, provenance=provenance)
    if path.suffix == ".safetensors":
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            settle(path)
            replace_file(path, encode_file(model, description))
        return path
    return write_folder(path, collect_tensors(model), description)


def write_folder(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> Path:
    """Writes a model folder atomically, and returns its path. Raises as `save_model`."""
    check_replaceable(path)
    with stage_folder(path, encode_folder(tensors, description)) as aside:
        replace_folder(path, aside)
    return path


def encode_folder(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the files of a model folder by name."""
    content = to_bytes(dict(tensors), {KEY: ""})  # the description is in config.json
    config = add_checksum({**description, "sha256": sha256_of(content)})
    return {WHOLE: content, CONFIG: dump_json(config).encode()}


def encode_file(model: Task, description: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a file with the description in its header."""
    return encode_tensors(collect_tensors(model), {KEY: json.dumps(description, ensure_ascii=False)})


def collect_tensors(model: Task) -> dict[str, Tensor]:
    """Returns the tensors of a model, with adapters merged, and of its task. Raises `ConfigError` for an exported graph."""
    if isinstance(model.backbone, ExportedBackbone):
        raise ConfigError(EXPORTED, "save the model that it was exported from")
    own = {f"{OWN}{name}": tensor for name, tensor in model.own.state_dict().items()}
    tensors = {**merge_tensors(model.backbone), **own}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def load_model(path: str | Path) -> Task:
    """Loads a folder or file that `save_model` wrote, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: the files are damaged, of another format version, or the tensors do not match the config.
    """
    path = Path(path)
    if path.is_dir():
        description = read_json(path / CONFIG)
        check_version(description, path)
        tensors, _ = read_tensors(path / WHOLE, sha256=description.get("sha256"))
        return build_model(description, tensors, path)
    tensors, metadata = read_tensors(path)
    return parse_model_file(tensors, metadata, path)


def parse_model_file(tensors: dict[str, Any], metadata: Mapping[str, str], path: Path) -> Task:
    """Builds the model of a file that has been read. Raises `CheckpointError` as `load_model` does."""
    if not metadata.get(KEY):
        what = f"{path} holds the tensors of a model folder, without the config.json that belongs to them"
        raise CheckpointError(what, "copy the whole folder")
    description = parse_json(metadata[KEY], f"the header of {path}")
    check_version(description, path)
    return build_model(description, tensors, path)


def set_temperature(model: str | Path, temperature: float) -> Path:
    """Stores a calibration temperature with a model and returns the file that was rewritten.

    Raises:
        CheckpointError: the weights are not in vitrail's format and cannot store one.
    """
    return _store(model, "temperature", {"temperature": temperature})


def set_unlikeness(model: str | Path, task: Task) -> Path:
    """Stores the `Unlikeness` of ``task`` with the model that it was loaded from; returns and raises as `set_temperature`."""
    return _store(model, "threshold", {"false_alarms": task.false_alarms}, task.own.state_dict())


def _store(model: str | Path, kind: str, values: Mapping[str, Any], own: Mapping[str, Tensor] = {}) -> Path:
    """Adds values to the description of a model and the tensors ``own`` of its task; returns what was rewritten."""
    resolved = resolve_model(model)
    named = {f"{OWN}{name}": tensor.cpu().contiguous() for name, tensor in own.items()}
    if resolved.layout == "native folder":
        config = resolved.path / CONFIG
        description = {**read_json(config), **values}
        check_version(description, config)
        if named:
            return write_folder(resolved.path, {**read_tensors(resolved.path / WHOLE)[0], **named}, description)
        replace_file(config, dump_json(add_checksum(description)))
        return config
    if resolved.layout in GRAPH_FILES:
        what = f"{resolved.path} is an exported graph, whose {kind} is fixed by its comparison with the source"
        raise CheckpointError(what, "evaluate the model that it was exported from in this way, and export it again")
    tensors, metadata = read_tensors(resolved.path) if resolved.layout == "file" else ({}, {})
    if not metadata.get(KEY):
        what = f"{resolved.path} is not in vitrail's format and cannot store a {kind}"
        raise CheckpointError(what, f"run vitrail convert {model} DST --to native, and evaluate DST in this way")
    description = {**parse_json(metadata[KEY], f"the header of {resolved.path}"), **values}
    text = json.dumps(description, ensure_ascii=False)
    replace_file(resolved.path, encode_tensors({**tensors, **named}, {**metadata, KEY: text}))
    return resolved.path
