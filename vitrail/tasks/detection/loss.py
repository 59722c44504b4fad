"""What the cells of a detector learn: targets that follow the pixels, their assignment to cells, and the losses.

B images, M objects at most, N cells, K classes. Boxes are (left, top, right, bottom) in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment.placement import Placement
from vitrail.data.sources.annotations import Objects
from vitrail.models.layers import gather_rows
from vitrail.tasks.dense.task import PlacedTargets, check_placed
from vitrail.tasks.detection.boxes import box_gious, box_ious

MIN_SHARE, MIN_AREA = 0.25, 4.0  # of an object that a crop must show: share of its box, square pixels
ROWS = 16  # the rows of a batch's targets are a multiple of this, so that a compiled step sees few shapes
CELLS = 10  # that each object takes, at most
SCORE_POWER, OVERLAP_POWER = 0.5, 6.0  # of the alignment of a cell with an object
SMALLEST = 1e-30  # lower bound of an alignment that is divided by; that of an overlap of 1 % is 1e-13


@dataclass(frozen=True)
class BoxTargets(PlacedTargets):
    """Rows of label, whether it is a crowd, and the box; a label of -1 fills up."""

    annotations: type[Objects] = Objects
    needs: str = "boxes"

    def collate(self, rows: Objects) -> Tensor:
        """Collates the objects of B images to (B, M, 7), with M a multiple of 16; the last column is the area of the object."""
        counts = rows.lengths()
        made = np.zeros((len(counts), ROWS * max(math.ceil(counts.max(initial=0) / ROWS), 1), 7), np.float32)
        made[..., 0] = -1
        images = np.arange(len(counts)).repeat(counts)
        places = np.arange(len(images)) - (rows.ends - counts).repeat(counts)
        made[images, places] = np.column_stack([rows.labels, rows.crowd, rows.boxes, rows.areas])
        return torch.from_numpy(made)

    def move(self, targets: Tensor, placement: Placement) -> tuple[Tensor, Tensor]:
        """Returns the objects (B, M, 6) in pixels of the images, and the weight (B,) of each image: images per object of all.

        The box of an object that was turned is that of its corners. Objects of which an image shows less than a quarter, or 4
        square pixels, are left out; crowds stay however little is shown. The column of areas is dropped.
        """
        check_placed(placement)
        moved = targets.cpu().double().numpy()
        corners = moved[..., [2, 3, 4, 3, 4, 5, 2, 5]].reshape(len(moved), -1, 2)
        corners = placement.move(corners).reshape(*moved.shape[:2], 4, 2)
        boxes = np.concatenate([corners.min(2), corners.max(2)], -1)  # (B, M, 4)
        clipped = boxes.clip(0, [*placement.size[::-1]] * 2)
        before, area = (np.prod(each[..., 2:] - each[..., :2], -1) for each in (boxes, clipped))
        is_crowd = moved[..., 1] > 0
        is_shown = (area >= MIN_AREA) & ((area >= MIN_SHARE * before) | is_crowd)
        labels = np.where(is_shown, moved[..., 0], -1)
        objects = np.concatenate([labels[..., None], moved[..., 1:2], clipped], -1)
        weight = torch.full((len(moved),), len(moved) / max(int(((labels >= 0) & ~is_crowd).sum()), 1))
        return torch.from_numpy(objects).float(), weight


class Assignment(NamedTuple):
    """What each cell learns: the index of its object (B, N), -1 for none, and the score that it should give, in [0, 1] (B, N)."""

    objects: Tensor
    scores: Tensor


@torch.no_grad()
def assign(found: Tensor, scores: Tensor, centres: Tensor, boxes: Tensor, labels: Tensor, valid: Tensor) -> Assignment:
    """Assigns each object to the cells that find it best so far.

    The alignment of a cell with an object is p^0.5 IoU^6, for the probability p that it gives to the object's class and the
    overlap of its box. An object takes the 10 best of the cells whose centre it covers, or if it covers none, the nearest one:
    objects smaller than a stride would not be learned otherwise. A cell that several objects take goes to the one that its
    box overlaps most. The score to learn is the alignment, scaled so that the best cell of each object has the largest overlap
    among its cells.

    Args:
        found: (B, N, 4) boxes of the cells, in fp32 as all others.
        scores: (B, N, K) probabilities.
        centres: (B, N, 2) centres of the cells.
        boxes: (B, M, 4) of the objects.
        labels: (B, M) their classes; of any value where not ``valid``.
        valid: (B, M) bool.
    """
    overlaps = box_ious(found[:, None], boxes[:, :, None])  # (B, M, N)
    classes = labels.long().where(valid, 0)[..., None].expand(-1, -1, found.shape[1])
    aligned = scores.mT.gather(1, classes) ** SCORE_POWER * overlaps**OVERLAP_POWER  # (B, M, N)
    open_to = _find_open_cells(centres, boxes) & valid[..., None]

    best = aligned.where(open_to, -1.0).topk(min(CELLS, found.shape[1]), dim=2).indices
    taken = torch.zeros_like(open_to).scatter_(2, best, True) & open_to
    chosen = overlaps.where(taken, -1.0).argmax(1, keepdim=True)  # (B, 1, N)
    taken = torch.zeros_like(taken).scatter_(1, chosen, True) & taken

    aligned, overlaps = aligned.where(taken, 0.0), overlaps.where(taken, 0.0)
    strength = overlaps.amax(2, keepdim=True) / aligned.amax(2, keepdim=True).clamp(min=SMALLEST)  # (B, M, 1)
    is_taken = taken.any(1)
    return Assignment(chosen[:, 0].where(is_taken, -1), (aligned * strength).amax(1).clamp(max=1.0))


def _find_open_cells(centres: Tensor, boxes: Tensor) -> Tensor:
    """Which cells each object may take, (B, M, N): those whose centre lies in its box, or else the nearest."""
    x, y = centres[:, None].unbind(-1)  # each (B, 1, N)
    left, top, right, bottom = boxes[..., None].unbind(2)  # each (B, M, 1)
    covered = (x > left) & (x < right) & (y > top) & (y < bottom)
    distances = (x - (left + right) / 2).square() + (y - (top + bottom) / 2).square()
    nearest = torch.zeros_like(covered).scatter_(2, distances.argmin(2, keepdim=True), True)
    return torch.where(covered.any(2, keepdim=True), covered, nearest)


def find_ignored(centres: Tensor, boxes: Tensor, crowd: Tensor) -> Tensor:
    """Which cells (B, N) have their centre in a box (B, M, 4) that ``crowd`` (B, M) marks: what they show may be an object."""
    x, y = centres[:, None].unbind(-1)
    left, top, right, bottom = boxes[..., None].unbind(2)
    covered = (x > left) & (x < right) & (y > top) & (y < bottom) & crowd[..., None]
    return covered.any(1)


def sum_losses(outputs: Tensor, objects: Tensor, is_ignored: Tensor | None = None) -> tuple[Tensor, Tensor, Assignment]:
    """The losses of classes and boxes, each the sum over the cells of an image, (B,), in fp32 at least, and what cells learn.

    ``outputs`` are (B, N, 7 + K) of a `Detector`, ``objects`` (B, M, 6) as `BoxTargets.move` returns them. Classes: binary
    cross-entropy with the scores that `assign` gives; no class of a cell counts that is ignored (B, N), by default because
    its centre lies in a crowd, unless it has an object. Boxes: 1 - GIoU with the object of the cell, times its score.
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    found, centres, logits = outputs[..., :4], outputs[..., 4:6], outputs[..., 7:]
    labels, crowd, boxes = objects[..., 0], objects[..., 1] > 0, objects[..., 2:].to(outputs.dtype)
    is_object = (labels >= 0) & ~crowd
    assigned = assign(found, logits.sigmoid(), centres, boxes, labels, is_object)
    is_taken, objects_of = assigned.objects >= 0, assigned.objects.clamp(min=0)

    own = labels.long().clamp(min=0).gather(1, objects_of)  # (B, N)
    wanted = torch.zeros_like(logits).scatter_(2, own[..., None], assigned.scores[..., None])
    if is_ignored is None:
        is_ignored = find_ignored(centres, boxes, (labels >= 0) & crowd)
    is_counted = is_taken | ~is_ignored
    classes = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(2) * is_counted
    apart = 1 - box_gious(found, gather_rows(boxes, objects_of))
    return classes.sum(1), (apart * assigned.scores).sum(1), assigned
