"""Instance segmentation: a detector whose cells also give the coefficients of a mask.

B images, M objects at most, N cells of all levels, K classes, P prototypes, r x c the grid of masks, S = r c, D detections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.errors import ConfigError
from vitrail.models.dense import Prototypes
from vitrail.models.layers import gather_rows
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.dense.task import read_number
from vitrail.tasks.detection.boxes import split_outputs
from vitrail.tasks.detection.detector import BOX_WEIGHT, CELLS_PER_OBJECT, Detector
from vitrail.tasks.detection.loss import sum_losses
from vitrail.tasks.instances.loss import find_uncounted, sum_mask_losses
from vitrail.tasks.instances.task import InstanceTask, to_bytes

MASK_WEIGHT = 4.0  # of the loss of masks, in that of classes
MANY_CLASSES = 20  # from which on there are more prototypes


class InstanceSegmenter(InstanceTask, Detector):
    """A detector that also answers with the mask of each object: a sum of prototypes, maps that all objects of an image share,
    with coefficients of its own (YOLACT, Bolya et al. 2019), within its box.

    Calling it gives the cells of a `Detector` with P more columns, the coefficients, and behind the cells further rows with the
    numbers of the prototypes (B, P, r, c), in their order, filled up with zeros; the last row has r and c.

    Args:
        prototypes: P; by default 24, and 32 from 20 classes on.
        backbone, classes, preprocessing, levels, head_width, most, threshold, maps, provenance: as `Detector` has them.

    Raises:
        ConfigError: as `Detector` has it.
    """

    name = "instances"
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
        if self.is_detected(outputs):
            return outputs
        cells, coefficients, prototypes = self.split(outputs)
        found, chosen = self.select(cells)
        masks = (gather_rows(coefficients, chosen) @ prototypes.flatten(2)).sigmoid()
        return self.add_masks(found, masks.unflatten(2, prototypes.shape[2:]))

    def find_subject(
        self, outputs: Tensor, frames: Frames, *, target: str | None = None, box: int | None = None
    ) -> Subject:
        cells = outputs[..., :6] if self.is_detected(outputs) else self.split(outputs)[0]
        return super().find_subject(cells, frames, target=target, box=box)

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        cells, prototypes = self.find_cells(self.backbone.dense_maps(images, self.dense_layers))
        found, chosen = self.select(cells)
        masks = gather_rows(cells, chosen)[..., -self.prototypes :] @ prototypes.flatten(2)
        return {**split_outputs(found), "masks": to_bytes(masks.sigmoid()).unflatten(2, prototypes.shape[2:])}
