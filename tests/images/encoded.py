"""Pictures of noise, and image files of them, for the tests of decoding."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image


def noise(height: int = 5, width: int = 7, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(array: np.ndarray, **options: object) -> bytes:
    return saved(Image.fromarray(array), "PNG", **options)
