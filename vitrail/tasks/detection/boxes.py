"""Boxes and detections as tensors: overlaps, duplicates, those of several windows joined, and those of two graphs compared.

B images, M and N boxes, P candidates, V windows, D or n detections of one image. A box is (left, top, right, bottom) in pixels, a
detection (left, top, right, bottom, score, label).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.windows import OVERLAP

SMALLEST = 1e-9  # lower bound of an area that is divided by
NEAR = 4.0  # pixels of the input from a border at which an object counts as cut by it
SAME_BOX = 0.99  # overlap from which two boxes of a class are one detection
SAME_SCORE = 1e-3  # difference of its scores
ALONE = 0.01  # share of detections that may have no counterpart
LAST_PLACES = 1.01  # scores up to this multiple of the last may have fallen off the other list


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
    """Fast NMS (YOLACT, Bolya et al. 2019, section 5): which boxes no better one of the same class overlaps, (B, P) bool.

    Unlike in the usual, greedy NMS, a box that is removed removes others too, so what is kept is a subset of what that keeps. It
    needs no loop, and shapes do not depend on values: a graph of it can be exported.

    Args:
        boxes: (B, P, 4), the best first.
        labels: (B, P) indices of classes.
        threshold: intersection over union above which two boxes of a class are the same object.
    """
    overlaps = box_ious(boxes[:, :, None], boxes[:, None])  # (B, P, P)
    same = labels[:, :, None] == labels[:, None]
    return (overlaps * same).triu(1).amax(1) <= threshold


def join_detections(
    found: Tensor, views: Frames, size: tuple[int, int], *, candidates: int, threshold: float
) -> Tensor:
    """The best detections of the picture, (1, D, C), with boxes in pixels of the first input, which shows it whole.

    A window answers only for the objects that certainly lie inside of it or of another one: those up to the size that windows
    have in common, unless its border cuts them. Larger objects are those that are found on the whole picture.

    Args:
        found: (V, D, C), boxes in pixels of each input, score, label and columns that stay as they are; a score of 0 is filling.
        views: what the inputs, of ``size`` (height, width), show of the picture.
        candidates: the best detections among which duplicates are removed, as `suppress_duplicates` does.
    """
    numbers = found.double().cpu().numpy()
    boxes = numbers[..., :4]
    # larger than what two windows have in common
    is_large = np.any(boxes[..., 2:] - boxes[..., :2] > OVERLAP * np.array(size[::-1]), axis=2)  # (V, D)
    is_left_out = is_cut(boxes, views, size) | is_large
    is_left_out[0] = False
    joined = numbers.copy()
    joined[..., :4] = move_to_first(boxes, views, size)
    joined[..., 4] *= ~is_left_out
    joined = joined.reshape(-1, found.shape[2])
    best = torch.from_numpy(joined[np.argsort(-joined[:, 4], kind="stable")[:candidates]])
    is_kept = suppress_duplicates(best[None, :, :4], best[None, :, 5], threshold)[0] & (best[:, 4] > 0)
    kept = best[is_kept][: found.shape[1]]
    return F.pad(kept.float(), (0, 0, 0, found.shape[1] - len(kept)))[None]


def move_to_first(boxes: NDArray[np.float64], views: Frames, size: tuple[int, int]) -> NDArray[np.float64]:
    """Boxes (V, D, 4) in pixels of the inputs as boxes in pixels of the first input."""
    placed = views.move(boxes.reshape(len(boxes), -1, 2), size)  # in pixels of the picture
    corner, end = views.crops[0].reshape(2, 2)
    moved = ((placed - corner) / (end - corner) * size[::-1]).reshape(boxes.shape)
    moved[0] = boxes[0]  # to the bit
    return moved


def is_cut(boxes: NDArray[np.float64], views: Frames, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether boxes (V, D, 4) in pixels of the inputs end at a border that lies inside of the picture: (V, D)."""
    whole = views.crops[0].reshape(2, 2).clip(0, views.pictures[0, ::-1])
    shown = views.crops.reshape(-1, 2, 2)
    is_inner = np.concatenate([shown[:, 0] > whole[0] + 1, shown[:, 1] < whole[1] - 1], 1)  # (V, 4)
    is_near = np.concatenate([boxes[..., :2] <= NEAR, boxes[..., 2:] >= np.array(size[::-1]) - NEAR], 2)  # (V, D, 4)
    return np.any(is_near & is_inner[:, None], axis=2)


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
            overlap, partner = find_partners(chosen, other)
            apart = (chosen - other[partner]).abs()[overlap >= SAME_BOX]  # (n, 6)
            apart[:, :4] /= scale
            worst = max(worst, float(apart[:, :5].max())) if len(apart) else worst
            alone, total = alone + len(chosen) - len(apart), total + len(chosen)
    share = alone / max(total, 1)
    return max(worst, share) if share > ALONE else worst


def find_partners(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the IoU with and the place of the detection among others that is the same as each of (n, 6), if there is one: of
    those whose boxes coincide that of the nearest score, else the one that overlaps most.
    """
    overlaps = detection_ious(one, other)
    apart = (one[:, None, 4] - other[None, :, 4]).abs()
    partners = (overlaps + (2 - apart) * (overlaps >= SAME_BOX)).argmax(1)
    return overlaps.gather(1, partners[:, None])[:, 0], partners


def covers(one: Tensor, other: Tensor, threshold: float) -> bool:
    """Whether each detection (n, 6) that reaches the threshold is among the others."""
    one = one[one[:, 4] >= threshold]
    is_near = (one[:, None, 4] - other[None, :, 4]).abs() <= SAME_SCORE
    return bool((is_near & (detection_ious(one, other) >= SAME_BOX)).any(1).all())


def detection_ious(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of detections (n, 6) and (m, 6), 0 for those of different classes: (n, m)."""
    same = one[:, None, 5] == other[None, :, 5]
    return box_ious(one[:, None, :4], other[None, :, :4]) * same
