"""From logits at the size of the input to the classes of the pixels of a picture.

B images, K classes, h and w of the input, H and W of a picture.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment.placement import Frames

CELLS = 16_000_000  # logits of a picture in memory at a time


def label_pixels(outputs: Tensor, frames: Frames) -> Iterator[Tensor]:
    """The class of every pixel of every picture: uint8 (H, W) each, on the device of the logits.

    Logits are interpolated at the centres of the picture's pixels, bilinearly, as `torch.nn.functional.interpolate` does with
    ``align_corners=False``. Pixels that the input does not show get the classes of the border.

    Args:
        outputs: (B, K, h, w) logits of any precision.
        frames: the regions of the pictures that the input shows, larger than the picture where it was padded.
    """
    for logits, crop, size in zip(outputs, frames.crops, frames.pictures):
        height, width = map(int, size)
        left, top, right, bottom = map(float, crop)
        x = place_centres(width, left, right, outputs.device)
        rows = max(CELLS // (len(logits) * width), 1)
        parts = []
        for y in place_centres(height, top, bottom, outputs.device).split(rows):
            grid = torch.stack(torch.broadcast_tensors(x, y[:, None]), -1)  # (rows, W, 2)
            sampled = F.grid_sample(logits[None].float(), grid[None], padding_mode="border", align_corners=False)
            parts.append(sampled[0].argmax(0).to(torch.uint8))
        yield torch.cat(parts)


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
