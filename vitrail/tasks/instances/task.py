"""What instance segmenters of every head have in common: objects with masks, from detections to answers, figures and graphs.

B images, D detections, r x c the grid of masks, S = r c.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import OutlinedObjects
from vitrail.data.sources.source import Source
from vitrail.images.rle import Rle
from vitrail.tasks.answer import AnswerFiles
from vitrail.tasks.detection.boxes import find_partners, join_detections, join_outputs, move_to_first, split_outputs
from vitrail.tasks.detection.detector import CANDIDATES, SAME_OBJECT, ObjectTask
from vitrail.tasks.detection.matching import Matches
from vitrail.tasks.detection.metric import match_answer
from vitrail.tasks.instances.answer import FORMATS, Instances
from vitrail.tasks.instances.loss import OutlineTargets
from vitrail.tasks.instances.metric import InstanceMetric

LIKELY = 0.5  # probability from which a pixel belongs to a mask
MIDDLE = 127  # the largest value of a cell of an exported mask that does not belong to it
SAME_MASK = 0.95  # IoU of two masks of an object from which they are the same
# columns of a detection: the region that its mask shows, (left, top, right, bottom), rows and columns of the mask, its cells
REGION, GRID, MASK = slice(6, 10), slice(10, 12), slice(12, None)


class InstanceTask(ObjectTask):
    """A task that answers with a mask for every object. Detections are (B, D, 12 + S): box, score, label, the region that the
    mask shows, r and c, and the probability of each of its cells.
    """

    name = "instances"
    reply: ClassVar[Mapping[str, Any]] = {
        "width": int,
        "height": int,
        "objects": list[dict[str, str | float | list[float] | dict[str, str | list[int] | list[list[float]]]]],
    }
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = FORMATS
    targets = OutlineTargets()
    graph_outputs = (*ObjectTask.graph_outputs, "masks")

    @property
    @abstractmethod
    def cell(self) -> tuple[float, float]:
        """Height and width in pixels of a cell of the grid of masks."""

    def is_detected(self, outputs: Tensor) -> bool:
        """Whether these are what `detect` gave."""
        if outputs.shape[1] != self.most or outputs.shape[2] <= MASK.start:
            return False
        return outputs.shape[2] == MASK.start + math.prod(outputs[0, 0, GRID].tolist())

    def add_masks(self, found: Tensor, masks: Tensor) -> Tensor:
        """Detections (B, D, 6) with their masks (B, D, r, c), which show the whole input."""
        rows, columns = masks.shape[2:]
        region = found.new_tensor([0, 0, columns * self.cell[1], rows * self.cell[0], rows, columns])
        return torch.cat([found, region.expand(*found.shape[:2], -1), masks.flatten(2).to(found.dtype)], 2)

    def place_in_pictures(self, found: Tensor, frames: Frames | None) -> NDArray[np.float64]:
        """What `detect` gave, with boxes in pixels of the pictures, clipped to them, and regions that are not clipped."""
        placed, size = super().place_in_pictures(found, frames), self.preprocessing.size
        if frames is not None and found.shape[2] > REGION.stop:
            corners = placed[..., REGION].reshape(len(placed), -1, 2)
            placed[..., REGION] = frames.move(corners, size).reshape(*placed.shape[:2], 4)
        return placed

    def answer(self, found: NDArray[np.float64], size: tuple[int, int]) -> Instances:
        masks = [paste_mask(row[MASK].reshape(row[GRID].astype(int)), row[REGION], row[:4], size) for row in found]
        kept = np.array([mask.area > 0 for mask in masks], bool)
        boxes = super().answer(found[kept, :6], size)
        masks = tuple(mask for mask, is_kept in zip(masks, kept) if is_kept)
        return Instances(boxes.boxes, boxes.scores, boxes.labels, size, self.classes, masks=masks)

    def match(self, answer: Instances, objects: OutlinedObjects) -> Matches:  # type: ignore[bad-override]
        return match_answer(answer, objects, self.classes, (answer.masks, objects.masks()))

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """As of `Detector`, and ``masks`` (B, most, r, c) uint8, 255 times the probability, over the model's input."""
        found = self.detect(outputs)
        return {**super().reply_arrays(found, frames), "masks": self._split_masks(found).cpu().numpy()}

    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        size, parts, masks = self.preprocessing.size, [], []
        for each in map(self.detect, outputs):
            parts.append(each[..., : MASK.start])
            masks.append(to_bytes(each[..., MASK]).flatten(0, 1))
        found = torch.cat(parts)
        found[..., REGION] = torch.from_numpy(move_to_first(found[..., REGION].double().cpu().numpy(), views, size))
        places = torch.arange(len(found) * self.most, device=found.device).view(len(found), -1, 1)
        found = torch.cat([found, places.to(found.dtype)], 2)
        joined = join_detections(found, views, size, candidates=CANDIDATES * self.most, threshold=SAME_OBJECT)
        kept = torch.cat(masks)[joined[0, :, -1].long()].to(joined.dtype) / 255
        joined[..., GRID] = found[0, 0, GRID]  # also where rows of zeros fill up
        return torch.cat([joined[..., : MASK.start], kept[None]], 2)

    def metric(self, source: Source | None = None) -> InstanceMetric:
        return InstanceMetric(self.classes, self.preprocessing.size, partial(self.decode, threshold=0.0), source)

    def name_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """``boxes`` (B, most, 4), ``scores`` and ``labels`` (B, most), and ``masks`` (B, most, r, c) uint8, 255 times the
        probability.
        """
        found = self.detect(outputs)
        return {**split_outputs(found[..., :6]), "masks": self._split_masks(found)}

    def _split_masks(self, found: Tensor) -> Tensor:
        return to_bytes(found[..., MASK]).unflatten(2, tuple(map(int, found[0, 0, GRID].tolist())))

    def find_equal(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[bool]:
        """As of `Detector`, where the masks of the same objects also have an IoU of at least `SAME_MASK`."""
        equal = super().find_equal(expected, given)
        found, others = join_outputs(expected), join_outputs(given)
        for image, (one, other) in enumerate(zip(found, others)):
            shown = one[:, 4] >= self.threshold
            _, partners = find_partners(one[shown], other)
            masks, theirs = expected["masks"][image, shown] > MIDDLE, given["masks"][image, partners] > MIDDLE
            shared, union = ((masks & theirs).sum((1, 2)), (masks | theirs).sum((1, 2)))
            equal[image] = equal[image] and bool((shared >= SAME_MASK * union).all())
        return equal

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return self.add_masks(super().read_graph(outputs), outputs["masks"].float() / 255)


def to_bytes(shares: Tensor) -> Tensor:
    """Returns probabilities as numbers from 0 to 255."""
    return (255 * shares).round().to(torch.uint8)


def paste_mask(
    shares: NDArray[np.float64], region: NDArray[np.float64], box: NDArray[np.float64], size: tuple[int, int]
) -> Rle:
    """Returns the pixels of a picture of ``size``, (H, W), that lie in a box and, interpolated bilinearly, in a mask.

    Args:
        shares: (r, c) probabilities.
        region: what they show, (left, top, right, bottom) in pixels of the picture, as is ``box``, which lies inside of it.
    """
    left, top, right, bottom = np.ceil(box - 0.5).astype(int).tolist()  # pixels whose centre is inside
    down = _interpolate(np.arange(top, bottom), region[1], region[3], shares.shape[0])  # (h, r)
    across = _interpolate(np.arange(left, right), region[0], region[2], shares.shape[1])  # (w, c)
    return Rle.of_patch(down @ shares.astype(np.float32) @ across.T >= LIKELY, (left, top), size)


def _interpolate(pixels: NDArray[np.int64], begin: float, end: float, cells: int) -> NDArray[np.float32]:
    """Returns the weight of each of the cells from ``begin`` to ``end`` in the centres of pixels, linear: (n, cells)."""
    places = ((pixels + 0.5 - begin) / (end - begin) * cells - 0.5).clip(0, cells - 1)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(cells)), 0).astype(np.float32)
