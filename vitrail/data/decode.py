"""From the bytes of an image file to the pixels a model sees: decoding, where every legal oddity of a file ends, then
the declared geometry and normalisation.

Axes: B images, C channels, H and W as the file has them, h and w as the model takes them. Sizes are (height, width).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from vitrail.errors import ConfigError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
MAX_PIXELS = 64_000_000
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}

# the value of EXIF's Orientation tag -> what sets the picture upright
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION, BITS_PER_SAMPLE, PHOTOMETRIC = 0x0112, 258, 262  # tags of EXIF and TIFF


class BadImage(Exception):
    """One image that cannot be used, whatever the cause. Who reads many names it and goes on, or stops, by policy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decode(
    content: bytes, *, channels: int = 3, max_pixels: int = MAX_PIXELS, at_least: tuple[int, int] | None = None
) -> Image.Image | np.ndarray:
    """The first frame of an image file, upright, in 8 bits.

    Rules: the format is told from the content, never from a name; EXIF orientation is applied; transparency is laid on
    white; 12- and 16-bit grey is scaled to 8 bits; CMYK becomes RGB without a colour profile, and profiles are left
    alone; grey files become RGB by repetition, colour files grey by ITU-R 601 luma. Integers of 32 bits and floats have
    no stated range of brightness and are refused, and so is a truncated file.

    Args:
        channels: 3 (mode RGB) or 1 (mode L) gives a Pillow image; 4 (RGBA) or 2 (LA) an array uint8 (H, W, C).
        max_pixels: refused from the header, before memory is taken, above this width x height.
        at_least: (height, width); a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, no smaller than this. That
            is several times faster and changes pixels slightly, so only training crops and fast prediction ask for it.

    Raises:
        BadImage: with the reason, for every way in which a file can be broken.
        ConfigError: no image file has that number of channels.
    """
    if channels not in MODES:
        raise ConfigError(f"an image file cannot give {channels} channels", "give such pictures as .npy or .npz arrays")
    try:
        with warnings.catch_warnings():
            # by module: a filter that threads leave behind, out of order, hides no warnings but Pillow's
            warnings.filterwarnings("ignore", module=r"PIL\.|vitrail\.data\.decode")
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                _check_pixels(image, max_pixels)
                if at_least is not None:
                    _draft(image, at_least)
                image.load()
                return pixels(image, channels)
    except BadImage:
        raise
    except Image.UnidentifiedImageError as error:
        known = "a JPEG, PNG, WebP, BMP, GIF or TIFF image"
        raise BadImage(f"not {known}" if content else "the file is empty") from error
    except Exception as error:  # Pillow raises six kinds and more for a broken file
        raise BadImage(f"{type(error).__name__}: {error}") from error


def header_size(content: bytes) -> tuple[int, int] | None:
    """(height, width) as the header of an image file says, without decoding; None where it says nothing."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                return image.height, image.width
    except Exception:
        return None


def pixels(image: Image.Image, channels: int = 3) -> Image.Image | np.ndarray:
    """A Pillow image upright and in the asked number of channels: the second half of `decode`, by the same rules."""
    if channels not in MODES:
        raise BadImage(f"an image cannot give {channels} channels; give such pictures as arrays")
    image = _upright(image)
    if image.mode.startswith("I;16"):
        image = _eight_bits(image)
    elif image.mode in ("I", "F"):
        raise BadImage(f"mode {image.mode} states no range of brightness; save it with 8 or 16 bits a channel")
    if channels in (2, 4):
        return np.asarray(image.convert(MODES[channels]))
    if image.has_transparency_data:
        image = on_white(image)
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def looks_like_image(head: bytes) -> bool:
    """Whether the first 16 bytes of a file are those of a format that `decode` takes."""
    starts = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
    return head.startswith(starts) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _check_pixels(image: Image.Image, most: int) -> None:
    if image.width * image.height > most:
        millions = image.width * image.height / 1e6
        raise BadImage(
            f"{image.width}x{image.height} is {millions:.1f} million pixels, over the limit of {most / 1e6:g}"
        )


def _draft(image: Image.Image, at_least: tuple[int, int]) -> None:
    height, width = at_least
    if _orientation(image) >= 5:  # the file lies on its side
        height, width = width, height
    image.draft(image.mode, (width, height))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # broken EXIF says nothing about the picture, which may be sound
        return 1


def _upright(image: Image.Image) -> Image.Image:
    # Pillow turns a TIFF by itself as it loads, and takes the tag away; so this is asked after loading
    image.load()
    turn = UPRIGHT.get(_orientation(image))
    if turn is None:
        return image
    turned = image.transpose(turn)
    for place in ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"):  # what would turn it once more
        turned.info.pop(place, None)
    return turned


def _eight_bits(image: Image.Image) -> Image.Image:
    """Mode I;16 (any byte order) scaled, not clipped, to L; TIFF's 12 bits and white-is-zero are heeded."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    top = 2 ** tags.get(BITS_PER_SAMPLE, (16,))[0] - 1
    grey = np.asarray(image).astype(np.uint32)  # (H, W)
    scaled = ((grey * 255 + top // 2) // top).astype(np.uint8)
    if tags.get(PHOTOMETRIC) == 0:
        scaled = 255 - scaled
    if (clear := image.info.get("transparency")) is not None:
        scaled = np.where(grey == clear, np.uint8(255), scaled)
    return Image.fromarray(scaled)


ROWS = 1 << 20  # pixels that are laid on white at one time: several copies of all of a large picture would be held else


def on_white(image: Image.Image) -> Image.Image:
    """A picture of any mode with transparency as RGB, what is clear of it white."""
    width, height = image.size
    opaque = Image.new("RGB", image.size)
    step = max(1, ROWS // max(width, 1))
    for top in range(0, height, step):
        box = (0, top, width, min(top + step, height))
        seen = image.crop(box).convert("RGBA")
        opaque.paste(Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB"), box)
    return opaque
