"""Instance segmentation by queries in a plain ViT (EoMT).

B images, Q queries, K classes, D detections, r x c cells of a mask.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.errors import ConfigError
from vitrail.models.layers import gather_rows
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.detection.boxes import split_outputs
from vitrail.tasks.instances.answer import Instances
from vitrail.tasks.instances.task import GRID, REGION, InstanceTask, to_bytes
from vitrail.tasks.queries.task import QueryTask


class QueryInstances(QueryTask, InstanceTask):
    """A `QueryTask` that answers with objects: the best pairs of query and class, whose score is the probability of the class
    times the mean probability within the mask (Mask2Former, Cheng et al. 2022). Duplicates are not removed.

    Args:
        most: detections of a picture, at most; no more than there are pairs.
        threshold: as `ObjectTask` has it.
        arguments: as `QueryTask` has them.
    """

    options: ClassVar[tuple[str, ...]] = (*QueryTask.options, "most", "threshold")

    def __init__(self, *arguments: Any, most: int = 100, threshold: float = 0.3, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.most, self.threshold = min(most, self.queries * len(self.classes)), threshold

    def detect(self, outputs: Tensor) -> Tensor:
        """As of `ObjectTask`, (B, most, 12 + S); boxes are those of the cells of the masks."""
        if self.is_detected(outputs):
            return outputs
        classes, masks = self.unpack(outputs)
        return self.add_masks(*self.select(classes[:, -1], masks[:, -1])[:2])

    def is_detected(self, outputs: Tensor) -> bool:
        return outputs.ndim == 3  # logits have four dimensions

    def select(self, classes: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns detections (B, most, 6), the probabilities of their masks (B, most, r, c) and their queries (B, most) from
        logits (B, Q, K + 1) and (B, Q, r, c).
        """
        shares = masks.sigmoid()
        is_inside = masks > 0
        area = is_inside.sum((2, 3))  # (B, Q)
        quality = (shares * is_inside).sum((2, 3)) / area.clamp(min=1)
        scores = classes.softmax(2)[..., :-1] * quality[..., None]  # (B, Q, K)
        scores, places = scores.flatten(1).topk(self.most, dim=1)
        rows, labels = places // len(self.classes), places % len(self.classes)
        left, right = _find_ends(is_inside.any(2), self.cell[1])
        top, bottom = _find_ends(is_inside.any(3), self.cell[0])
        boxes = gather_rows(torch.stack([left, top, right, bottom], 2), rows)  # (B, most, 4)
        found = torch.cat([boxes, scores[..., None], labels[..., None].to(scores.dtype)], 2)
        return found, gather_rows(shares.flatten(2), rows).unflatten(2, shares.shape[2:]), rows

    def answer(self, found: NDArray[np.float64], size: tuple[int, int]) -> Instances:
        """As of `InstanceTask`, with the boxes of the masks' pixels, which reach at most a cell beyond those of their cells."""
        found = found.copy()
        region, grid = found[:, REGION], found[:, GRID]
        cell = (region[:, 2:] - region[:, :2]) / grid[:, ::-1]
        limits = np.tile([size[1], size[0]], 2).astype(float)
        found[:, :4] = np.clip(found[:, :4] + np.concatenate([-cell, cell], 1), 0, limits)
        answer = super().answer(found, size)
        boxes = np.array([mask.box for mask in answer.masks], np.float32).reshape(-1, 4)
        return Instances(boxes, answer.scores, answer.labels, size, self.classes, masks=answer.masks)

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        classes, masks = self.own["head"](self.backbone, images)
        found, masks, _ = self.select(classes[:, 0], masks[:, 0])
        return {**split_outputs(found), "masks": to_bytes(masks)}

    def find_subject(
        self, outputs: Tensor, frames: Frames, *, target: str | None = None, box: int | None = None
    ) -> Subject:
        if self.is_detected(outputs):
            what = "an exported segmenter gives its best masks only, and no logits of queries to explain"
            raise ConfigError(what, "explain the model that was exported")
        classes, masks = (each[:, -1] for each in self.unpack(outputs))
        found, masks, rows = self.select(classes, masks)
        placed = self.place_in_pictures(self.add_masks(found, masks), frames)[0]
        row = self.choose_object(placed, target, box)
        query, label = int(rows[0, row]), int(placed[row, 5])
        return self.describe_subject(
            placed[row],
            lambda outputs: self.unpack(outputs)[0][:, -1, query, label],
            lambda outputs: self.unpack(outputs)[0][:, -1, query].softmax(1)[:, label],
        )


def _find_ends(is_inside: Tensor, cell: float) -> tuple[Tensor, Tensor]:
    """Returns where cells along an axis (B, Q, n) begin and end in pixels, (B, Q) each; without any the begin is the larger."""
    places = torch.arange(is_inside.shape[2], device=is_inside.device)
    begin = torch.where(is_inside, places, is_inside.shape[2]).amin(2)
    end = torch.where(is_inside, places + 1, 0).amax(2)
    return begin * cell, end * cell
