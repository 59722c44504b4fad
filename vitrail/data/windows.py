"""Pictures in overlapping windows, so that a model sees a part of a large picture at the size of its input. No torch.

Sizes are (height, width). V inputs that show one picture, C channels, h and w of the model's input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.preprocessing import MAX_SIDE, Preprocessing
from vitrail.errors import ConfigError
from vitrail.images.decode import size_of
from vitrail.images.pixel_range import Levels

if TYPE_CHECKING:
    from torch import Tensor

OVERLAP = 0.25  # of a window with the next one, in shares of its side, at least
MAX_WINDOWS = 1_000  # windows of a picture


@dataclass(frozen=True)
class Windows:
    """A picture as a model sees it several times: whole, and enlarged, in overlapping windows of the size of the input.

    It stands in the place of a `Preprocessing` where pictures are read.

    Args:
        whole: how the model sees a whole picture.
        zoom: how many times as large the windows show it.

    Raises `ConfigError` for a zoom below 1, or so large that a picture has thousands of windows.
    """

    whole: Preprocessing
    zoom: float

    def __post_init__(self) -> None:
        most = min(1 + (math.isqrt(MAX_WINDOWS) - 1) * (1 - OVERLAP), MAX_SIDE / max(self.whole.size))
        if not 1 <= self.zoom <= most:
            remedy = f"give a number from 1, which shows whole pictures, to {most:g}"
            raise ConfigError(f"zoom is {self.zoom:g}", remedy)
        if self.whole.resize == "none":
            what = f"zoom is {self.zoom:g}, and the preprocessing of the model does not scale pictures"
            raise ConfigError(what, "leave zoom out, or give --resize fit")

    @property
    def size(self) -> tuple[int, int]:
        return self.whole.size

    @property
    def channels(self) -> int:
        return self.whole.channels

    @property
    def pixel_range(self) -> Levels | None:
        return self.whole.pixel_range

    @property
    def enlarged(self) -> Preprocessing:
        """How the whole picture would be seen by a model whose input is ``zoom`` times as large."""
        height, width = self.size
        return self.whole.at((math.floor(self.zoom * height), math.floor(self.zoom * width)))

    def resized(self, height: int, width: int) -> tuple[int, int]:
        return self.enlarged.resized(height, width)

    def visible_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        return self.whole.visible_box(height, width)

    def normalise(self, images: Tensor) -> Tensor:
        return self.whole.normalise(images)

    def decode(self, content: bytes, **how: Any) -> Image.Image | np.ndarray:
        return self.whole.decode(content, **how)

    def picture(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """The inputs before normalisation, (V, C, h, w), the whole picture first; a Pillow image must be upright."""
        large, (height, width) = self.enlarged.picture(image), self.size
        corners = self._place(*size_of(image))
        parts = (large[:, top : top + height, left : left + width] for top, left in corners)
        return np.stack([self.whole.picture(image), *parts])

    def boxes(self, height: int, width: int) -> NDArray[np.float64]:
        """(V, 4) left, top, right, bottom of what each input shows, in pixels of a picture of that size."""
        corners, (tall, wide) = np.array(self._place(height, width), np.float64), self.enlarged.size
        top, left, bottom, right = self.enlarged.visible_box(height, width)
        scale = np.array([(right - left) / wide, (bottom - top) / tall])  # pixels of the picture in an enlarged one
        starts = corners[:, ::-1] * scale + [left, top]
        ends = starts + np.array(self.size[::-1]) * scale
        top, left, bottom, right = self.visible_box(height, width)
        return np.concatenate([[[left, top, right, bottom]], np.concatenate([starts, ends], 1)])

    def _place(self, height: int, width: int) -> list[tuple[int, int]]:
        """Top and left of each window in the enlarged picture, row by row."""
        extents = map(min, self.resized(height, width), self.enlarged.size)
        tops, lefts = map(place_windows, extents, self.size)
        return list(product(tops, lefts))


def place_windows(extent: int, side: int) -> list[int]:
    """The first pixels of windows of ``side`` pixels along an axis: spread evenly, the last one ends where the picture does.

    They overlap by `OVERLAP` of their side at least. A picture that is no larger than a window has one at 0.
    """
    count = 1 + max(math.ceil((extent - side) / (side * (1 - OVERLAP))), 0)
    return np.linspace(0, max(extent - side, 0), count).round().astype(int).tolist()
