"""Decoding the bytes of an image file to upright 8-bit pixels with the requested number of channels.

Axes: C channels, H and W. Sizes are (height, width).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vitrail.errors import ConfigError
from vitrail.untrusted.limits import PIXELS as MAX_PIXELS

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
# of image files; HEIC, AVIF and DICOM, too, which `decode` refuses with the remedy
EXTENSIONS = frozenset(
    {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"}
    | {"heic", "heif", "avif", "dcm", "dicom"}
)
ISO_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", **dict.fromkeys((b"heic", b"heix", b"hevc", b"mif1", b"msf1"), "HEIC")}
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes; the last two are those of BigTIFF
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
UPRIGHT = {  # the transpose that turns an image upright, by EXIF's Orientation
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
    """One image that cannot be used. Code that reads many images records it and continues or stops, by policy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnknownFormat(BadImage):
    """A file of a format that Pillow does not read here."""


def decode(
    content: bytes, *, channels: int = 3, max_pixels: int = MAX_PIXELS, at_least: tuple[int, int] | None = None
) -> Image.Image | np.ndarray:
    """The first frame of an image file, upright, in 8 bits.

    Rules: the format is detected from the content, never from a name; EXIF orientation is applied; transparency is
    composited on white; 12- and 16-bit grey is scaled to 8 bits; CMYK is converted to RGB without a colour profile, and
    profiles are ignored; grey becomes RGB by repetition, colour becomes grey by ITU-R 601 luma. Refused are grey whose values
    fill no more than a sixteenth of their range, 32-bit integers and floats, which have no defined range (for these see
    `vitrail.images.deep_images`), and truncated files.

    Args:
        channels: 3 (mode RGB) or 1 (mode L) gives a Pillow image; 4 (RGBA) or 2 (LA) an array uint8 (H, W, C).
        max_pixels: images with a larger width x height are refused from the header, before memory is allocated.
        at_least: (height, width); a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, but not smaller than this. This
            is several times faster and changes pixels slightly, so only training crops and fast prediction use it.

    Raises `BadImage` with the reason, and `ConfigError` for another number of channels.
    """
    if channels not in MODES:
        raise ConfigError(f"image files cannot have {channels} channels", "use .npy or .npz arrays")
    with open_header(content) as image:
        check_pixels(image.size, max_pixels)
        if at_least is not None:
            is_rotated = _read_orientation(image) >= 5  # stored rotated by 90 degrees
            image.draft(image.mode, at_least if is_rotated else at_least[::-1])
        image.load()
        return convert_image(image, channels)


@contextmanager
def open_header(content: bytes | BinaryIO) -> Iterator[Image.Image]:
    """Opens an image file of one of the `FORMATS` without Pillow's warnings. Only its header is read until it is loaded.

    Raises `BadImage` for whatever is raised here and within the context: Pillow raises many types for a broken file.
    """
    file = BytesIO(content) if isinstance(content, bytes) else content
    with warnings.catch_warnings():
        # by module: if threads leave this filter behind, it hides only Pillow's warnings
        warnings.filterwarnings("ignore", module=r"PIL\.|vitrail\.images\.decode")
        try:
            with Image.open(file, formats=FORMATS) as image:
                yield image
        except BadImage:
            raise
        except Image.UnidentifiedImageError as error:
            raise UnknownFormat(_explain_unknown(content if isinstance(content, bytes) else b"")) from error
        except Exception as error:
            raise BadImage(f"{type(error).__name__}: {error}") from error


def header_size(content: bytes) -> tuple[int, int] | None:
    """(height, width) from the header of an image file, without decoding; None if the header has no size."""
    with suppress(BadImage), open_header(content) as image:
        return image.height, image.width
    return None


def upright_size(content: bytes | BinaryIO) -> tuple[int, int] | None:
    """(height, width) as `header_size`, after the EXIF orientation is applied. Of an open file only the header is read."""
    with suppress(BadImage), open_header(content) as image:
        is_rotated = _read_orientation(image) >= 5
        return (image.width, image.height) if is_rotated else (image.height, image.width)
    return None


def read_orientation(content: bytes | BinaryIO) -> int:
    """EXIF's orientation of an image file, 1 (upright) to 8; 1 for one that states none or cannot be read."""
    with suppress(BadImage), open_header(content) as image:
        return _read_orientation(image)
    return 1


