"""Adapting a model to other classes, another image size or other channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import configure
from vitrail.runtime.progress import LogFunction
from vitrail.tasks.task import NUMBERED, Task, check_classes, count_head_outputs, has_ambiguous_order
from vitrail.untrusted.files import read_text
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.tensors import build_backbone


def adapt(
    start: Task,
    *,
    task: type[Task] | None = None,
    classes: Sequence[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    image_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    **changes: Any,
) -> Task:
    """Returns a new model with the weights of ``start`` for further training, in training mode.

    Args:
        task: the task; by default that of ``start``.
        classes: names of the outputs. The head is set to zero (paper, appendix B.1.1) unless the names are the same, and not
            only numbers whose order is ambiguous (`has_ambiguous_order`). In both cases the temperature is reset to 1, and a
            fitted `Unlikeness` is left out.
        arguments: ``classes`` and further arguments of the task, such as ``multi_label``; by default those of ``start``.
        image_size: pixels, or (height, width); positions are resized by the config's rule, and the resize before the
            crop in proportion.
        in_channels: number of image channels; the first layer is adapted by `fit_first_layer`, and mean and std likewise.
        changes: other fields of the config that leave its tensors as they are, such as ``drop_path=0.1``.

    Raises:
        ConfigError: an invalid field or value.
        CheckpointError: lists the tensors that do not fit the changed config.
    """
    kind = task or type(start)
    size = start.config.image_size if image_size is None else image_size
    channels = start.config.in_channels if in_channels is None else in_channels
    config = configure(start.config, image_size=size, in_channels=channels, **changes)
    tensors = start.backbone.resize_tensors(start.backbone.state_dict(), start.config, config)
    if channels != start.config.in_channels:
        first = start.backbone.first_layer
        tensors = {**tensors, first: fit_first_layer(tensors[first], channels)}
    backbone = build_backbone(config, tensors, "the checkpoint")
    described = start.describe() if kind is type(start) else {}
    if classes is not None or arguments is not None:
        for name in ("temperature", "false_alarms"):
            described.pop(name, None)
    names = start.classes if classes is None else check_classes(classes)
    options = {"classes": names, **described, **(arguments or {})}
    own = {**vars(start), **start.describe()}
    keeps_head = kind is type(start) and all(
        own.get(name) == value for name, value in options.items() if name not in start.free_options
    )
    if classes is not None or arguments is not None:
        keeps_head = keeps_head and not has_ambiguous_order(start.classes, start.provenance)
    if not keeps_head:
        backbone.reset_head(count_head_outputs(kind, options["classes"]))
    preprocessing = _fit_preprocessing(start.preprocessing.at(config.image_size), channels)
    provenance = {name: value for name, value in start.provenance.items() if name != NUMBERED or keeps_head}
    model = kind(backbone, preprocessing=preprocessing, provenance=provenance, **options)
    if keeps_head:
        model.own.load_state_dict(start.own.state_dict(), strict=start.false_alarms == model.false_alarms)
    elif start.keeps_parts and kind.keeps_parts:
        drawn = {name: tensor.shape for name, tensor in model.own.state_dict().items()}
        fits = {name: each for name, each in start.own.state_dict().items() if drawn.get(name) == each.shape}
        model.own.load_state_dict(fits, strict=False)
    return model


def fit_first_layer(weight: Tensor, channels: int) -> Tensor:
    """The first layer's weight (D, C, P, Q) for ``channels`` n: (D, n, P, Q).

    Channels are assigned cyclically. With n > C, new channels that map to the same old channel each get an equal part of
    its weight; with n < C, a new channel gets the sum of the old channels that map to it. Either way an image whose
    channels are all equal gets the same output as before. Raises `ConfigError` for another shape.
    """
    if weight.ndim != 4:
        what = (
            f"the first layer of a registered model has a weight of shape {tuple(weight.shape)}, which has no channels"
        )
        raise ConfigError(what, "train it from scratch on these images")
    before = weight.shape[1]
    shares = torch.zeros(channels, before, dtype=weight.dtype, device=weight.device)  # (n, C)
    indices = torch.arange(max(channels, before), device=weight.device)
    shares[indices % channels, indices % before] = 1
    return torch.einsum("nc,dcpq->dnpq", shares / shares.sum(0), weight)


def _fit_preprocessing(preprocessing: Preprocessing, channels: int) -> Preprocessing:
    """Mean and std of a new channel: the average over the old channels that map to it, as in `fit_first_layer`."""
    before = preprocessing.channels
    indices = range(max(channels, before))

    def average(values: tuple[float, ...]) -> tuple[float, ...]:
        groups = ([values[index % before] for index in indices if index % channels == new] for new in range(channels))
        return tuple(sum(group) / len(group) for group in groups)

    if channels == before:
        return preprocessing
    return replace(preprocessing, mean=average(preprocessing.mean), std=average(preprocessing.std))


def apply_changes(
    start: Task,
    classes_file: str | Path | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Task:
    """Applies options of the command line: class names from a file, values of `Preprocessing.override`, `adapt` for others.

    ``start`` is modified in place if possible. Only the image size of an exported graph can change.

    Raises:
        ConfigError: the names do not fit, or as in `adapt`.
    """
    if classes_file is not None:
        start.classes = check_classes(read_classes(Path(classes_file)), outputs=len(start.classes))
        start.provenance.pop(NUMBERED, None)
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes.keys() == {"image_size"} and isinstance(start.backbone, ExportedBackbone):
        start.backbone = start.backbone.at(changes["image_size"])
        start.preprocessing = start.preprocessing.at(start.config.image_size)
        changed = start
    else:
        changed = adapt(start, **changes) if changes else start
    changed.preprocessing = changed.preprocessing.override(**preprocessing or {})
    return changed


def fit_to_crop(model: Task, log: LogFunction) -> Task:
    """Returns ``model`` with positions for the images of its preprocessing, which may be of another size than its network's:
    a file that is written states one size. Both compute the same for these images. Raises `ConfigError` as `adapt`.
    """
    sizes = ["x".join(map(str, size)) for size in (model.config.image_size, model.preprocessing.size)]
    if sizes[0] == sizes[1]:
        return model
    crop = f"{sizes[1]}, the crop of the preprocessing (--crop gives another)"
    log(f"resized  positions for images of {sizes[0]} to {crop}")
    return adapt(model, image_size=model.preprocessing.size).eval()


def read_classes(file: Path) -> tuple[str, ...]:
    """Reads class names from a text file, one per line, in the order of the outputs. Raises `ConfigError`."""
    try:
        names = [line.strip() for line in read_text(file).splitlines()]
    except (OSError, ValueError) as error:
        what = f"the class names in {file} cannot be read: {error}"
        raise ConfigError(what, "give a text file, one name a line") from error
    return tuple(name for name in names if name)
