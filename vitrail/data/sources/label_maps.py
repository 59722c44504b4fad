"""A class for every pixel of an image, read from mask files. No torch.

n images, H and W of the upright picture, V values of masks, K classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.decode import FORMATS, MAX_PIXELS, BadImage
from vitrail.data.sources.annotations import Annotations, check_annotated_size
from vitrail.data.sources.contents import Contents
from vitrail.data.sources.stamps import Stamped, hash_each

IGNORED = 255  # the index of pixels without a class; so there are at most 255 classes
COUNTED = 1000  # maps that are read to count classes; of more, as many evenly spaced ones


@dataclass(frozen=True, eq=False)
class LabelMaps(Annotations):
    """A class for every pixel of n images, read when they are needed.

    Args:
        contents: of the mask files, or arrays (H, W, 1).
        values: what the masks contain: (V,) numbers of palette or grey masks, or (V, 3) colours.
        indices: (V,) uint8 the class of each value, or `IGNORED`.
    """

    task, counted = "segmentation", "pixels"
    contents: Contents
    values: NDArray[np.uint8]
    indices: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.contents.keys)

    def __getitem__(self, rows: NDArray[np.integer]) -> LabelMaps:
        return replace(self, contents=self.contents.take(np.asarray(rows, np.int64)))

    def of(self, row: int) -> NDArray[np.uint8]:
        """(H, W) uint8 indices of classes, or `IGNORED`. Raises `BadImage` for a mask that cannot be used."""
        content = self.contents[row]
        levels = decode_mask(content) if isinstance(content, bytes) else content[..., 0]
        if levels.ndim != self.values.ndim + 1:
            kinds = {2: "one number", 3: "a colour"}
            raise BadImage(f"the mask has {kinds[levels.ndim]} per pixel, others {kinds[self.values.ndim + 1]}")
        colours = levels.ndim == 3
        codes, found = _encode(self.values, colours), _encode(levels, colours)  # (V,), (H, W)
        order = np.argsort(codes)
        places = order[np.searchsorted(codes, found, sorter=order).clip(max=len(codes) - 1)]
        if (unknown := codes[places] != found).any():
            examples = np.unique(levels[unknown], axis=0)[:5].tolist()
            raise BadImage(f"the mask contains {', '.join(map(str, examples))}, which stands for no class")
        return self.indices[places]

    def read_map(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        levels = self.of(row)
        check_annotated_size(levels.shape, size, "mask")
        return levels

    def digest(self, row: int) -> bytes:
        try:
            return self.of(row).tobytes()
        except BadImage:
            return b""

    def hashes(self) -> NDArray[np.uint64]:
        """(n,) all equal: the meaning of the values of masks. The masks themselves are compared as files; see `stamp`."""
        return np.repeat(hash_each([self.values.tobytes() + self.indices.tobytes()]), len(self))

    def stamp(self, keys: Sequence[str]) -> Stamped | None:
        return self.contents.stamp()

    @cached_property
    def pixels(self) -> NDArray[np.int64]:
        """(256,) pixels of each class in at most `COUNTED` masks, without those that cannot be read."""
        total = np.zeros(256, np.int64)
        for row in np.unique(np.linspace(0, len(self) - 1, min(COUNTED, len(self))).astype(int)).tolist():
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


def _encode(levels: NDArray[np.uint8], colours: bool) -> NDArray[np.integer]:
    """One number per value: of colours red + 256 green + 65,536 blue."""
    return levels.astype(np.uint32) @ np.array([1, 256, 65536], np.uint32) if colours else levels


def decode_mask(content: bytes) -> NDArray[np.uint8]:
    """The stored values of a mask: (H, W) uint8 of palette, grey and 1-bit images, or (H, W, 3) of colour images.

    A palette gives its indices, not its colours. Masks have no EXIF orientation.

    Raises:
        BadImage: no lossless image, or one with values above 255.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                if image.format in ("JPEG", "WEBP"):
                    raise BadImage(f"a mask in {image.format}, which does not keep values exactly; save it as PNG")
                if image.width * image.height > MAX_PIXELS:
                    raise BadImage(f"the mask has {image.width} x {image.height} pixels, over {MAX_PIXELS:,}")
                image.load()
                if image.mode in ("P", "L", "1"):
                    levels = np.asarray(image)
                    return levels.astype(np.uint8) * (255 if image.mode == "1" else 1)
                if image.mode in ("RGB", "RGBA"):
                    return np.asarray(image)[..., :3]
                numbers = np.asarray(image)
    except BadImage:
        raise
    except Exception as error:  # Pillow raises many types for a broken file
        raise BadImage(f"the mask: {type(error).__name__}: {error}") from error
    if numbers.ndim != 2 or numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() > 255:
        raise BadImage("the mask has values above 255 or a mode that is not supported; save numbers of 8 bits")
    return numbers.astype(np.uint8)
