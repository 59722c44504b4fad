"""From logits at the size of the input to the classes of the pixels of a picture.

B images, V windows of a picture, K classes, h and w of the input, H and W of a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, product

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames

CELLS = 16_000_000  # logits of a picture in memory at a time


def label_pixels(outputs: Tensor, frames: Frames) -> Iterator[Tensor]:
    """The class of every pixel of every picture: uint8 (H, W) each, on the device of the logits.

    Logits are interpolated at the centres of the picture's pixels, bilinearly, as `torch.nn.functional.interpolate` does with
    ``align_corners=False``. Pixels that the input does not show get the classes of the border.

    Args:
        outputs: (B, K, h, w) logits of any precision; or what `label_windows` gave, (1, H, W) uint8, which is returned as it is.
        frames: the regions of the pictures that the input shows, larger than the picture where it was padded.
    """
    if outputs.dtype == torch.uint8:
        yield from outputs
        return
    for logits, crop, size in zip(outputs, frames.crops, frames.pictures.astype(int).tolist()):
        yield _label_part([(logits, crop)], (0, size[0]), (0, size[1]), size)


def label_windows(outputs: Iterable[Tensor], views: Frames) -> Tensor:
    """The class of every pixel of one picture, from the mean of the logits of all inputs that show it: uint8 (H, W).

    Logits are kept until those of the last input that shares pixels with them are there.

    Args:
        outputs: (b, K, h, w) logits of any precision, of some of the V inputs after others.
        views: the regions of the picture that the inputs show; the first one shows the whole.
    """
    height, width = views.pictures[0].astype(int).tolist()
    left, top, right, bottom = views.crops.T
    rows, columns = find_pixels(top, bottom, height), find_pixels(left, right, width)
    # parts of the picture, and which inputs show each
    parts = [
        (row, column, np.flatnonzero(_cover(rows, row) & _cover(columns, column)).tolist())
        for row, column in product(pairwise(np.unique(rows)), pairwise(np.unique(columns)))
    ]
    last = {view: max((shown[-1] for *_, shown in parts if view in shown), default=-1) for view in range(len(views))}
    drawn, kept = torch.empty(height, width, dtype=torch.uint8), dict[int, Tensor]()
    for view, logits in enumerate(chain.from_iterable(outputs)):
        kept[view] = logits.clone()  # without the rest of its batch
        for row, column, shown in parts:
            if shown[-1] == view:
                sampled = [(kept[each], views.crops[each]) for each in shown]
                drawn[slice(*row), slice(*column)] = _label_part(sampled, row, column, (height, width))
        kept = {each: logits for each, logits in kept.items() if last[each] > view}
    return drawn


def find_pixels(begins: NDArray[np.float64], ends: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """The first pixel along an axis whose centre lies in a region, and the one after its last: (V, 2).

    The outermost regions have all pixels up to the border of the picture.
    """
    begins = np.where(begins <= max(begins.min(), 0), 0, begins)
    ends = np.where(ends >= min(ends.max(), size), size, ends)
    return np.ceil(np.stack([begins, ends], 1) - 0.5).astype(np.int64)


def _cover(ranges: NDArray[np.int64], part: tuple[int, int]) -> NDArray[np.bool_]:
    return (ranges[:, 0] <= part[0]) & (part[1] <= ranges[:, 1])


def _label_part(
    shown: list[tuple[Tensor, NDArray[np.float64]]],
    row: tuple[int, int],
    column: tuple[int, int],
    size: tuple[int, int],
) -> Tensor:
    """The classes of the pixels of a part of a picture of ``size`` from all windows that show it, logits and regions."""
    strip = max(CELLS // (len(shown[0][0]) * (column[1] - column[0])), 1)
    parts = []
    for top in range(*row, strip):
        bottom = min(top + strip, row[1])
        total = sample_logits(*shown[0], (top, bottom), column, size)
        for window in shown[1:]:
            total += sample_logits(*window, (top, bottom), column, size)
        parts.append(total.argmax(0).to(torch.uint8))
    return torch.cat(parts)


def sample_logits(
    logits: Tensor, crop: NDArray[np.float64], row: tuple[int, int], column: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Logits (K, h, w) of the region ``crop`` at the centres of the pixels of these rows and columns: (K, rows, columns)."""
    (height, width), (left, top, right, bottom) = size, map(float, crop)
    x = place_centres(width, left, right, logits.device)[slice(*column)]
    y = place_centres(height, top, bottom, logits.device)[slice(*row)]
    grid = torch.stack(torch.broadcast_tensors(x, y[:, None]), -1)  # (rows, columns, 2)
    return F.grid_sample(logits[None].float(), grid[None], padding_mode="border", align_corners=False)[0]


def place_centres(pixels: int, begin: float, end: float, device: torch.device) -> Tensor:
    """The centres of a picture's pixels along an axis, from -1 to 1 across the region from ``begin`` to ``end``: (pixels,)."""
    centres = torch.arange(pixels, dtype=torch.float64) + 0.5
    return (2 * (centres - begin) / (end - begin) - 1).float().to(device)


def find_shown(frames: Frames, size: tuple[int, int]) -> Tensor:
    """The pixels of one input of ``size`` (height, width) that show its picture, and not a border around it: bool (h, w)."""
    (left, top, right, bottom), (height, width) = frames.crops[0].tolist(), frames.pictures[0].tolist()
    y, x = (
        begin + (torch.arange(pixels) + 0.5) * ((end - begin) / pixels)
        for pixels, begin, end in zip(size, (top, left), (bottom, right))
    )
    return ((y > 0) & (y < height))[:, None] & ((x > 0) & (x < width))
