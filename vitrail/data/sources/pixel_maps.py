"""A value for every pixel of an image. No torch.

n images, H and W of the upright picture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.annotations import Annotations, check_annotated_size
from vitrail.data.sources.contents import Contents
from vitrail.images.decode import BadImage
from vitrail.images.pixel_format import PixelFormat


class PixelMaps(Annotations):
    """A value for every pixel of n images, read when it is needed. A subclass is a dataclass with ``contents``."""

    counted = "pixels"
    pixel_format: ClassVar[PixelFormat]
    contents: Contents

    def __len__(self) -> int:
        return len(self.contents.keys)

    def __getitem__(self, rows: NDArray[np.integer]) -> Self:
        return replace(self, contents=self.contents.take(np.asarray(rows, np.int64)))  # type: ignore[bad-argument-type]

    def of(self, row: int) -> NDArray[Any]:
        """Returns the values of one image, (H, W). Raises `BadImage` if they cannot be used."""
        content = self.contents[row]
        assert isinstance(content, np.ndarray), "a subclass decodes files"
        return content[..., 0].astype(self.pixel_format.dtype, copy=False)

    def read_map(self, row: int, size: tuple[int, int]) -> NDArray[Any]:
        levels = self.of(row)
        check_annotated_size(levels.shape, size, "mask")
        return levels

    def digest(self, row: int) -> bytes:
        try:
            return self.of(row).tobytes()
        except BadImage:
            return b""

    def count_classes(self, classes: int) -> NDArray[np.int64]:
        return np.zeros(classes, np.int64)

    def renumber(self, indices: NDArray[np.int64]) -> Self:
        return self
