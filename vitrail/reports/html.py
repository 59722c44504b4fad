"""Arrays as images inside of a page."""

from __future__ import annotations

import numpy as np
from PIL import Image

from vitrail.analysis.pictures import to_rgb
from vitrail.markup import image_uri

SHORT_SIDE_OF_A_DRAWING = 64  # pixels; images up to this size are stored losslessly and shown without smoothing


def data_uri(picture: np.ndarray, most: int = 288) -> str:
    """Encodes a uint8 image (H, W[, C]), its sides at most ``most`` pixels, as a data URI: PNG if small, else JPEG."""
    image = Image.fromarray(np.ascontiguousarray(to_rgb(picture)))
    image.thumbnail((most, most), Image.Resampling.LANCZOS)
    return image_uri(image, "png" if min(image.size) <= SHORT_SIDE_OF_A_DRAWING else "jpeg")


def exact_uri(picture: np.ndarray) -> str:
    """Encodes an image as a PNG data URI, losslessly and at its original size."""
    return image_uri(Image.fromarray(np.ascontiguousarray(to_rgb(picture))), "png")
