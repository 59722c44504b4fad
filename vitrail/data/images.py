"""From the bytes of an image file to the pixels a model sees: decoding, where every legal oddity of a file ends, then
the declared geometry and normalisation.

Axes: B images, C channels, H and W as the file has them, h and w as the model takes them. Sizes are (height, width).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from vitrail.data.transparency import on_white
from vitrail.errors import ConfigError, nearest

if TYPE_CHECKING:
    from torch import Tensor

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
            warnings.filterwarnings("ignore", module=r"PIL\.|vitrail\.data\.images")
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


Resize = Literal["short", "squash", "none"]
Interpolation = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# only a long thin strip has more pixels than this once resized; of it no more than the crop is computed
MOST_SIDE = 16_384  # pixels of a model's input: no model sees more, but weights from strangers may say so
WHOLE_PIXELS = 16_000_000


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes the input of a model when it is judged or used; stored with every checkpoint.

    Args:
        size: (height, width) that the model takes.
        resize: `short` scales the shorter side to `resize_to` and keeps the shape (where `size` is not square: to the
            smallest picture that covers `size` x `resize_to` / its shorter side); `squash` scales whatever the shape, to
            `size` or, where `resize_to` is given, to that larger picture; `none` leaves the picture.
        resize_to: pixels of the shorter side before the centre crop; at least the shorter side of `size`.
        rounding: of the longer side after `short`: `floor` (timm, torchvision) or `round` (big_vision).
        crop_rounding: of the centre crop's corner (W - w) / 2: `even`, a half goes to the even neighbour (timm,
            torchvision), or `floor` (TensorFlow). A picture smaller than the crop gets a black border.
        interpolation: Pillow's filter; each of them averages where it shrinks, except `nearest`.
        mean, std: one for each channel, of values in [0, 1].

    Raises:
        ConfigError: a value or a combination that cannot be meant.
    """

    size: tuple[int, int]
    resize: Resize = "squash"
    resize_to: int | None = None
    rounding: Literal["floor", "round"] = "floor"
    crop_rounding: Literal["even", "floor"] = "even"
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        allowed = {"resize": ("short", "squash", "none"), "rounding": ("floor", "round")}
        allowed |= {"crop_rounding": ("even", "floor"), "interpolation": tuple(INTERPOLATIONS)}
        for name, names in allowed.items():
            if getattr(self, name) not in names:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", nearest(str(getattr(self, name)), names))
        sides = (*self.size, *([] if self.resize_to is None else [self.resize_to]))
        if len(self.size) != 2 or not all(isinstance(side, int) and 1 <= side <= MOST_SIDE for side in sides):
            fact = f"size is {self.size}" + (f", resize_to {self.resize_to}" if len(sides) > 2 else "")
            raise ConfigError(fact, f"give (height, width) in pixels, whole numbers up to {MOST_SIDE:,}")
        scaled = self.resize == "short" or (self.resize == "squash" and self.resize_to is not None)
        if scaled and (self.resize_to or 0) < min(self.size):
            fact = f"resize_to is {self.resize_to}, under the {min(self.size)} pixels of the crop"
            raise ConfigError(fact, f"set it to {min(self.size)} or more")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != len(self.std) or not finite or min(self.std, default=0) <= 0:
            fact = f"mean {self.mean} and std {self.std}"
            raise ConfigError(fact, "give one mean and one positive std for each channel")

    @classmethod
    def timm(
        cls,
        size: int | tuple[int, int] = 224,
        *,
        crop_fraction: float = 0.9,
        interpolation: Interpolation = "bicubic",
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
    ) -> Preprocessing:
        """timm's evaluation transform (timm/data/transforms_factory.py): for 224, shorter side 248, centre crop 224.

        Where ``size`` is no square it resizes with a function of its own, which rounds.
        """
        size = (size, size) if isinstance(size, int) else size
        to = math.floor(min(size) / crop_fraction)
        rounding = "floor" if size[0] == size[1] else "round"
        return cls(
            size=size, resize="short", resize_to=to, rounding=rounding, interpolation=interpolation, mean=mean, std=std
        )

    @classmethod
    def paper(cls, size: int | tuple[int, int] = 224, *, channels: int = 3) -> Preprocessing:
        """What the paper's code evaluates with (vit_jax/input_pipeline.py): squashed to size, bilinear, into [-1, 1].

        TensorFlow's bilinear takes four pixels even where it shrinks a picture; Pillow's averages all it covers.
        """
        size = (size, size) if isinstance(size, int) else size
        return cls(size=size, interpolation="bilinear", mean=(0.5,) * channels, std=(0.5,) * channels)

    @property
    def channels(self) -> int:
        return len(self.mean)

    def at(self, size: tuple[int, int]) -> Preprocessing:
        """The same for another input size: what `short` scales to keeps its proportion to the crop."""
        to = None if self.resize_to is None else math.floor(min(size) * self.resize_to / min(self.size))
        return replace(self, size=size, resize_to=to)

    def stated(
        self,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        resize: int | str | None = None,
    ) -> Preprocessing:
        """The same with what a person knows better than a file of weights, which does not say how it was trained.

        Args:
            mean, std: of values in [0, 1], one number for each channel or one for all.
            resize: pixels of the shorter side before the crop, or "squash" or "none".

        Raises:
            ConfigError: as on construction.
        """
        told: dict[str, Any] = {}
        if resize is not None:
            scaled = isinstance(resize, int)
            told |= {"resize": "short" if scaled else resize, "resize_to": resize if scaled else None}
        for name, numbers in (("mean", mean), ("std", std)):
            if numbers is not None:
                told[name] = tuple(numbers) * (self.channels if len(numbers) == 1 else 1)
        changed = replace(self, **told)
        if changed.channels != self.channels:
            fact = f"mean {changed.mean} and std {changed.std} for {self.channels} channels"
            raise ConfigError(fact, "give one number for each channel, or one for all")
        return changed

    def picture(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """The model's input before normalisation: uint8 (C, h, w), or float32 in [0, 1] where the array was float.

        Args:
            image: a Pillow image of any mode, or an array (H, W, C) or (H, W), uint8 or float32 in [0, 1].

        Raises:
            BadImage: an array of another shape or number of channels.
        """
        planes = [np.asarray(self._framed(part)) for part in self._parts(image)]  # each (h, w) or (h, w, 3)
        picture = np.concatenate([plane.reshape(*self.size, -1) for plane in planes], axis=2)  # (h, w, C)
        picture = np.ascontiguousarray(picture.transpose(2, 0, 1))  # (C, h, w)
        return picture if picture.dtype == np.uint8 else picture.clip(0, 1)  # cubic filters overshoot

    def normalise(self, images: Tensor) -> Tensor:
        """(x / 255 - mean) / std of uint8 images (B, C, H, W), in fp32; floats are taken as already in [0, 1]."""
        scaled = images.float() if images.is_floating_point() else images.float() / 255
        mean, std = (scaled.new_tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))  # (C, 1, 1)
        return (scaled - mean) / std

    def restored(self, images: Tensor) -> Tensor:
        """What `normalise` made these images (B, C, H, W) from: fp32 in [0, 1]."""
        images = images.float()
        mean, std = (images.new_tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))  # (C, 1, 1)
        return (images * std + mean).clamp(0, 1)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) to which a picture of that size is scaled before the crop."""
        if self.resize == "none":
            return height, width
        shorter = min(self.size) if self.resize_to is None else self.resize_to
        rounded = math.floor if self.rounding == "floor" else round
        cover_height, cover_width = (shorter * side // min(self.size) for side in self.size)
        if self.resize == "squash":
            return cover_height, cover_width
        if width * cover_height <= height * cover_width:
            return rounded(cover_width * height / width), cover_width
        return cover_height, rounded(cover_height * width / height)

    def seen(self, height: int, width: int) -> tuple[float, float, float, float]:
        """(top, left, bottom, right) of what the model sees of a picture of that size, in its own pixels.

        Where `none` puts a black border around a small picture, that lies beyond its edges.
        """
        tall, wide, top, left = self._cropped(height, width)
        down, across = height / tall, width / wide
        return top * down, left * across, (top + self.size[0]) * down, (left + self.size[1]) * across

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_dict`; a key it does not know is a ConfigError."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"preprocessing has no {name!r}", nearest(name, known))
        if "size" not in values:
            raise ConfigError("preprocessing without 'size'", "give size: [height, width]")
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**arguments)

    def _parts(self, image: Image.Image | np.ndarray) -> list[Image.Image]:
        """Pillow images to resize alike: the picture itself where Pillow has a mode for it, else its planes."""
        if not isinstance(image, np.ndarray):
            image = pixels(image, self.channels)
        if not isinstance(image, np.ndarray):
            return [image]
        array = image[..., None] if image.ndim == 2 else image  # (H, W, C)
        if array.ndim != 3 or array.shape[2] != self.channels:
            raise BadImage(f"an array of shape {image.shape}, where (H, W, {self.channels}) is needed")
        if array.dtype not in (np.uint8, np.float32):
            raise BadImage(f"an array of {array.dtype}, where uint8 or float32 in [0, 1] is needed")
        if array.dtype == np.uint8 and self.channels == 3:
            return [Image.fromarray(array)]
        return [Image.fromarray(np.ascontiguousarray(array[..., channel])) for channel in range(self.channels)]

    def _cropped(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(height, width) of the scaled picture, and where the crop begins on it: top and left."""
        tall, wide = self.resized(height, width)
        corner = round if self.crop_rounding == "even" else math.floor
        return tall, wide, corner((tall - self.size[0]) / 2), corner((wide - self.size[1]) / 2)

    def _framed(self, image: Image.Image) -> Image.Image:
        """Scaled and cropped to `size`."""
        height, width = self.size
        tall, wide, top, left = self._cropped(image.height, image.width)
        resample = INTERPOLATIONS[self.interpolation]
        if self.resize != "none" and tall * wide > WHOLE_PIXELS:
            top, left, bottom, right = self.seen(image.height, image.width)
            box = (left, top, min(right, image.width), min(bottom, image.height))
            return image.resize((width, height), resample, box)
        if (tall, wide) != (image.height, image.width):
            image = image.resize((wide, tall), resample)
        if (tall, wide) == self.size:
            return image
        return image.crop((left, top, left + width, top + height))
