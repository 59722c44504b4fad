"""Preparing one picture from an item of a source: a training crop, the user's transform, or the evaluation crop. No torch.

Axes: H and W of the file, h and w of the model's input, C channels. Sizes are (height, width).
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.data.augment.crops import TRIES, crop_box
from vitrail.data.augment.policy import Augment
from vitrail.data.preprocessing import INTERPOLATIONS, Preprocessing, stack_planes
from vitrail.data.rng import keys
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.contents import Contents, UserDataset
from vitrail.data.windows import Windows
from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage, decode, size_of, upright_size
from vitrail.images.pixel_format import PixelFormat, crop_map
from vitrail.untrusted.limits import PIXELS

JPEG = b"\xff\xd8\xff"  # the only format with decoding at a reduced size
REDUCING_GAP = 3.0  # large pictures are first reduced by an integer factor, to at least three times the result


class Picture(NamedTuple):
    """An image, (C, h, w) uint8 or float32 in [0, 1], and the region of the picture that it shows.

    ``crop`` is left, top, right, bottom of the region in pixels of the upright picture, and ``full`` the size (height, width)
    of the picture; None for images of a user's transform. ``map`` (H, W) is the value of every pixel: of the region, in training,
    and of the whole picture, in evaluation; None without `PixelMaps`.
    """

    pixels: np.ndarray
    crop: tuple[float, float, float, float] | None = None
    full: tuple[int, int] | None = None
    map: np.ndarray | None = None


@dataclass(frozen=True)
class TrainingCrop:
    """Crops an item by the policy and resizes it to ``size``: uint8 (C, h, w), or float32 for float arrays.

    The crop is resampled once from the original pixels, so a small crop of a large photograph keeps its detail. A JPEG is
    decoded at a reduced size only if the crop is at least twice the result. What the crop shows beyond the picture has the
    level ``policy.fill``. The values of pixels (``annotations`` with maps) are cropped alike.
    """

    contents: Contents
    policy: Augment
    size: tuple[int, int]
    seed: int
    channels: int
    annotations: Annotations | None = None
    max_pixels: int = PIXELS

    def __call__(self, epoch: int, sample: int, view: int) -> Picture:
        image = read(self.contents, self.seed, epoch, sample, view)
        how = {"channels": self.channels, "max_pixels": self.max_pixels}
        if isinstance(image, bytes) and (full := jpeg_size(image)):
            (left, top, wide, tall), levels = self._choose_box(full, epoch, sample, view)
            at_least = math.ceil(full[0] * self.size[0] / tall), math.ceil(full[1] * self.size[1] / wide)
            image = decode(image, **how, at_least=at_least)
        else:
            image = decode(image, **how) if isinstance(image, bytes) else image
            full = size_of(image)
            (left, top, wide, tall), levels = self._choose_box(full, epoch, sample, view)
        seen = size_of(image)
        scale = round(max(full) / max(seen))  # 1, 2, 4 or 8, exactly: decoders round the size up, not the scale
        box = left / scale, top / scale, (left + wide) / scale, (top + tall) / scale
        shown = float(left), float(top), float(left + wide), float(top + tall)
        return Picture(crop_beyond(image, box, self.size, self.channels, self.policy.fill), shown, full, levels)

    def _choose_box(
        self, full: tuple[int, int], epoch: int, sample: int, view: int
    ) -> tuple[tuple[int, int, int, int], np.ndarray | None]:
        """Returns the box to crop (left, top, width, height), and the values of its pixels (h, w) where there are maps.

        It is drawn again while one class takes more of it than the policy accepts.
        """
        whole = None if self.annotations is None else self.annotations.read_map(sample, full)
        pixel_format = None if self.annotations is None else self.annotations.pixel_format
        aspect = self.size[1] / self.size[0]
        for attempt in range(TRIES if self.policy.crop == "jitter" else 1):
            box = crop_box(self.policy, self.seed, epoch, sample, view, *full, aspect=aspect, attempt=attempt)
            if whole is None or pixel_format is None:
                return box, None
            levels = crop_map(whole, box, self.size, pixel_format)
            if not _has_one_class(levels, self.policy.crop_major, pixel_format):
                break
        return box, levels


@dataclass(frozen=True)
class TwoSizes:
    """Of each ``views`` views of an item the first ``whole`` are made by ``large``, the others by ``small``."""

    large: TrainingCrop
    small: TrainingCrop
    views: int
    whole: int

    def __call__(self, epoch: int, sample: int, view: int) -> Picture:
        make = self.large if view % self.views < self.whole else self.small
        return make(epoch, sample, view)


@dataclass(frozen=True)
class Transformed:
    """Applies the user's transform to a decoded item, instead of crop and augmentation.

    Its argument is a Pillow image if Pillow has a mode for it (uint8 with 1 or 3 channels), otherwise an array (H, W, C). It
    returns a tensor, an array or a Pillow image.
    """

    contents: Contents
    transform: Callable[[Any], Any]
    size: tuple[int, int]
    seed: int
    channels: int
    max_pixels: int = PIXELS

    def __call__(self, epoch: int, sample: int, view: int) -> Picture:
        content = read(self.contents, self.seed, epoch, sample, view)
        if isinstance(content, bytes):
            image = decode(content, channels=self.channels, max_pixels=self.max_pixels)
        else:
            image = as_image(content)
        key = self.contents.keys[sample]
        try:
            with seeded("transform", self.seed, epoch, sample, view):
                output = self.transform(image)
        except Exception as error:
            fact = f"the transform failed on {key}: {type(error).__name__}: {error}"
            raise DataError(fact, "run the transform on this image alone") from error
        return Picture(self._check(output, key))

    def _check(self, output: Any, key: str) -> np.ndarray:
        if isinstance(output, Image.Image):
            plain = np.asarray(output)
            output = plain.reshape(*plain.shape[:2], -1).transpose(2, 0, 1)
        array = np.asarray(output.detach().cpu() if hasattr(output, "detach") else output)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        expected = (self.channels, *self.size)
        if array.shape != expected or array.dtype not in (np.uint8, np.float32):
            fact = f"the transform returned {array.dtype} {array.shape} for {key}, but the model requires {expected}"
            raise ConfigError(fact, "return uint8, or floats in [0, 1], as (channels, height, width)")
        if array.dtype == np.float32 and not (array.min() >= -1e-3 and array.max() <= 1 + 1e-3):
            fact = f"the transform returned values from {array.min():.3g} to {array.max():.3g} for {key}"
            raise ConfigError(fact, "return values in [0, 1] without normalisation: model.preprocessing has it")
        return np.ascontiguousarray(array)


@dataclass(frozen=True)
class Evaluated:
    """Applies the preprocessing of a model to an item; with ``fast``, decodes JPEG at a reduced size.

    So it does with JPEGs above the limit of 64 million pixels that ``max_pixels`` admits, to save memory. With `Windows`,
    the pixels are those of all inputs that show the item, (V, C, h, w), and ``crop`` is that of the first.
    """

    contents: Contents
    preprocessing: Preprocessing | Windows
    fast: bool = False
    annotations: Annotations | None = None
    max_pixels: int = PIXELS

    def __call__(self, epoch: int, sample: int, view: int) -> Picture:
        image, full = read(self.contents, 0, epoch, sample, view), None
        if isinstance(image, bytes):
            full = jpeg_size(image) if self.fast or self.max_pixels > PIXELS else None
            reduced = full is not None and (self.fast or full[0] * full[1] > PIXELS)
            at_least = self.preprocessing.resized(*full) if full and reduced else None
            image = self.preprocessing.decode(image, max_pixels=self.max_pixels, at_least=at_least)
        full = full or size_of(image)
        top, left, bottom, right = self.preprocessing.visible_box(*full)
        levels = None if self.annotations is None else self.annotations.read_map(sample, full)
        return Picture(self.preprocessing.picture(image), (left, top, right, bottom), full, levels)


def read(contents: Contents, seed: int, epoch: int, sample: int, view: int) -> bytes | np.ndarray:
    """Reads the content of an item; a user's Dataset is called with seeded generators. Raises `BadImage`."""
    if not isinstance(contents, UserDataset):
        return contents[sample]
    with seeded("dataset", seed, epoch, sample, view):
        return contents[sample]


