"""Which cells of a detector learn which object: task-aligned assignment (TOOD, Feng et al. 2021, section 3.2).

B images, M objects at most, N cells, K classes. There are no parameters and no gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.tasks.detection.boxes import box_ious

CELLS = 10  # that each object takes, at most
SCORE_POWER, OVERLAP_POWER = 0.5, 6.0  # of the alignment of a cell with an object
SMALLEST = 1e-30  # lower bound of an alignment that is divided by; that of an overlap of 1 % is 1e-13


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
