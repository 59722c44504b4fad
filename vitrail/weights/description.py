"""What the tensors of a model do not say, as plain values for JSON: its config with the numerics, its preprocessing, its
classes. It stands in a ``config.json``, in the header of a file, or in a file beside weights of a foreign layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import ARCHITECTURES, Backbone, Config
from vitrail.tasks import TASKS, Task
from vitrail.weights.tensors import AGAIN, filled_backbone, printable, read_json

FORMAT_VERSION = 2  # 1 had no task: it was classification
READABLE = (1, 2)
KEY = "vitrail"  # under which it stands among what others wrote
OWN = "task."  # before the names of tensors that the task has of its own, beside those of the backbone
TOKENIZER = "tokenizer"  # the "kind" of a description that is none of a model


def describe(
    model: Task, *, metrics: Mapping[str, float] | None = None, provenance: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The description of ``model``.

    Args:
        metrics: figures of its judgement.
        provenance: plain facts on where the weights come from; by default those it was loaded with.
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
    """Refuses a description of a format that this vitrail does not read, or of no model. Raises `CheckpointError`."""
    check_format(description, where)
    if description.get("kind") == TOKENIZER:
        what = f"{where} is a tokenizer, which turns images into codes, and neither an encoder nor a classifier"
        remedy = "give a model; a tokenizer serves `vitrail pretrain DATA --objective beit --tokenizer RUN`"
        raise CheckpointError(what, remedy)
    if (architecture := str(description.get("architecture"))) not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        what = f"{where} is of the architecture {printable(architecture)!r}; this vitrail knows {known}"
        raise CheckpointError(what, "read it with the vitrail that wrote it, or a newer one")
    if (task := task_of(description)) not in TASKS:
        what = f"{where} is of the task {printable(str(task))!r}; this vitrail knows {', '.join(TASKS)}"
        raise CheckpointError(what, "read it with the vitrail that wrote it, or a newer one")


def task_of(description: Mapping[str, Any]) -> Any:
    """The name of the task; descriptions of format version 1 have none, and are of classification."""
    return description.get("task", "classification")


def check_format(description: Mapping[str, Any], where: Path | str) -> None:
    """Refuses a description of another version. Raises `CheckpointError`."""
    version = description.get("format_version")
    if version not in READABLE:
        readable = " and ".join(map(str, READABLE))
        what = f"{where} has format version {printable(repr(version))}; this vitrail reads {readable}"
        raise CheckpointError(what, "read it with the vitrail that wrote it, or a newer one")


def config_of(description: Mapping[str, Any], where: Path | str) -> Config:
    """The config in a description of a version that is read. Raises `CheckpointError`."""
    try:
        return ARCHITECTURES[description["architecture"]].from_dict(description["config"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise useless(where, error) from error


def described(description: Mapping[str, Any], tensors: Mapping[str, Tensor], where: Path | str) -> Task:
    """The model of a description of a version that is read, with ``tensors`` by our names, ready to predict.

    Raises:
        CheckpointError: it cannot be meant, or the tensors are not exactly those of its config.
    """
    own = {name.removeprefix(OWN): tensor for name, tensor in tensors.items() if name.startswith(OWN)}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(OWN)}
    model = described_around(lambda config: filled_backbone(config, rest, where), description, where)
    try:
        model.own.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"the tensors of the task in {where} do not fit: {error}", AGAIN) from error
    return model


def described_around(make: Callable[[Config], Backbone], description: Mapping[str, Any], where: Path | str) -> Task:
    """The same around the backbone that ``make`` gives for the config."""
    config, kind = config_of(description, where), TASKS[task_of(description)]
    try:
        preprocessing = Preprocessing.from_dict(description["preprocessing"])
        classes = list(description["classes"])
        if not isinstance(description["classes"], list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("its class names are no list of words")
        options = kind.read_description(description)
        provenance = dict(description.get("provenance") or {})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise useless(where, error) from error
    backbone = make(config)
    try:
        model = kind(backbone, classes, preprocessing, provenance=provenance, **options)
    except ConfigError as error:
        raise CheckpointError(f"the description in {where} cannot be used: {error.what}", AGAIN) from error
    return model.eval()


def useless(where: Path | str, error: Exception) -> CheckpointError:
    """What to raise where a description lacks something, or says what cannot be meant."""
    reason = printable(f"it has no {error}" if isinstance(error, KeyError) else error, 300)
    return CheckpointError(f"the description in {where} cannot be used: {reason}", AGAIN)


def sidecar(weights: Path) -> Path:
    """Where the description of ``NAME.npz`` or ``NAME.safetensors`` of a foreign layout stands: ``NAME.json``."""
    return weights.with_suffix(".json")


def read_sidecar(weights: Path) -> dict[str, Any] | None:
    """The description beside a file of weights, or None where there is none, or a JSON file that is not vitrail's.

    Raises:
        CheckpointError: it is damaged, of another version, or belongs to other weights.
    """
    beside = sidecar(weights)
    if not beside.is_file():
        return None
    description = read_json(beside)
    if "format_version" not in description:
        return None
    check_version(description, beside)
    if description.get("sha256") != sha256_of(weights):
        what = f"{beside} describes other weights than those in {weights.name}"
        raise CheckpointError(
            what, f"put the two back together, or remove {beside.name}: the layout's own rules then hold"
        )
    return description


def sha256_of(path: Path) -> str:
    """Raises `CheckpointError` where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise CheckpointError(what, "check the path and its permissions") from error
