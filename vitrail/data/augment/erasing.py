"""Random erasing (Zhong et al. 2020): a box of each selected image is filled with normal noise, on the device of the images.

Axes: M erased images, C channels, P pixels in all the boxes together.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.geometry import store_like
from vitrail.data.rng import FIRST, GOLDEN, SECOND
from vitrail.data.to_device import to_device

# becomes unit noise after the usual normalisation of photographs
NOISE_MEAN, NOISE_DEVIATION = 0.45 * 255, 0.225 * 255


def noise_boxes(images: Tensor, rows: Tensor, boxes: NDArray[np.int64], states: NDArray[np.uint64]) -> None:
    """Write normal noise, independent for each pixel and channel, into the boxes (M, 4) of ``images[rows]``.

    Args:
        images: (B, C, H, W), levels; changed in place.
        states: (M,) from `rng.keys`: the noise of a box is made from the first words of that generator.
    """
    areas = boxes[:, 2] * boxes[:, 3]
    total = int(areas.sum())
    table = np.column_stack([boxes[:, :3], np.cumsum(areas) - areas, states.view(np.int64)])
    owner = torch.repeat_interleave(to_device(areas, images.device), output_size=total)  # (P,)
    left, top, wide, before, state = to_device(table, images.device)[owner].unbind(1)  # each (P,)
    pixel = torch.arange(total, device=images.device) - before
    channels = torch.arange(images.shape[1], device=images.device)
    noise = normal(state[:, None], pixel[:, None] * len(channels) + channels)  # (P, C)
    values = store_like(NOISE_MEAN + NOISE_DEVIATION * noise, images)
    images[rows[owner], :, top + pixel // wide, left + pixel % wide] = values


def normal(states: Tensor, positions: Tensor) -> Tensor:
    """Standard normal numbers from the words of `rng.words`: the halves of a word are the two uniforms of Box and Muller.

    Args:
        states, positions: int64, broadcast; a state has the bits of the unsigned state.
    """
    word = _finalise(states + (positions + 1) * _signed(GOLDEN))
    high, low = (word >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
    radius = torch.sqrt(-2 * torch.log((high.float() + 0.5) * 2.0**-32))
    return radius * torch.cos(low.float() * (2 * torch.pi * 2.0**-32))


def _finalise(word: Tensor) -> Tensor:
    """`rng._finalise` on signed words: overflow is the same, and only right shifts need the sign bits masked."""
    for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
        word = (word ^ ((word >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return word


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
