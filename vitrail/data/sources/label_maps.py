"""A class for every pixel of an image, read from mask files. No torch.

n images, H and W of the upright picture, V values of masks, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.contents import Contents, choose_evenly
from vitrail.data.sources.pixel_maps import PixelMaps
from vitrail.images.decode import BadImage
from vitrail.images.masks import IGNORED, encode_colours, open_mask, read_colours, read_numbers
from vitrail.images.pixel_format import PixelFormat
from vitrail.stamps import Stamped, hash_each

COUNTED = 1000  # maps that are read to count classes; of more, as many evenly spaced ones


@dataclass(frozen=True, eq=False)
class LabelMaps(PixelMaps):
    """A class for every pixel of n images, read when they are needed.

    Args:
        contents: of the mask files, or arrays (H, W, 1).
        values: what the masks contain: (V,) numbers of palette or grey masks, or (V, 3) colours.
        indices: (V,) uint8 the class of each value, or `IGNORED`.
    """

    task = "segmentation"
    pixel_format = PixelFormat(np.uint8, IGNORED, "nearest")
    contents: Contents  # type: ignore[bad-override]
    values: NDArray[np.uint8]
    indices: NDArray[np.uint8]

    def of(self, row: int) -> NDArray[np.uint8]:
        """(H, W) uint8 indices of classes, or `IGNORED`. Raises `BadImage` for a mask that cannot be used."""
        content = self.contents[row]
        colours = self.values.ndim == 2
        if isinstance(content, bytes):
            image = open_mask(content)
            levels = read_colours(image) if colours else read_numbers(image)
        else:
            levels = content[..., 0]
        found = self._index_colours(levels) if colours else self._index_numbers[levels]
        if (unknown := found < 0).any():
            examples = np.unique(levels[unknown], axis=0)[:5].tolist()
            raise BadImage(f"the mask contains {', '.join(map(str, examples))}, which stands for no class")
        return found.astype(np.uint8)

    @cached_property
    def _index_numbers(self) -> NDArray[np.int16]:
        """(256,) the class of each number, -1 for one that stands for none."""
        table = np.full(256, -1, np.int16)
        table[self.values] = self.indices
        return table

    def _index_colours(self, levels: NDArray[np.uint8]) -> NDArray[np.int16]:
        """(H, W) the class of each pixel of (H, W, 3) colours, -1 for one that stands for none."""
        codes, found = encode_colours(self.values), encode_colours(levels)  # (V,), (H, W)
        order = np.argsort(codes)
        places = order[np.searchsorted(codes, found, sorter=order).clip(max=len(codes) - 1)]
        return np.where(codes[places] == found, self.indices[places], np.int16(-1))

    def hashes(self) -> NDArray[np.uint64]:
        """(n,) all equal: the meaning of the values of masks. The masks themselves are compared as files; see `stamp`."""
        return np.repeat(hash_each([self.values.tobytes() + self.indices.tobytes()]), len(self))

    def stamp(self, keys: Sequence[str]) -> Stamped | None:
        return self.contents.stamp()

    @cached_property
    def pixels(self) -> NDArray[np.int64]:
        """(256,) pixels of each class in at most `COUNTED` masks, without those that cannot be read."""
        total = np.zeros(256, np.int64)
        for row in choose_evenly(len(self), COUNTED).tolist():
            try:
                total += np.bincount(self.of(row).reshape(-1), minlength=256)
            except BadImage:
                continue
        return total

    def count_classes(self, classes: int) -> NDArray[np.int64]:
        """(K,) pixels of each class; see `pixels`."""
        return self.pixels[:classes]

    def renumber(self, indices: NDArray[np.int64]) -> LabelMaps:
        table = np.append(indices, np.full(256 - len(indices), IGNORED)).astype(np.uint8)
        return replace(self, indices=table[self.indices])
