"""Arrays as images inside of a page."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitrail.analysis.render import find_light_range, overlay, to_rgb, to_uint8
from vitrail.images.decode import decode
from vitrail.markup import image_uri

SHORT_SIDE_OF_A_DRAWING = 64  # pixels; images up to this size are stored losslessly and shown without smoothing
SHARPEST = 224  # pixels of the longer side of an enlarged image


class Picture(NamedTuple):
    """An image as a data URI, and the class of its element in the style sheet."""

    source: str
    kind: str = ""


def photograph(picture: np.ndarray) -> Picture:
    """Returns an image uint8 (H, W[, C]) for a page. Small images are shown without smoothing."""
    return Picture(data_uri(picture), "drawing" if is_small(picture) else "")


def thumbnail(content: bytes | np.ndarray, max_pixels: int) -> Picture:
    """Returns an image file, or an image as data have it in memory, for a page. Raises `BadImage`."""
    decoded = content if isinstance(content, np.ndarray) else decode(content, channels=3, max_pixels=max_pixels)
    return photograph(to_uint8(np.asarray(decoded)))


def pixels(picture: np.ndarray) -> Picture:
    """Returns pixel graphics, stored losslessly at their size and scaled without smoothing."""
    return Picture(image_uri(Image.fromarray(np.ascontiguousarray(to_rgb(picture))), "png"), "ground")


def is_small(picture: np.ndarray) -> bool:
    return min(picture.shape[:2]) <= SHORT_SIDE_OF_A_DRAWING


def data_uri(picture: np.ndarray, most: int = 288) -> str:
    """Encodes a uint8 image (H, W[, C]), its sides at most ``most`` pixels, as a data URI: PNG if small, else JPEG."""
    image = Image.fromarray(np.ascontiguousarray(to_rgb(picture)))
    image.thumbnail((most, most), Image.Resampling.LANCZOS)
    return image_uri(image, "png" if min(image.size) <= SHORT_SIDE_OF_A_DRAWING else "jpeg")


def overlay_attention(
    picture: np.ndarray, attention: np.ndarray, reach: tuple[float, float] = (1.0, 1.0)
) -> np.ndarray:
    """Overlays the attention map ``attention`` (h, w) on an image: uint8 (H, W, 3). For ``reach`` see `overlay`."""
    # small images are enlarged first, so that the map is smooth while their pixels keep hard edges
    times = math.ceil(SHARPEST / max(picture.shape[:2])) if is_small(picture) else 1
    return overlay(picture.repeat(times, 0).repeat(times, 1), attention, reach=reach, range=find_light_range(attention))
