"""The description of a model as JSON values: config, numerics, preprocessing and classes. It is stored in ``config.json``,
in the header of a file, or in a sidecar file beside weights of a foreign layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail import checksums
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import ARCHITECTURES, Backbone, Config
from vitrail.plugins import VARIABLE, is_registered
from vitrail.tasks import TASKS, Task, find_task
from vitrail.text import printable
from vitrail.weights.tensors import AGAIN, build_backbone, read_json, refusing_values, unreadable

FORMAT_VERSION = 2  # version 1 had no task; it was always classification
READABLE = (1, 2)
KEY = "vitrail"  # key of the description in files of other tools
OWN = "task."  # prefix of the tensors of the task, which are stored with those of the backbone
TOKENIZER = "tokenizer"  # the "kind" of a tokenizer's description
NEWER = "read it with the version of vitrail that wrote it, or a newer one"


def describe(
    model: Task, *, metrics: Mapping[str, float] | None = None, provenance: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describes ``model``.

    Args:
        metrics: evaluation metrics.
        provenance: JSON values on the origin of the weights; by default those it was loaded with.
    """
    return {
        "format_version": FORMAT_VERSION,
        "task": model.name,
        "architecture": model.config.architecture,
        "config": model.config.to_dict(),
        "preprocessing": model.preprocessing.to_dict(),
        "classes": list(model.classes),
        **model.describe(),
        # JSON has no NaN
        "metrics": {name: value if math.isfinite(value) else None for name, value in (metrics or {}).items()},
        "provenance": dict(model.provenance if provenance is None else provenance),
    }


def check_version(description: Mapping[str, Any], where: Path | str) -> None:
    """Raises `CheckpointError` for a description of an unsupported format version, or of anything but a model."""
    check_format(description, where)
    if description.get("kind") == TOKENIZER:
        what = f"{where} is a tokenizer, neither an encoder nor a classifier"
        remedy = "give a model; a tokenizer is used by `vitrail pretrain DATA --objective beit --tokenizer RUN`"
        raise CheckpointError(what, remedy)
    architecture, task = str(description.get("architecture")), task_of(description)
    if architecture not in ARCHITECTURES and not is_registered(architecture, ARCHITECTURES):
        known = ", ".join(ARCHITECTURES)
        what = f"{where} has the architecture {printable(architecture)!r}; this version of vitrail supports {known}"
        raise CheckpointError(
            what, f"{NEWER}; a model of your own is registered first: vitrail.register_model or {VARIABLE}"
        )
    if task not in TASKS and not is_registered(task, TASKS):
        what = f"{where} has the task {printable(str(task))!r}; this version of vitrail supports {', '.join(TASKS)}"
        raise CheckpointError(what, NEWER)


def task_of(description: Mapping[str, Any]) -> Any:
    """Returns the name of the task. Descriptions of format version 1 have none and are for classification."""
    return description.get("task", "classification")


def check_format(description: Mapping[str, Any], where: Path | str) -> None:
    """Raises `CheckpointError` for a description of an unsupported format version."""
    version = description.get("format_version")
    if version not in READABLE:
        readable = " and ".join(map(str, READABLE))
        what = f"{where} has format version {printable(repr(version))}; this version of vitrail reads {readable}"
        raise CheckpointError(what, NEWER)


def parse_config(description: Mapping[str, Any], where: Path | str) -> Config:
    """Returns the config in a description of a supported version. Raises `CheckpointError`."""
    with reading_description(where):
        return ARCHITECTURES[description["architecture"]].from_dict(description["config"])


def build_model(description: Mapping[str, Any], tensors: Mapping[str, Tensor], where: Path | str) -> Task:
    """Builds the model of a description of a supported version, in evaluation mode. ``tensors`` have vitrail's names.

    Raises:
        CheckpointError: the description is invalid, or the tensors are not exactly those of its config and its task.
    """
    own = {name.removeprefix(OWN): tensor for name, tensor in tensors.items() if name.startswith(OWN)}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(OWN)}
    model = build_model_around(lambda config: build_backbone(config, rest, where), description, where)
    try:
        model.own.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"the tensors of the task in {where} do not fit: {error}", AGAIN) from error
    return model


def build_model_around(make: Callable[[Config], Backbone], description: Mapping[str, Any], where: Path | str) -> Task:
    """Builds the model around the backbone that ``make`` returns for the config. Raises `CheckpointError`."""
    config, task = parse_config(description, where), find_task(task_of(description), description)
    with reading_description(where):
        preprocessing = Preprocessing.from_dict(description["preprocessing"])
        classes = list(description["classes"])
        if not isinstance(description["classes"], list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("its class names are not a list of strings")
        arguments = task.read_description(description)
        provenance = dict(description.get("provenance") or {})
    backbone = make(config)
    with reading_description(where):
        if preprocessing.size != config.image_size:
            sizes = ["x".join(map(str, size)) for size in (preprocessing.size, config.image_size)]
            raise ValueError(f"its preprocessing gives images of {sizes[0]} pixels, and its network takes {sizes[1]}")
    try:
        model = task(backbone, classes, preprocessing, provenance=provenance, **arguments)
    except ConfigError as error:
        raise CheckpointError(f"the description in {where} cannot be used: {error.what}", AGAIN) from error
    return model.eval()


def reading_description(where: Path | str) -> AbstractContextManager[None]:
    """Turns the errors of missing fields and invalid values inside the block into `CheckpointError`."""
    return refusing_values(f"the description in {where} cannot be used", AGAIN)


def sidecar_path(weights: Path) -> Path:
    """Returns ``NAME.json``, the path of the description of ``NAME.npz`` or ``NAME.safetensors`` in a foreign layout."""
    return weights.with_suffix(".json")


def read_sidecar(weights: Path) -> dict[str, Any] | None:
    """Reads the description beside a file of weights. Returns None if there is none or the JSON file is not vitrail's.

    Raises:
        CheckpointError: the description is damaged, of an unsupported version, or belongs to other weights.
    """
    beside = sidecar_path(weights)
    if not beside.is_file():
        return None
    description = read_json(beside)
    if "format_version" not in description:
        return None
    check_version(description, beside)
    if description.get("sha256") != hash_file(weights):
        what = f"{beside} describes other weights than {weights.name}"
        remedy = f"restore the matching file, or remove {beside.name} to use the defaults of the layout"
        raise CheckpointError(what, remedy)
    return description


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises `CheckpointError` if it cannot be read."""
    try:
        return checksums.hash_file(path)
    except OSError as error:
        raise unreadable(path, error) from error
