"""Instance segmentation: a detector whose cells also give the coefficients of a mask.

B images, M objects at most, N cells of all levels, K classes, P prototypes, r x c the grid of masks, S = r c, D detections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import OutlinedObjects
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.images.rle import Rle
from vitrail.models.dense import Prototypes
from vitrail.models.layers import gather_rows
from vitrail.tasks.answer import AnswerFiles
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.dense.task import read_number
from vitrail.tasks.detection.boxes import detection_ious, join_detections, join_outputs, move_to_first, split_outputs
from vitrail.tasks.detection.detector import BOX_WEIGHT, CANDIDATES, CELLS_PER_OBJECT, SAME_OBJECT, Detector
from vitrail.tasks.detection.loss import sum_losses
from vitrail.tasks.detection.matching import Matches
from vitrail.tasks.detection.metric import match_answer
from vitrail.tasks.instances.answer import FORMATS, Instances
from vitrail.tasks.instances.loss import OutlineTargets, find_uncounted, sum_mask_losses
from vitrail.tasks.instances.metric import InstanceMetric

MASK_WEIGHT = 4.0  # of the loss of masks, in that of classes
MANY_CLASSES = 20  # from which on there are more prototypes
LIKELY = 0.5  # probability from which a pixel belongs to a mask
MIDDLE = 127  # the largest value of a cell of an exported mask that does not belong to it
SAME_MASK = 0.95  # IoU of two masks of an object from which they are the same
# columns of a detection: the region that its mask shows, (left, top, right, bottom), rows and columns of the mask, its cells
REGION, GRID, MASK = slice(6, 10), slice(10, 12), slice(12, None)


class InstanceSegmenter(Detector):
    """A detector that also answers with the mask of each object: a sum of prototypes, maps that all objects of an image share,
    with coefficients of its own (YOLACT, Bolya et al. 2019), within its box.

    Calling it gives the cells of a `Detector` with P more columns, the coefficients, and behind the cells further rows with the
    numbers of the prototypes (B, P, r, c), in their order, filled up with zeros; the last row has r and c. Detections are
    (B, D, 12 + S): box, score, label, the region that the mask shows, r and c, and the probability of each of its cells.

    Args:
        prototypes: P; by default 24, and 32 from 20 classes on.
        backbone, classes, preprocessing, levels, head_width, most, threshold, maps, provenance: as `Detector` has them.

    Raises:
        ConfigError: as `Detector` has it.
    """

    name = "instances"
    reply: ClassVar[Mapping[str, Any]] = {
        "width": int,
        "height": int,
        "objects": list[dict[str, str | float | list[float] | dict[str, str | list[int] | list[list[float]]]]],
    }
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = FORMATS
    targets = OutlineTargets()
    graph_outputs = (*Detector.graph_outputs, "masks")
    options = (*Detector.options, "prototypes")

    def __init__(
        self, backbone: Any, classes: Sequence[str], *arguments: Any, prototypes: int | None = None, **named: Any
    ) -> None:
        if prototypes is not None and prototypes < 1:
            raise ConfigError(f"prototypes is {prototypes}", "prototypes = a number above 0, e.g. 24")
        self.coefficients = self.prototypes = prototypes or (24 if len(classes) < MANY_CLASSES else 32)
        super().__init__(backbone, classes, *arguments, **named)
        self.own["prototypes"] = Prototypes(self.head_width, self.prototypes)

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        prototypes = read_number("prototypes", description["prototypes"], 1, 1024, whole=True)
        return {**super().read_description(description), "prototypes": prototypes}

    @property
    def cell(self) -> tuple[float, float]:
        """Height and width in pixels of a cell of the grid of masks."""
        height, width = self.strides[0]
        return height / 2, width / 2

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Returns rows and columns of the grid of masks for an input of ``size``, (h, w)."""
        return 2 * math.ceil(size[0] / (2 * self.cell[0])), 2 * math.ceil(size[1] / (2 * self.cell[1]))

    def answer_maps(self, maps: list[Tensor], images: Tensor) -> Tensor:
        cells, prototypes = self.find_cells(maps)
        assert tuple(prototypes.shape[2:]) == self.grid(images.shape[2:]), "the grid of masks of this size"
        flat, last = prototypes.flatten(1), torch.zeros_like(cells[:, :1])
        last[..., 0], last[..., 1] = prototypes.shape[2:]
        flat = F.pad(flat, (0, -flat.shape[1] % cells.shape[2]))
        return torch.cat([cells, flat.unflatten(1, (-1, cells.shape[2])), last], 1)

    def find_cells(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns cells (B, N, 7 + K + P) and prototypes (B, P, r, c) from `Backbone.dense_maps`."""
        levels = self.own["neck"](maps)
        return self.own["head"](levels), self.own["prototypes"](levels[0])

    def split(self, outputs: Tensor, grid: tuple[int, int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns cells (B, N, 7 + K), coefficients (B, N, P) and prototypes (B, P, r, c) of outputs.

        ``grid`` is r and c, which are read from the outputs unless they are given.
        """
        shape = self.prototypes, *(map(int, outputs[0, -1, :2].tolist()) if grid is None else grid)
        end = outputs.shape[1] - 1
        first = end - math.ceil(math.prod(shape) / outputs.shape[2])
        cells, flat = outputs[:, :first], outputs[:, first:end].flatten(1)[:, : math.prod(shape)]
        return cells[..., : -self.prototypes], cells[..., -self.prototypes :], flat.unflatten(1, shape)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...], **options: Any) -> Tensor:
        """As that of `Detector`, with 4 times the loss of masks; see `sum_mask_losses`."""
        objects, weight, numbers = targets
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        cells, coefficients, prototypes = self.split(outputs, self.grid(numbers.shape[1:]))
        uncounted = find_uncounted(cells[..., 4:6], numbers)
        classes, boxes, assigned = sum_losses(cells, objects, uncounted)
        masks = sum_mask_losses(
            coefficients, prototypes, assigned, objects[..., 2:].to(cells.dtype), numbers, self.cell
        )
        return (weight * (classes + BOX_WEIGHT * boxes + MASK_WEIGHT * masks)).mean() / CELLS_PER_OBJECT

    def detect(self, outputs: Tensor) -> Tensor:
        """The best detections of each image with their masks, (B, most, 12 + S); see `Detector.detect`."""
        if self._is_detected(outputs):
            return outputs
        cells, coefficients, prototypes = self.split(outputs)
        found, chosen = self.select(cells)
        masks = (gather_rows(coefficients, chosen) @ prototypes.flatten(2)).sigmoid()
        return self._add_masks(found, masks.unflatten(2, prototypes.shape[2:]))

    def _is_detected(self, outputs: Tensor) -> bool:
        if outputs.shape[1] != self.most or outputs.shape[2] <= MASK.start:
            return False
        return outputs.shape[2] == MASK.start + math.prod(outputs[0, 0, GRID].tolist())

    def _add_masks(self, found: Tensor, masks: Tensor) -> Tensor:
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

    def find_subject(
        self, outputs: Tensor, frames: Frames, *, target: str | None = None, box: int | None = None
    ) -> Subject:
        cells = outputs[..., :6] if self._is_detected(outputs) else self.split(outputs)[0]
        return super().find_subject(cells, frames, target=target, box=box)

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """As of `Detector`, and ``masks`` (B, most, r, c) uint8, 255 times the probability, over the model's input."""
        found = self.detect(outputs)
        return {**super().reply_arrays(found, frames), "masks": self._split_masks(found).cpu().numpy()}

    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        size, parts, masks = self.preprocessing.size, [], []
        for each in map(self.detect, outputs):
            parts.append(each[..., : MASK.start])
            masks.append(_to_bytes(each[..., MASK]).flatten(0, 1))
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

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        cells, prototypes = self.find_cells(self.backbone.dense_maps(images, self.dense_layers))
        found, chosen = self.select(cells)
        masks = gather_rows(cells, chosen)[..., -self.prototypes :] @ prototypes.flatten(2)
        return {**split_outputs(found), "masks": _to_bytes(masks.sigmoid()).unflatten(2, prototypes.shape[2:])}

    def name_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """``boxes`` (B, most, 4), ``scores`` and ``labels`` (B, most), and ``masks`` (B, most, r, c) uint8, 255 times the
        probability.
        """
        found = self.detect(outputs)
        return {**split_outputs(found[..., :6]), "masks": self._split_masks(found)}

    def _split_masks(self, found: Tensor) -> Tensor:
        return _to_bytes(found[..., MASK]).unflatten(2, tuple(map(int, found[0, 0, GRID].tolist())))

    def find_equal(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[bool]:
        """As of `Detector`, where the masks of the same objects also have an IoU of at least `SAME_MASK`."""
        equal = super().find_equal(expected, given)
        found, others = join_outputs(expected), join_outputs(given)
        for image, (one, other) in enumerate(zip(found, others)):
            shown = one[:, 4] >= self.threshold
            partners = detection_ious(one[shown], other).argmax(1)
            masks, theirs = expected["masks"][image, shown] > MIDDLE, given["masks"][image, partners] > MIDDLE
            shared, union = ((masks & theirs).sum((1, 2)), (masks | theirs).sum((1, 2)))
            equal[image] = equal[image] and bool((shared >= SAME_MASK * union).all())
        return equal

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return self._add_masks(super().read_graph(outputs), outputs["masks"].float() / 255)


def _to_bytes(shares: Tensor) -> Tensor:
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
