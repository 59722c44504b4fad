"""One operation on its own, on every image: what the composed operations of `augment` are compared with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.geometry import resample, visible
from vitrail.data.augment.operations import GEOMETRY, PASSES, look_up, make_tables


def operate(images: Tensor, name: str, values: NDArray[np.float64], *, fill: int = 128) -> Tensor:
    """Apply one operation alone to every image.

    Args:
        images: (B, C, H, W), uint8, or floats as levels.
        name: of `GEOMETRY`, `TABLES` or `PASSES`.
        values: (B,).
        fill: the level of the pixels that a geometric operation uncovers.
    """
    height, width = images.shape[-2:]
    if name in GEOMETRY:
        matrices = GEOMETRY[name](values, height, width)
        seen = visible(matrices, np.array([[0.0, 0.0, width, height]]), (height, width))
        return resample(images, torch.from_numpy(matrices), seen, size=(height, width), fill=fill)
    amounts = torch.from_numpy(values).float()
    if name in PASSES:
        return PASSES[name](images, amounts)
    return look_up(images, make_tables(name, images, torch.arange(len(images)), amounts))
