"""How a value for every pixel of a picture is stored and resampled, from H and W to h and w. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PixelFormat:
    """How a value for every pixel is stored, and resampled where pixels are cropped, flipped and resized.

    Args:
        dtype: of the values; integers are indices of classes.
        ignored: the value of pixels without one: nothing is learned from them and nothing evaluated on them. May be NaN.
        interpolation: ``nearest`` for classes, and whatever else has nothing in between; ``bilinear`` for measurements.
    """

    dtype: type[np.generic]
    ignored: float
    interpolation: Literal["nearest", "bilinear"]

    def is_known(self, maps: Any) -> Any:
        """Returns which values of an array or a tensor are not ignored, in its shape."""
        return maps == maps if math.isnan(self.ignored) else maps != self.ignored


def crop_map(
    levels: NDArray[Any], box: tuple[int, int, int, int], size: tuple[int, int], pixel_format: PixelFormat
) -> NDArray[Any]:
    """Returns the part ``box`` (left, top, width, height) of the values (H, W) of a picture, resized to ``size``: (h, w).

    What lies beyond the picture is ignored.
    """
    left, top, wide, tall = box
    y, x = top + (np.arange(size[0]) + 0.5) * tall / size[0], left + (np.arange(size[1]) + 0.5) * wide / size[1]
    rows, columns = np.floor(y).astype(int), np.floor(x).astype(int)  # (h,), (w,)
    height, width = levels.shape
    if pixel_format.interpolation == "nearest":
        made = levels[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    else:
        known = np.where(pixel_format.is_known(levels), levels, np.nan)
        mixed = _interpolate(_interpolate(known, y).T, x).T
        made = np.where(np.isnan(mixed), pixel_format.ignored, mixed).astype(levels.dtype)
    made[(rows < 0) | (rows >= height)] = pixel_format.ignored
    made[:, (columns < 0) | (columns >= width)] = pixel_format.ignored
    return made


def _interpolate(values: NDArray[np.floating], places: NDArray[np.float64]) -> NDArray[np.floating]:
    """Returns the rows (n, W) of values (H, W) at ``places`` (n,), linear between the centres of pixels, constant beyond."""
    places = (places - 0.5).clip(0, len(values) - 1)
    first = np.floor(places).astype(int)
    share = (places - first)[:, None]
    second = first + (share[:, 0] > 0)  # a neighbour without weight does not matter, even if it is NaN
    return values[first] + share * (values[second] - values[first])
