"""Weights made to fit another task: other classes, another image size, other channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import configure
from vitrail.tasks.classification import Classifier, check_classes
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.tensors import build_backbone


def adapt(
    start: Classifier,
    *,
    classes: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    multi_label: bool | None = None,
    **changes: Any,
) -> Classifier:
    """A new classifier with the weights of ``start``, for training it further; in training mode.

    Args:
        classes: what it is to tell apart. Other names than before get a zero head (paper, appendix B.1.1), the same names
            keep theirs; either way its calibration is forgotten.
        image_size: pixels, or (height, width); positions are resized by the config's rule, and the resize before the
            crop in proportion.
        in_channels: of the images; the first layer follows as `fit_first_layer` says, and so do mean and std.
        multi_label: by default as before.
        changes: other fields of the config that leave its tensors as they are, such as ``drop_path=0.1``.

    Raises:
        ConfigError: a field or value that cannot be meant.
        CheckpointError: lists the tensors that the changed config needs otherwise.
    """
    multi_label = start.multi_label if multi_label is None else multi_label
    size = start.config.image_size if image_size is None else image_size
    channels = start.config.in_channels if in_channels is None else in_channels
    config = configure(start.config, image_size=size, in_channels=channels, **changes)
    tensors = start.backbone.resized(start.backbone.state_dict(), start.config, config)
    first = start.backbone.first_layer
    backbone = build_backbone(config, {**tensors, first: fit_first_layer(tensors[first], channels)}, "the checkpoint")
    names = start.classes if classes is None else check_classes(classes, outputs=len(classes))
    if (names, multi_label) != (start.classes, start.multi_label):
        backbone.new_head(len(names))
    return Classifier(
        backbone,
        names,
        _fit_preprocessing(start.preprocessing.at(config.image_size), channels),
        multi_label=multi_label,
        temperature=start.temperature if classes is None else 1.0,
        provenance=start.provenance,
    )


def fit_first_layer(weight: Tensor, channels: int) -> Tensor:
    """The first layer's weight (D, C, P, Q) for other ``channels`` n: (D, n, P, Q).

    Channels are dealt round, as cards are. Of more than C, those that get the same one share it in equal parts; of fewer,
    each gets the sum of its hand, so that one channel gets the sum of all. Either way an image whose channels are all
    equal gets the answer that it got before.
    """
    before = weight.shape[1]
    dealt = torch.zeros(channels, before, dtype=weight.dtype, device=weight.device)  # (n, C)
    places = torch.arange(max(channels, before), device=weight.device)
    dealt[places % channels, places % before] = 1
    return weight if channels == before else torch.einsum("nc,dcpq->dnpq", dealt / dealt.sum(0), weight)


def _fit_preprocessing(preprocessing: Preprocessing, channels: int) -> Preprocessing:
    """Mean and std of each channel those of what it was dealt, averaged."""
    before = preprocessing.channels
    places = range(max(channels, before))

    def dealt(values: tuple[float, ...]) -> tuple[float, ...]:
        hands = ([values[place % before] for place in places if place % channels == each] for each in range(channels))
        return tuple(sum(hand) / len(hand) for hand in hands)

    if channels == before:
        return preprocessing
    return replace(preprocessing, mean=dealt(preprocessing.mean), std=dealt(preprocessing.std))


def apply_changes(start: Classifier, classes_file: str | Path | None = None, **changes: Any) -> Classifier:
    """``start`` itself, its outputs named by a file of as many lines where one is given, or `adapt` where there is a change.
    An exported graph can change its size alone.

    Raises:
        ConfigError: names that do not fit; and as `adapt`.
    """
    if classes_file is not None:
        start.classes = check_classes(read_classes(Path(classes_file)), outputs=len(start.classes))
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes.keys() == {"image_size"} and isinstance(start.backbone, ExportedBackbone):
        start.backbone = start.backbone.at(changes["image_size"])
        start.preprocessing = start.preprocessing.at(start.config.image_size)
        return start
    return adapt(start, **changes) if changes else start


def read_classes(file: Path) -> tuple[str, ...]:
    """The names in a text file, one a line, in the order of the outputs. Raises `ConfigError` where it is none."""
    try:
        names = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the class names in {file} cannot be read: {error}", "give a text file, one name a line"
        ) from error
    return tuple(name for name in names if name)
