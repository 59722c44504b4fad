"""Reading the pixels of mask files as numbers or colours. H and W of a mask."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops

from vitrail.images.decode import BadImage, open_header
from vitrail.untrusted.limits import PIXELS

IGNORED = 255  # the value of pixels without a class; so there are at most 255 classes
WIDE_VOID = (65_535, -1)  # of 16 and 32 bits, pixels without a class
Colour = tuple[int, int, int]


def encode_colours(colours: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Encodes each colour as one number (..., 3): red + 256 green + 65,536 blue."""
    return colours.astype(np.uint32) @ np.array([1, 256, 65536], np.uint32)


def decode_mask(content: bytes) -> NDArray[np.uint8]:
    """Reads the stored values of a mask: (H, W) uint8 of palette, grey and 1-bit images, or (H, W, 3) of colour images.

    A palette gives its indices, not its colours. Masks have no EXIF orientation. Raises `BadImage` as `open_mask`.
    """
    image = open_mask(content)
    return np.asarray(image) if image.mode == "RGB" else read_numbers(image)


def open_mask(content: bytes) -> Image.Image:
    """Loads a mask in one of the modes 1, L, P and RGB. Transparency is left out.

    In numbers of 16 and 32 bits 65,535 and -1 are pixels without a class, which 255 stands for here. Raises `BadImage` for
    anything but a lossless image, and for other values above 255.
    """
    image = _load(content)
    return image if image.mode in ("1", "L", "P", "RGB") else _narrow(image)


def decode_ids(content: bytes) -> NDArray[np.integer]:
    """Reads a map of ids (H, W): numbers of 1 to 32 bits as they are stored, levels of colours that are all grey.

    Raises `BadImage` as `open_mask`, but for no value of 0 to 2^31 - 1.
    """
    image = _load(content)
    numbers = np.asarray(image)[..., 0] if image.mode == "RGB" and is_grey(image) else np.asarray(image)
    if numbers.ndim != 2:
        raise BadImage(f"the map has the mode {image.mode}; save one number for each object")
    if numbers.dtype.kind in "bu":
        return numbers.astype(np.uint8) if numbers.dtype == bool else numbers
    wrong = numbers[~((numbers >= 0) & (numbers < 2**31) & (numbers == np.floor(numbers)))]
    if wrong.size:
        raise BadImage(f"the map has the value {wrong[0]:g}; save objects as whole numbers from 1, and 0 for none")
    return numbers.astype(np.int64)


def _load(content: bytes) -> Image.Image:
    """Loads a lossless image, without its transparency. Raises `BadImage`."""
    try:
        with open_header(content) as image:
            if image.format in ("JPEG", "WEBP"):
                raise BadImage(f"stored in {image.format}, which does not keep values exactly; save it as PNG")
            if image.width * image.height > PIXELS:
                raise BadImage(f"{image.width} x {image.height} pixels, over {PIXELS:,}")
            image.load()
    except BadImage as error:
        raise BadImage(f"the mask: {error.reason}") from error
    if image.mode in ("LA", "PA"):
        return image.getchannel(0)
    return image.convert("RGB") if image.mode in ("RGBA", "RGBX") else image


def _narrow(image: Image.Image) -> Image.Image:
    """Numbers of 16 or 32 bits, or floats, as 8 bits."""
    numbers = np.asarray(image)
    if numbers.ndim != 2:
        raise BadImage(f"the mask has the mode {image.mode}; save numbers of 8 bits, or colours as RGB")
    narrow = np.where(np.isin(numbers, WIDE_VOID), IGNORED, numbers)
    if (wrong := np.unique(narrow[~((narrow >= 0) & (narrow <= IGNORED) & (narrow == np.floor(narrow)))])).size:
        shown = ", ".join(f"{value:g}" for value in wrong[:5].tolist())
        remedy = (
            "save classes as numbers up to 254, and 255 for no class; maps of objects belong into a folder 'instances'"
        )
        raise BadImage(f"the mask has the values {shown}; {remedy}")
    return Image.fromarray(narrow.astype(np.uint8))


def read_numbers(image: Image.Image) -> NDArray[np.uint8]:
    """Returns the numbers of a mask, (H, W): 0 and 1 of 1 bit, indices of a palette, levels of colours that are all grey.

    Raises `BadImage` for other colours.
    """
    if image.mode != "RGB":
        return np.asarray(image).astype(np.uint8)
    if not is_grey(image):
        raise BadImage("the mask has colours, others have numbers; save all masks in one mode")
    return np.asarray(image)[..., 0]


def is_grey(image: Image.Image) -> bool:
    """Whether red, green and blue are equal in every pixel of an RGB image."""
    red, *others = image.split()
    return all(ImageChops.difference(red, other).getbbox() is None for other in others)
