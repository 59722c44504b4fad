"""COCO's figures of masks, and of their boxes beside them.

K classes, H and W of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import LABEL_BITS, OutlinedObjects
from vitrail.data.sources.source import Source
from vitrail.images.rle import split_ids
from vitrail.tasks.detection.matching import Matches
from vitrail.tasks.detection.metric import HALF, BoxMetric, average_precision, match_answer
from vitrail.tasks.metric import Figures, as_array, mean_of_defined

Decode = Callable[[Tensor, Frames], Sequence[Any]]  # of `Instances`


class InstanceMetric(BoxMetric):
    """Of masks with a class and a score, in pixels of the pictures as COCO evaluates them; beside them the AP of their boxes.

    Args:
        classes: the names of the classes.
        size: (height, width) of the model's input.
        decode: from outputs and frames to all answers.
        source: has the outlines as they were annotated, by the key of an image. Without it they are those of the maps of
            objects that `update` takes, in which smaller objects hide larger ones and crowds are not known.
    """

    def __init__(
        self, classes: Sequence[str], size: tuple[int, int], decode: Decode, source: Source | None = None
    ) -> None:
        super().__init__(classes, size)
        self.decode, self.source = decode, source
        self._boxes: list[Matches] = []

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        """Adds a batch of outputs of an `InstanceSegmenter`, with maps of `OutlinedObjects` (B, H, W)."""
        frames = Frames.whole(len(outputs), self.size) if frames is None else frames
        for row, key in enumerate(keys):
            answer = self.decode(outputs[row : row + 1], frames.take(np.array([row])))[0]
            objects = read_truth(self.source, key, targets[row], frames.pictures[row])
            self._parts.append(match_answer(answer, objects, self.classes, (answer.masks, objects.masks())))
            self._boxes.append(match_answer(answer, objects, self.classes))
        self.keys.extend(keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "decode": None, "source": None}

    def merge(self, other: Self) -> None:
        super().merge(other)
        self._boxes += other._boxes

    def compute(self) -> Figures:
        """As of `BoxMetric`, of masks; then ``box_ap`` and ``box_ap50``."""
        precision = average_precision(Matches.join(self._boxes), len(self.classes))[0, :, 0]  # (K, T)
        boxes = {"box_ap": mean_of_defined(precision), "box_ap50": mean_of_defined(precision[:, HALF])}
        return {**super().compute(), **{name: value for name, value in boxes.items() if not np.isnan(value)}}


def read_truth(source: Source | None, key: str, target: Tensor, picture: NDArray[np.floating]) -> OutlinedObjects:
    """Returns the objects of an image as the source has them, otherwise those of its map (H, W).

    ``picture`` is (height, width) of the image, beyond which the map is filled up.
    """
    if source is not None:
        return source.targets.of(source.rows[key])  # type: ignore[missing-attribute]
    height, width = picture.astype(int)
    return read_objects(as_array(target)[:height, :width])


def read_objects(values: NDArray[np.int32]) -> OutlinedObjects:
    """Returns the objects of a map of `OutlinedObjects` (H, W)."""
    masks = split_ids(np.maximum(values, 0))
    return OutlinedObjects.of_image(
        [mask.box for mask in masks.values()],
        [value & ((1 << LABEL_BITS) - 1) for value in masks],
        areas=[mask.area for mask in masks.values()],
        size=(values.shape[0], values.shape[1]),
        outlines=[mask.to_text().encode() for mask in masks.values()],
    )