@contextmanager
def seeded(stream: str, seed: int, epoch: int, sample: int, view: int) -> Iterator[None]:
    """Seeds the generators of Python, numpy and torch for this sample within the block, and restores them. Not thread-safe."""
    generator = sys.modules["torch"].default_generator if "torch" in sys.modules else None
    before = random.getstate(), np.random.get_state(), generator and generator.get_state()
    state = int(keys(seed, stream, epoch, sample, view))
    random.seed(state)
    np.random.seed(state % 2**32)
    if generator is not None:
        generator.manual_seed(state)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if generator is not None:
            generator.set_state(before[2])


def jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Returns the upright (height, width) of a JPEG from its header; None for other or broken files."""
    return upright_size(content) if content.startswith(JPEG) else None


def as_image(array: np.ndarray) -> Image.Image | np.ndarray:
    """Converts an array (H, W, C) to a Pillow image, if Pillow has a mode for it."""
    if array.dtype != np.uint8 or array.shape[2] not in (1, 3):
        return array
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def crop_beyond(
    image: Image.Image | np.ndarray,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    channels: int,
    fill: int,
) -> np.ndarray:
    """`crop` for a box that may reach beyond the image, where the pixels have the level ``fill``: (C, h, w)."""
    height, width = size_of(image)
    left, top, right, bottom = box
    if left >= 0 and top >= 0 and right < width + 1 and bottom < height + 1:  # a reduced JPEG may miss part of a pixel
        return crop(image, (left, top, min(right, width), min(bottom, height)), size, channels)
    across, down = (right - left) / size[1], (bottom - top) / size[0]  # pixels of the image per pixel of the result
    first_column, first_row = max(math.ceil(-left / across), 0), max(math.ceil(-top / down), 0)
    columns = min(math.floor((width - left) / across), size[1]) - first_column
    rows = min(math.floor((height - top) / down), size[0]) - first_row
    floating = isinstance(image, np.ndarray) and image.dtype == np.float32
    made = np.full((channels, *size), fill / 255 if floating else fill, np.float32 if floating else np.uint8)
    if rows > 0 and columns > 0:
        x, y = max(left + first_column * across, 0), max(top + first_row * down, 0)
        inside = x, y, min(x + columns * across, width), min(y + rows * down, height)
        part = crop(image, inside, (rows, columns), channels)
        made[:, first_row : first_row + rows, first_column : first_column + columns] = part
    return made


def _has_one_class(levels: np.ndarray, share: float, pixel_format: PixelFormat) -> bool:
    """Whether more than ``share`` of the pixels that have a class have the same, or none has any."""
    if share >= 1 or levels.dtype.kind == "f":
        return False
    known = levels[pixel_format.is_known(levels)]
    # the values of wider types, such as numbers of objects, may be too large to be places
    is_narrow = levels.dtype == np.uint8
    counts = np.bincount(known, minlength=1) if is_narrow else np.append(0, np.unique(known, return_counts=True)[1])
    return bool(counts.max() > share * counts.sum() or not counts.any())


def crop(
    image: Image.Image | np.ndarray, box: tuple[float, float, float, float], size: tuple[int, int], channels: int
) -> np.ndarray:
    """Crops an image to ``box`` (left, top, right, bottom) and resizes it to ``size``: (C, h, w).

    Raises `BadImage` for an array with another number of channels.
    """
    if isinstance(image, np.ndarray):
        if image.shape[2] != channels:
            raise BadImage(f"an array of shape {image.shape}, where (H, W, {channels}) is needed")
        image = as_image(image)
    if isinstance(image, np.ndarray):
        parts = [Image.fromarray(np.copy(plane)) for plane in np.moveaxis(image, 2, 0)]
    else:
        parts = [image]
    resample = INTERPOLATIONS["bicubic"]
    return stack_planes([part.resize(size[::-1], resample, box=box, reducing_gap=REDUCING_GAP) for part in parts])
