"""How a picture becomes the input of a network: resize, crop, normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from vitrail.data.decode import BadImage, pixels
from vitrail.errors import ConfigError, nearest

if TYPE_CHECKING:
    from torch import Tensor

Resize = Literal["short", "squash", "none"]
Interpolation = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MOST_SIDE = 16_384  # pixels of a model's input: no model sees more, but weights from strangers may say so
# only a long thin strip has more pixels than this once resized; of it no more than the crop is computed
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
