"""Pictures as users hold them in memory, made into the one form that preprocessing takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.mask_folders import list_images
from vitrail.data.sources.scan import Scan
from vitrail.data.windows import Windows
from vitrail.errors import DataError
from vitrail.images.decode import BadImage, convert_image, decode, size_of
from vitrail.markup import Markup, image_uri, tag

REMEDY = (
    "give paths, Pillow images, the bytes of image files, or arrays (H, W, C) or tensors (C, H, W) of uint8 or of floats "
    "in [0, 1]; normalised images go to model(images)"
)
THUMBNAIL = 96  # pixels of its longer side
Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | Tensor


def to_pixels(picture: Any, preprocessing: Preprocessing | Windows | None = None) -> Image.Image | np.ndarray:
    """Returns an upright Pillow image or an array (H, W, C), uint8 or float32 in [0, 1]; without ``preprocessing`` of 3 channels.

    Raises `BadImage` for anything else.
    """
    channels = 3 if preprocessing is None else preprocessing.channels
    if isinstance(picture, str | os.PathLike):
        picture = _read(picture)
    if isinstance(picture, bytes):
        return decode(picture) if preprocessing is None else preprocessing.decode(picture)
    if isinstance(picture, Image.Image):
        return convert_image(picture, channels)
    if isinstance(picture, Tensor):
        picture = _to_array(picture, channels)
    if not isinstance(picture, np.ndarray):
        raise BadImage(f"it is a {type(picture).__name__}")
    if picture.ndim == 3 and picture.shape[0] == channels != picture.shape[2]:
        raise BadImage(f"an array of shape {picture.shape} has the channels first; give torch.from_numpy(array)")
    if not picture.size:
        raise BadImage(f"it has no pixels: its shape is {picture.shape}")
    if picture.dtype == np.uint8:
        return picture
    if not np.issubdtype(picture.dtype, np.floating):
        raise BadImage(f"it holds {picture.dtype}")
    low, high = picture.min(initial=0), picture.max(initial=1)
    if not (low >= 0 and high <= 1):
        raise BadImage(f"its values run from {low:g} to {high:g}")
    return picture.astype(np.float32)


def _to_array(tensor: Tensor, channels: int) -> np.ndarray:
    """A tensor (C, H, W) as an array (H, W, C); one of (H, W) as it is. Raises `BadImage` for other shapes."""
    if tensor.ndim != 2 and (tensor.ndim != 3 or tensor.shape[0] != channels):
        raise BadImage(f"a tensor of shape {tuple(tensor.shape)}; ({channels}, H, W) is required")
    if tensor.is_meta:
        raise BadImage("it has no values: it is on the device meta")
    tensor = tensor.detach().cpu()
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no such type
    return (tensor.movedim(0, -1) if tensor.ndim == 3 else tensor).numpy()


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
        return list_images(pictures, Scan()) if os.path.isdir(pictures) else [pictures]
    if isinstance(pictures, np.ndarray | Tensor):
        return list(pictures) if pictures.ndim == 4 else [pictures]
    several = isinstance(pictures, Iterable) and not isinstance(pictures, Image.Image | bytes)
    return list(pictures) if several else [pictures]


@dataclass(frozen=True)
class Transform:
    """From one picture to the input of a network, as `Task.predict` makes it; what ``model.transform`` is.

    It holds no model, so the workers of a ``DataLoader`` get a few numbers.
    """

    preprocessing: Preprocessing | Windows

    def __call__(self, picture: Picture) -> Tensor:
        """One picture, of any kind that `Task.preprocess` takes, as (C, H, W) float32, normalised, on the CPU.

        Raises `DataError` if the picture cannot be used, and says why.
        """
        return self.read(picture, "the picture")[0]

    def read(self, picture: Picture, name: str) -> tuple[Tensor, tuple[int, int]]:
        """The same, with `Windows` as (V, C, H, W), and the size (height, width) of the upright picture.

        An error calls the picture ``name``.
        """
        try:
            image = to_pixels(picture, self.preprocessing)
            pixels = torch.from_numpy(self.preprocessing.picture(image))  # (C, H, W)
        except BadImage as error:
            raise DataError(f"{name} cannot be used: {error.reason}", REMEDY) from error
        return self.preprocessing.normalise(pixels[None])[0], size_of(image)


def open_image(picture: Picture) -> Image.Image:
    """A picture with up to three channels, upright, in RGB. Raises `BadImage` if it cannot be read or drawn."""
    try:
        image = to_pixels(picture)
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image if image.dtype == np.uint8 else (image * 255).astype(np.uint8))
        image = convert_image(image, 3)
    except (TypeError, ValueError) as error:  # of Pillow, e.g. for an array with another number of channels
        raise BadImage(f"it cannot be drawn: {error}") from error
    assert isinstance(image, Image.Image)
    return image


def draw_thumbnail(
    picture: Picture, side: int = THUMBNAIL, finish: Callable[[Image.Image], Image.Image] = Image.Image.copy
) -> Markup | None:
    """A small image element of a picture, ``side`` pixels long, on which ``finish`` draws; None if it cannot be read or drawn."""
    try:
        image = open_image(picture).copy()
    except BadImage:
        return None
    image.thumbnail((side, side))
    image = finish(image)
    return tag("img", src=image_uri(image, "jpeg"), alt="", width=image.width, height=image.height, style="margin:0")
