"""Images of more than 8 bits a channel, of floats, and TIFF of any number of bands, as floats in [0, 1].

Axes: H, W, B bands of the file, C channels.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress
from io import BytesIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from vitrail.images.decode import (
    BITS_PER_SAMPLE,
    MODES,
    PHOTOMETRIC,
    TIFF,
    BadImage,
    UnknownFormat,
    check_pixels,
    decode,
    open_header,
    turn_upright,
)
from vitrail.images.pixel_range import Levels
from vitrail.untrusted.limits import PIXELS

SAMPLES_PER_PIXEL = 277  # a tag of TIFF
MAX_BANDS = 32  # of a TIFF of as many pixels as are read

# both log every fault of a TIFF, which is in the reason of the bad image
for name in ("PIL.TiffImagePlugin", "tifffile"):
    logging.getLogger(name).addHandler(logging.NullHandler())
    logging.getLogger(name).propagate = False


class Pixels(NamedTuple):
    """The number of bands by a header, their bits, and whether `decode` cannot give all of their values."""

    bands: int
    bits: int
    deep: bool


def describe_pixels(content: bytes) -> Pixels | None:
    """Describes the pixels of an image file from its header; None if it cannot be read."""
    with suppress(BadImage), open_header(content) as image:
        deep = image.mode.startswith(("I", "F"))
        return Pixels(len(image.getbands()), 16 if deep else 8, deep)
    if not content.startswith(TIFF):
        return None
    try:
        file = BytesIO(content)
        tags = ImageFileDirectory_v2(file.read(16 if content.startswith(TIFF[2:]) else 8))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.|vitrail\.images\.deep_images")
            file.seek(tags.next)
            tags.load(file)
        return Pixels(int(tags.get(SAMPLES_PER_PIXEL, 1)), max(map(int, tags.get(BITS_PER_SAMPLE, (8,)))), True)
    except Exception:  # the parser raises many types for a broken file
        return None


def read_levels(content: bytes, *, max_pixels: int = PIXELS) -> NDArray[np.generic]:
    """Reads the stored values of a deep image or a TIFF of several bands, upright, as (H, W, B). Raises `BadImage`."""
    try:
        with open_header(content) as image:
            check_pixels(image.size, max_pixels)
            values = np.asarray(turn_upright(image))
            tags = getattr(image, "tag_v2", {})
            if tags.get(PHOTOMETRIC) == 0 and values.dtype.kind == "u":  # white is zero
                values = 2 ** tags[BITS_PER_SAMPLE][0] - 1 - values
    except UnknownFormat:
        values = _read_tiff(content, max_pixels)
    values = values[..., None] if values.ndim == 2 else values
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadImage("it has values that are not finite")
    return values


def decode_deep(
    content: bytes, *, channels: int, levels: Levels | None = None, max_pixels: int = PIXELS
) -> NDArray[np.float32]:
    """Decodes any image file to floats in [0, 1]: (H, W, C), upright.

    Images of 8 bits are those of `decode`. Of others ``levels`` become 0 and 1, and values beyond are clipped; without ``levels``
    whole numbers have the range of their type. A single band is repeated for three channels.
    Raises `BadImage` for a file that cannot be used, has another number of bands, or needs ``levels``.
    """
    found = describe_pixels(content)
    if found is None or not (found.deep or found.bands not in MODES or channels not in MODES):
        picture = np.asarray(decode(content, channels=channels, max_pixels=max_pixels))
        return (picture.reshape(*picture.shape[:2], channels) / 255).astype(np.float32)
    if found.bands not in (1, channels):
        raise BadImage(f"it has {found.bands} bands, and {channels} are needed")
    values = read_levels(content, max_pixels=max_pixels)
    if values.shape[2] == 1 and channels == 3:
        values = np.repeat(values, 3, axis=2)
    if values.shape[2] != channels:
        raise BadImage(f"it has {values.shape[2]} bands, and {channels} are needed")
    if values.dtype == np.uint8 or (levels is None and values.dtype.kind == "u"):
        levels = 0.0, 256.0**values.itemsize - 1
    if levels is None:
        what = f"values of {values.dtype} have no defined range"
        raise BadImage(f"{what}; give the range with --pixel-range LOW,HIGH, or train on such images")
    low, high = levels
    return ((values.astype(np.float32) - low) / max(high - low, 1e-12)).clip(0, 1)


def decode_file(
    content: bytes,
    *,
    channels: int,
    levels: Levels | None = None,
    max_pixels: int = PIXELS,
    at_least: tuple[int, int] | None = None,
) -> Image.Image | NDArray[np.generic]:
    """Decodes an image file with `decode`, or with `decode_deep` where ``levels`` are given or there are many channels."""
    if levels is None and channels in MODES:
        try:
            return decode(content, channels=channels, max_pixels=max_pixels, at_least=at_least)
        except BadImage as error:
            raise BadImage(_name_bands(content, channels) or error.reason) from error
    return decode_deep(content, channels=channels, levels=levels, max_pixels=max_pixels)


def _name_bands(content: bytes, channels: int) -> str:
    """Why a TIFF that Pillow does not read cannot be used; empty for any other file."""
    found = describe_pixels(content) if content.startswith(TIFF) else None
    if found is None or found.bands == 1 or not found.deep:
        return ""
    what = f"a TIFF of {found.bands} bands of {found.bits} bits, for a network of {channels} channels"
    return f"{what}; train on such images, or save {channels} bands of 8 bits as PNG"


def _read_tiff(content: bytes, max_pixels: int) -> NDArray[np.generic]:
    try:
        import tifffile
    except ImportError as error:
        raise BadImage("a TIFF of a kind that Pillow does not read; `pip install vitrail[tiff]` reads it") from error
    try:
        with tifffile.TiffFile(BytesIO(content)) as file:
            page = file.pages.first
            bands, size = page.samplesperpixel, (page.imagewidth, page.imagelength)
            check_pixels(size, max_pixels)
            if bands > MAX_BANDS:
                check_pixels((size[0] * bands, size[1]), max_pixels * MAX_BANDS)
            values = page.asarray()
    except BadImage:
        raise
    except Exception as error:  # the parser raises many types for a broken file
        raise BadImage(f"{type(error).__name__}: {error}") from error
    if page.axes == "SYX":
        values = np.moveaxis(values, 0, -1)
    if values.ndim not in (2, 3) or values.dtype.kind not in "uif":
        raise BadImage(f"a TIFF with the axes {page.axes} of {values.dtype}")
    return values
