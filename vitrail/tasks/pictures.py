"""Pictures as users hold them in memory, made into the one form that preprocessing takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.decode import BadImage, decode
from vitrail.data.sources.folders import Scan, list_image_files

Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | Tensor


def to_pixels(picture: Any, channels: int) -> Image.Image | np.ndarray:
    """A Pillow image or an array (H, W, C), uint8 or float32 in [0, 1]. Raises `BadImage` for anything else."""
    if isinstance(picture, str | os.PathLike):
        picture = _read(picture)
    if isinstance(picture, bytes):
        return decode(picture, channels=channels)
    if isinstance(picture, Tensor):
        picture = picture.detach().cpu()
        picture = (picture.movedim(0, -1) if picture.ndim == 3 else picture).numpy()
    if isinstance(picture, Image.Image):
        return picture
    if not isinstance(picture, np.ndarray):
        raise BadImage(f"it is a {type(picture).__name__}")
    if picture.dtype == np.uint8:
        return picture
    if not np.issubdtype(picture.dtype, np.floating):
        raise BadImage(f"it holds {picture.dtype}")
    low, high = picture.min(initial=0), picture.max(initial=1)
    if not (low >= 0 and high <= 1):
        raise BadImage(f"its values run from {low:g} to {high:g}")
    return picture.astype(np.float32)


def _read(path: str | os.PathLike[str]) -> bytes:
    if "://" in str(path):
        raise BadImage(f"{path} is a URL, which is not fetched; download the file and give its path")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadImage(f"{path}: {error.strerror}") from error


def list_pictures(pictures: Any) -> list[Any]:
    """Several pictures as a list, one as a list of one, a folder as its images in sorted order. Nothing is read yet.

    Raises `DataError` for a folder without images.
    """
    if isinstance(pictures, str | os.PathLike):
        return list_image_files(pictures, Scan()) if os.path.isdir(pictures) else [pictures]
    if isinstance(pictures, np.ndarray | Tensor):
        return list(pictures) if pictures.ndim == 4 else [pictures]
    several = isinstance(pictures, Iterable) and not isinstance(pictures, Image.Image | bytes)
    return list(pictures) if several else [pictures]