def size_of(image: Image.Image | np.ndarray) -> tuple[int, int]:
    """(height, width)."""
    return image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)


def convert_image(image: Image.Image, channels: int = 3) -> Image.Image | np.ndarray:
    """Converts a Pillow image to upright pixels with the requested number of channels, by the rules of `decode`."""
    if channels not in MODES:
        raise BadImage(f"images cannot have {channels} channels; use arrays")
    image = turn_upright(image)
    if image.mode.startswith("I;16"):
        image = _scale_to_8_bits(image)
    elif image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "whole numbers of 32 bits"
        raise BadImage(f"{kind} have no defined range; give it with --pixel-range LOW,HIGH, or train on such images")
    if channels in (2, 4):
        return np.asarray(image.convert(MODES[channels]))
    if image.has_transparency_data:
        image = composite_on_white(image)
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def looks_like_image(head: bytes) -> bool:
    """Whether the first 16 bytes of a file belong to a format that `decode` supports."""
    starts = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", *TIFF)
    is_ppm = head[:1] == b"P" and head[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6") and head[2:3].isspace()
    return head.startswith(starts) or is_ppm or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _explain_unknown(content: bytes) -> str:
    if not content:
        return "the file is empty"
    if content[4:8] == b"ftyp" and (name := ISO_BRANDS.get(content[8:12])):
        remedy = "convert it to JPEG or PNG, e.g. with `magick mogrify -format jpg FILE`"
        return f"{name} images are not supported; {remedy}"
    if content[128:132] == b"DICM":
        return "DICOM files are not read; export the slices as 16-bit PNG or TIFF, e.g. with `dcmj2pnm +on2`"
    if content.startswith(TIFF):
        return "a TIFF of a kind that Pillow does not read, as of several bands; train on such images, or convert it"
    return "not a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM image"


def check_pixels(size: tuple[int, int], most: int) -> None:
    """Raises `BadImage` for a (width, height) of more than ``most`` pixels."""
    width, height = size
    if width * height > most:
        what = f"{width}x{height} is {width * height / 1e6:.1f} million pixels"
        raise BadImage(f"{what}, over the limit of {most / 1e6:g} (--max-pixels)")


def _read_orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # an image with broken EXIF may still be valid
        return 1


def turn_upright(image: Image.Image) -> Image.Image:
    """Turns an image by its EXIF orientation, and removes the tag."""
    # Pillow rotates a TIFF when it loads it, and removes the tag; so the tag is read after loading
    image.load()
    turn = UPRIGHT.get(_read_orientation(image))
    if turn is None:
        return image
    turned = image.transpose(turn)
    for place in ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"):  # these would rotate it again
        turned.info.pop(place, None)
    return turned


def _scale_to_8_bits(image: Image.Image) -> Image.Image:
    """Scales mode I;16 (any byte order) to L without clipping. Handles TIFF's 12 bits and white-is-zero."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    top = 2 ** tags.get(BITS_PER_SAMPLE, (16,))[0] - 1
    grey = np.asarray(image).astype(np.uint32)  # (H, W)
    if 0 < (highest := int(grey.max(initial=0))) <= top // 16:
        raise BadImage(
            f"its largest value is {highest:,} of {top:,}, which would give {highest * 255 // top + 1} grey levels; "
            f"give the range with --pixel-range 0,{highest}, or train on such images"
        )
    scaled = ((grey * 255 + top // 2) // top).astype(np.uint8)
    if tags.get(PHOTOMETRIC) == 0:
        scaled = 255 - scaled
    if (clear := image.info.get("transparency")) is not None:
        scaled = np.where(grey == clear, np.uint8(255), scaled)
    return Image.fromarray(scaled)


ROWS = 1 << 20  # pixels composited at a time: otherwise several copies of a large image would be in memory


def composite_on_white(image: Image.Image) -> Image.Image:
    """Composites an image of any mode with transparency on white, as RGB."""
    width, height = image.size
    opaque = Image.new("RGB", image.size)
    step = max(1, ROWS // max(width, 1))
    for top in range(0, height, step):
        box = (0, top, width, min(top + step, height))
        part = image.crop(box).convert("RGBA")
        opaque.paste(Image.alpha_composite(Image.new("RGBA", part.size, "white"), part).convert("RGB"), box)
    return opaque
