"""The detections of one picture from those in several inputs that show it.

V inputs, D detections of one at most. A detection is (left, top, right, bottom, score, label).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.windows import OVERLAP
from vitrail.tasks.detection.boxes import suppress_duplicates

NEAR = 4.0  # pixels of the input from a border at which an object counts as cut by it


def join_detections(
    found: Tensor, views: Frames, size: tuple[int, int], *, candidates: int, threshold: float
) -> Tensor:
    """The best detections of the picture, (1, D, 6), with boxes in pixels of the first input, which shows it whole.

    A window answers only for the objects that certainly lie inside of it or of another one: those up to the size that windows
    have in common, unless its border cuts them. Larger objects are those that are found on the whole picture.

    Args:
        found: (V, D, 6), boxes in pixels of each input; a score of 0 is filling.
        views: what the inputs show of the picture.
        size: (height, width) of an input.
        candidates: the best detections among which duplicates are removed.
        threshold: intersection over union above which two boxes of a class are the same object.
    """
    numbers = found.double().cpu().numpy()
    boxes = numbers[..., :4]
    is_left_out = is_cut(boxes, views, size) | is_large(boxes, size)
    is_left_out[0] = False
    joined = numbers.copy()
    joined[1:, :, :4] = _move_to_first(boxes, views, size)[1:]
    joined[..., 4] *= ~is_left_out
    joined = joined.reshape(-1, 6)
    best = torch.from_numpy(joined[np.argsort(-joined[:, 4], kind="stable")[:candidates]])
    is_kept = suppress_duplicates(best[None, :, :4], best[None, :, 5], threshold)[0] & (best[:, 4] > 0)
    kept = best[is_kept][: found.shape[1]]
    return F.pad(kept.float(), (0, 0, 0, found.shape[1] - len(kept)))[None]


def is_cut(boxes: NDArray[np.float64], views: Frames, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether boxes (V, D, 4) in pixels of the inputs end at a border that lies inside of the picture: (V, D)."""
    whole = views.crops[0].reshape(2, 2).clip(0, views.pictures[0, ::-1])
    shown = views.crops.reshape(-1, 2, 2)
    is_inner = np.concatenate([shown[:, 0] > whole[0] + 1, shown[:, 1] < whole[1] - 1], 1)  # (V, 4)
    is_near = np.concatenate([boxes[..., :2] <= NEAR, boxes[..., 2:] >= np.array(size[::-1]) - NEAR], 2)  # (V, D, 4)
    return np.any(is_near & is_inner[:, None], axis=2)


def is_large(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether boxes (V, D, 4) in pixels of the inputs are larger than what two windows have in common: (V, D)."""
    return np.any(boxes[..., 2:] - boxes[..., :2] > OVERLAP * np.array(size[::-1]), axis=2)


def _move_to_first(boxes: NDArray[np.float64], views: Frames, size: tuple[int, int]) -> NDArray[np.float64]:
    """Boxes (V, D, 4) in pixels of their inputs as boxes in pixels of the first one."""
    placed = views.move(boxes.reshape(len(boxes), -1, 2), size)  # in pixels of the picture
    corner, end = views.crops[0].reshape(2, 2)
    return ((placed - corner) / (end - corner) * size[::-1]).reshape(boxes.shape)
