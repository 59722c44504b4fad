"""Comparing the detections of two graphs of one model, which may list nearly equal scores in another order.

B images, n detections. A detection is (left, top, right, bottom, score, label).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.tasks.detection.boxes import box_ious

SAME_BOX = 0.99  # overlap from which two boxes of a class are one detection
SAME_SCORE = 1e-3  # difference of its scores
ALONE = 0.01  # share of detections that may have no counterpart
LAST_PLACES = 1.01  # scores up to this multiple of the last may have fallen off the other list


def split_outputs(found: Tensor) -> dict[str, Tensor]:
    """Detections (B, n, 6) as the outputs of an exported graph."""
    return {"boxes": found[..., :4], "scores": found[..., 4], "labels": found[..., 5].long()}


def join_outputs(outputs: Mapping[str, Tensor]) -> Tensor:
    """The inverse of `split_outputs`."""
    boxes = outputs["boxes"]
    return torch.cat([boxes, outputs["scores"][..., None], outputs["labels"][..., None].to(boxes.dtype)], -1)


def compare_detections(expected: Tensor, given: Tensor) -> float:
    """The largest difference between detections (B, n, 6) that are the same: of scores, or of boxes as a share of the largest
    coordinate. Where more than 1 % of the detections have no counterpart it is at least their share: rounding alone decides of
    a few whether another one removes them as duplicates.
    """
    scale, worst, alone, total = expected[..., :4].abs().amax().clamp(min=1), 0.0, 0, 0
    for pair in zip(expected, given):
        last = max(float(each[-1, 4]) for each in pair)
        for one, other in (pair, pair[::-1]):
            chosen = one[one[:, 4] > LAST_PLACES * last]
            overlap, partner = _overlap(chosen, other).max(1)
            apart = (chosen - other[partner]).abs()[overlap >= SAME_BOX]  # (n, 6)
            apart[:, :4] /= scale
            worst = max(worst, float(apart[:, :5].max())) if len(apart) else worst
            alone, total = alone + len(chosen) - len(apart), total + len(chosen)
    share = alone / max(total, 1)
    return max(worst, share) if share > ALONE else worst


def covers(one: Tensor, other: Tensor, threshold: float) -> bool:
    """Whether each detection (n, 6) that reaches the threshold is among the others."""
    one = one[one[:, 4] >= threshold]
    is_near = (one[:, None, 4] - other[None, :, 4]).abs() <= SAME_SCORE
    return bool((is_near & (_overlap(one, other) >= SAME_BOX)).any(1).all())


def _overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of detections (n, 6) and (m, 6), 0 for those of different classes: (n, m)."""
    same = one[:, None, 5] == other[None, :, 5]
    return box_ious(one[:, None, :4], other[None, :, :4]) * same
