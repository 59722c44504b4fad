"""Preprocessing: resize, crop and normalise an image for a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from PIL import Image

from vitrail.errors import ConfigError, nearest
from vitrail.images.decode import BadImage, convert_image
from vitrail.images.deep_images import decode_file
from vitrail.images.pixel_range import Levels, check_levels
from vitrail.untrusted.limits import PIXELS

if TYPE_CHECKING:
    from torch import Tensor

Resize = Literal["short", "squash", "fit", "none"]
Rounding = Literal["floor", "round"]
CropRounding = Literal["even", "floor"]
Interpolation = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS = {name: Image.Resampling[name.upper()] for name in get_args(Interpolation)}
CHOICES = {"resize": Resize, "rounding": Rounding, "crop_rounding": CropRounding, "interpolation": Interpolation}
# mean and std of the channels, for values in [0, 1]: of ImageNet, and of the images that CLIP learned from
IMAGENET_COLOURS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP_COLOURS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
MAX_SIDE = 16_384  # pixels of a model's input; guards against absurd values in untrusted weights
MIN_STD = 1e-6  # of values in [0, 1]; far smaller ones make every pixel infinite
# an extreme aspect ratio can exceed this many pixels after resizing; then only the crop is computed
WHOLE_PIXELS = 16_000_000


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How images are prepared for a model in evaluation and inference; stored with every checkpoint.

    Args:
        size: (height, width) of the model's input.
        resize: `short` scales the shorter side to `resize_to` and keeps the aspect ratio (if `size` is not square: to the
            smallest image that covers `size` x `resize_to` / its shorter side); `squash` ignores the aspect ratio and
            scales to `size` or, if `resize_to` is given, to that larger image; `fit` scales to the largest image that lies in
            `size`, with a border of the mean colour at the right or below; `none` does not resize.
        resize_to: pixels of the shorter side before the centre crop; at least the shorter side of `size`.
        rounding: of the longer side after `short`: `floor` (timm, torchvision) or `round` (big_vision).
        crop_rounding: of the centre crop's corner (W - w) / 2: `even`, half to even (timm, torchvision), or `floor`
            (TensorFlow). An image smaller than the crop gets a black border.
        interpolation: Pillow's filter; all of them antialias when shrinking, except `nearest`.
        mean, std: one per channel, for values in [0, 1].
        pixel_range: the values of images of more than 8 bits, or of floats, that become 0 and 1; None for images of 8 bits.

    Raises:
        ConfigError: an invalid value or combination.
    """

    size: tuple[int, int]
    resize: Resize = "squash"
    resize_to: int | None = None
    rounding: Rounding = "floor"
    crop_rounding: CropRounding = "even"
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    pixel_range: Levels | None = None

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise ConfigError(f"{name} is {value!r}", nearest(str(value), get_args(choices)))
        sides = (*self.size, *([] if self.resize_to is None else [self.resize_to]))
        if len(self.size) != 2 or not all(isinstance(side, int) and 1 <= side <= MAX_SIDE for side in sides):
            fact = f"size is {self.size}" + (f", resize_to {self.resize_to}" if len(sides) > 2 else "")
            raise ConfigError(fact, f"give (height, width) in pixels, whole numbers up to {MAX_SIDE:,}")
        scaled = self.resize == "short" or (self.resize == "squash" and self.resize_to is not None)
        if scaled and (self.resize_to or 0) < min(self.size):
            fact = f"resize_to is {self.resize_to}, below the {min(self.size)} pixels of the crop"
            raise ConfigError(fact, f"set it to {min(self.size)} or more")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != len(self.std) or not finite or min(self.std, default=0) < MIN_STD:
            fact = f"mean {self.mean} and std {self.std}"
            raise ConfigError(fact, f"give one mean and one positive std of {MIN_STD:g} or more per channel")
        if self.pixel_range is not None:
            check_levels(self.pixel_range)

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
        """timm's evaluation transform (timm/data/transforms_factory.py): for 224, shorter side 248, centre crop 224."""
        size = (size, size) if isinstance(size, int) else size
        to = math.floor(min(size) / crop_fraction)
        rounding = "floor" if size[0] == size[1] else "round"  # timm resizes with another function, which rounds
        return cls(
            size=size, resize="short", resize_to=to, rounding=rounding, interpolation=interpolation, mean=mean, std=std
        )

    @classmethod
    def paper(cls, size: int | tuple[int, int] = 224, *, channels: int = 3) -> Preprocessing:
        """The evaluation transform of the paper's code (vit_jax/input_pipeline.py): squash to size, bilinear, [-1, 1].

        When shrinking, TensorFlow's bilinear reads four pixels; Pillow's antialiases.
        """
        size = (size, size) if isinstance(size, int) else size
        return cls(size=size, interpolation="bilinear", mean=(0.5,) * channels, std=(0.5,) * channels)

    @property
    def channels(self) -> int:
        return len(self.mean)

    def at(self, size: tuple[int, int]) -> Preprocessing:
        """The same for another input size; `resize_to` keeps its ratio to the crop."""
        to = None if self.resize_to is None else math.floor(min(size) * self.resize_to / min(self.size))
        return replace(self, size=size, resize_to=to)

    def override(
        self,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        resize: int | str | None = None,
        pixel_range: Sequence[float] | None = None,
    ) -> Preprocessing:
        """The same with some values replaced, for weights that do not say how they were trained. Raises `ConfigError`.

        Args:
            mean, std: for values in [0, 1], one number per channel or one for all.
            resize: pixels of the shorter side before the crop, or "squash", "fit" or "none".
            pixel_range: two numbers, as in the constructor.
        """
        changes: dict[str, Any] = {}
        if resize is not None:
            scaled = isinstance(resize, int)
            changes |= {"resize": "short" if scaled else resize, "resize_to": resize if scaled else None}
        if pixel_range is not None:
            changes["pixel_range"] = tuple(pixel_range)
        for name, numbers in (("mean", mean), ("std", std)):
            if numbers is not None:
                changes[name] = tuple(numbers) * (self.channels if len(numbers) == 1 else 1)
        changed = replace(self, **changes)
        if changed.channels != self.channels:
            fact = f"mean {changed.mean} and std {changed.std} for {self.channels} channels"
            raise ConfigError(fact, "give one number per channel, or one for all")
        return changed

    def decode(
        self, content: bytes, *, max_pixels: int = PIXELS, at_least: tuple[int, int] | None = None
    ) -> Image.Image | np.ndarray:
        """Decodes an image file for `picture`; the arguments are those of `decode_file`."""
        how = {"max_pixels": max_pixels, "at_least": at_least}
        return decode_file(content, channels=self.channels, levels=self.pixel_range, **how)

    def picture(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """The model's input before normalisation: uint8 (C, h, w), or float32 in [0, 1] for a float array.

        Args:
            image: a Pillow image of any mode, or an array (H, W, C) or (H, W), uint8 or float32 in [0, 1].

        Raises `BadImage` for an array of a wrong shape or number of channels.
        """
        planes = self._split_planes(image)
        if self.resize == "fit":
            return stack_planes([self._fit(*pair) for pair in enumerate(planes)])
        return stack_planes([self._resize_and_crop(plane) for plane in planes])

    def mask(self, inside: np.ndarray) -> np.ndarray:
        """A mask of an image, bool (H, W), resized and cropped as the image: the covered share of each pixel, float32 (h, w)."""
        one_channel = replace(self, interpolation="box", mean=(0.0,), std=(1.0,))
        return one_channel.picture(inside.astype(np.float32))[0]

    def normalise(self, images: Tensor) -> Tensor:
        """(x / 255 - mean) / std of uint8 images (B, C, H, W), in fp32; floats must be in [0, 1] already."""
        scaled = images.float() if images.is_floating_point() else images.float() / 255
        mean, std = (_per_channel(values, scaled) for values in (self.mean, self.std))
        return (scaled - mean) / std

    def denormalise(self, images: Tensor) -> Tensor:
        """The inverse of `normalise`: images (B, C, H, W) in fp32, clamped to [0, 1]."""
        images = images.float()
        mean, std = (_per_channel(values, images) for values in (self.mean, self.std))
        return (images * std + mean).clamp(0, 1)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) to which an image of that size is scaled before the crop."""
        if self.resize == "none":
            return height, width
        if self.resize == "fit":
            scale = min(self.size[0] / height, self.size[1] / width)
            return max(round(height * scale), 1), max(round(width * scale), 1)
        shorter = min(self.size) if self.resize_to is None else self.resize_to
        rounded = math.floor if self.rounding == "floor" else round
        cover_height, cover_width = (shorter * side // min(self.size) for side in self.size)
        if self.resize == "squash":
            return cover_height, cover_width
        if width * cover_height <= height * cover_width:
            return rounded(cover_width * height / width), cover_width
        return cover_height, rounded(cover_height * width / height)

    def visible_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """(top, left, bottom, right) of what the model sees of an image of that size, in pixels, or beyond it with a border."""
        tall, wide, top, left = self._crop_geometry(height, width)
        down, across = height / tall, width / wide
        return top * down, left * across, (top + self.size[0]) * down, (left + self.size[1]) * across

    def to_dict(self) -> dict[str, Any]:
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if self.pixel_range is None:  # as earlier versions wrote it
            del values["pixel_range"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_dict`. Raises `ConfigError` for an unknown key."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown preprocessing setting {name!r}", nearest(name, known))
        if "size" not in values:
            raise ConfigError("preprocessing has no 'size'", "give size: [height, width]")
        plain: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in values.items()}
        return cls(**plain)

    def _split_planes(self, image: Image.Image | np.ndarray) -> list[Image.Image]:
        """The Pillow images to resize: the image itself if Pillow has a mode for it, otherwise one per channel."""
        if not isinstance(image, np.ndarray):
            image = convert_image(image, self.channels)
        if not isinstance(image, np.ndarray):
            return [image]
        array = image[..., None] if image.ndim == 2 else image  # (H, W, C)
        if array.ndim != 3 or array.shape[2] != self.channels:
            raise BadImage(f"an array of shape {image.shape}; (H, W, {self.channels}) is required")
        if array.dtype not in (np.uint8, np.float32):
            raise BadImage(f"an array of {array.dtype}; uint8 or float32 in [0, 1] is required")
        if array.dtype == np.uint8 and self.channels == 3:
            return [Image.fromarray(array)]
        return [Image.fromarray(np.ascontiguousarray(array[..., channel])) for channel in range(self.channels)]

    def _crop_geometry(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(height, width) of the scaled image, and top and left of the crop in it."""
        tall, wide = self.resized(height, width)
        if self.resize == "fit":
            return tall, wide, 0, 0
        corner = round if self.crop_rounding == "even" else math.floor
        return tall, wide, corner((tall - self.size[0]) / 2), corner((wide - self.size[1]) / 2)

    def _fit(self, plane: int, image: Image.Image) -> Image.Image:
        """Scaled to lie in `size`, with a border of the mean colour. ``plane`` is the channel of an image that has only one."""
        tall, wide = self.resized(image.height, image.width)
        resample = INTERPOLATIONS[self.interpolation]
        scaled = image if (tall, wide) == (image.height, image.width) else image.resize((wide, tall), resample)
        if (tall, wide) == self.size:
            return scaled
        levels = tuple(round(255 * mean) for mean in self.mean)
        single = self.mean[plane] if image.mode == "F" else levels[plane]
        whole = Image.new(image.mode, self.size[::-1], single if len(image.getbands()) == 1 else levels)
        whole.paste(scaled)
        return whole

    def _resize_and_crop(self, image: Image.Image) -> Image.Image:
        """Scaled and cropped to `size`."""
        height, width = self.size
        tall, wide, top, left = self._crop_geometry(image.height, image.width)
        resample = INTERPOLATIONS[self.interpolation]
        if self.resize != "none" and tall * wide > WHOLE_PIXELS:
            top, left, bottom, right = self.visible_box(image.height, image.width)
            box = (left, top, min(right, image.width), min(bottom, image.height))
            return image.resize((width, height), resample, box)
        if (tall, wide) != (image.height, image.width):
            image = image.resize((wide, tall), resample)
        if (tall, wide) == self.size:
            return image
        return image.crop((left, top, left + width, top + height))


def stack_planes(planes: Sequence[Image.Image]) -> np.ndarray:
    """The pixels of images of one size, side by side as channels: (C, h, w), uint8 or float32 in [0, 1]."""
    pixels = [np.asarray(plane) for plane in planes]  # each (h, w) or (h, w, C)
    picture = np.concatenate([each.reshape(*each.shape[:2], -1) for each in pixels], axis=2)
    picture = np.ascontiguousarray(picture.transpose(2, 0, 1))
    return picture if picture.dtype == np.uint8 else picture.clip(0, 1)  # cubic filters overshoot


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    """(C, 1, 1), copied to the device of ``like`` without waiting for it."""
    return like.new_tensor(values, device="cpu").view(-1, 1, 1).to(like.device, non_blocking=True)
