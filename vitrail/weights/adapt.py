"""Weights made to fit another task: other classes, another image size, other channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.models import configure
from vitrail.tasks.classification import Classifier, check_classes
from vitrail.weights.tensors import filled_backbone


def adapt(
    start: Classifier,
    *,
    classes: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    multi_label: bool | None = None,
    **changes: Any,
) -> Classifier:
    """A new classifier with the weights of ``start``, for training it further; in training mode.

    Args:
        classes: what it is to tell apart. Other names than before get a zero head (paper, appendix B.1.1), the same names
            keep theirs; either way its calibration is forgotten.
        image_size: pixels, or (height, width); positions are resized by the config's rule, and the resize before the
            crop in proportion.
        multi_label: by default as before.
        changes: other fields of the config that leave its tensors as they are, such as ``drop_path=0.1``.

    Raises:
        ConfigError: a field or value that cannot be meant.
        CheckpointError: lists the tensors that the changed config needs otherwise.
    """
    multi_label = start.multi_label if multi_label is None else multi_label
    size = start.config.image_size if image_size is None else image_size
    config = configure(start.config, image_size=size, **changes)
    tensors = start.backbone.resized(start.backbone.state_dict(), start.config, config)
    backbone = filled_backbone(config, tensors, "the checkpoint")
    names = start.classes if classes is None else check_classes(classes, outputs=len(classes))
    if (names, multi_label) != (start.classes, start.multi_label):
        backbone.new_head(len(names))
    return Classifier(
        backbone,
        names,
        start.preprocessing.at(config.image_size),
        multi_label=multi_label,
        temperature=start.temperature if classes is None else 1.0,
        provenance=start.provenance,
    )
