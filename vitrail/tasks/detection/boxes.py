"""Boxes: overlaps, and the removal of duplicates.

B images, M and N boxes, P candidates. A box is (left, top, right, bottom) in pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-9  # lower bound of an area that is divided by


def box_areas(boxes: Tensor) -> Tensor:
    """(..., 4) to (...); 0 for a box without inside."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def box_ious(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of two boxes each, (..., 4) and (..., 4), which are broadcast, to (...)."""
    shared, union = _overlap(one, other)
    return shared / union


def box_gious(one: Tensor, other: Tensor) -> Tensor:
    """Generalised intersection over union (Rezatofighi et al. 2019): less the share of the smallest enclosing box that neither
    covers, so that boxes that are apart have a gradient. In (-1, 1]; shapes as in `box_ious`.
    """
    shared, union = _overlap(one, other)
    low, high = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    hull = (high - low).prod(-1).clamp(min=SMALLEST)
    return shared / union - (hull - union) / hull


def _overlap(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Areas of the intersection and the union."""
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared, (box_areas(one) + box_areas(other) - shared).clamp(min=SMALLEST)


def suppress_duplicates(boxes: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Fast NMS (YOLACT, Bolya et al. 2019, section 5): which boxes no better one of the same class overlaps.

    Unlike in `suppress_greedily`, a box that is removed removes others too, so what is kept is a subset of what that keeps. It
    needs no loop, and shapes do not depend on values: a graph of it can be exported.

    Args:
        boxes: (B, P, 4), the best first.
        labels: (B, P) indices of classes.
        threshold: intersection over union above which two boxes of a class are the same object.

    Returns:
        (B, P) bool, True for boxes to keep.
    """
    overlaps = box_ious(boxes[:, :, None], boxes[:, None])  # (B, P, P)
    same = labels[:, :, None] == labels[:, None]
    return (overlaps * same).triu(1).amax(1) <= threshold


def suppress_greedily(boxes: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """The usual non-maximum suppression of one image, (P, 4) and (P,) to (P,) bool: a box that is removed removes no other."""
    overlaps, kept = box_ious(boxes[:, None], boxes[None]), torch.ones(len(boxes), dtype=torch.bool)
    for place in range(len(boxes)):
        better = kept[:place] & (labels[:place] == labels[place])
        kept[place] = not (overlaps[:place, place][better] > threshold).any()
    return kept
