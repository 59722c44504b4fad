"""The base classes of model configs: frozen values that are validated on creation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

from vitrail.errors import ConfigError, nearest

# Fields that do not affect the outputs of given weights: they are used for initialisation or in training only.
INITIALISATION_FIELDS = frozenset({"initial", "head_bias", "layer_scale"})
TRAINING_FIELDS = frozenset({"drop_path", "dropout", "attention_dropout", "patch_dropout", "checkpoint"})
TRAINING_FIELDS |= {"rope_shift", "rope_jitter", "rope_rescale"}

# Valid values of fields, and the numerics that they stand for.

# the approximation in the paper's code, the exact function, and x sigmoid(1.702 x) (OpenAI's CLIP)
GELUS = ("tanh", "exact", "quick")

# eps of kernel standardisation, and whether it is added to the variance or to the standard deviation
STANDARDISATIONS = {
    "bit": (1e-10, "variance"),  # BiT's code
    "timm": (1e-8, "variance"),  # timm and transformers, for BiT and for hybrids
    "vit": (1e-5, "deviation"),  # the ViT paper's code, for hybrids
}
GROUPS = 32  # number of groups in all group norms (BiT, Kolesnikov et al. 2020, section 2)

# interpolation of tables: half width of the kernel, parameter of a cubic one, aligned corners, antialiasing
RESIZES = {
    "paper": (1, 0.0, True, False),  # scipy.ndimage.zoom(order=1), as in the paper's code, with aligned corners
    "bilinear": (1, 0.0, False, False),
    "bilinear-antialias": (1, 0.0, False, True),
    "bicubic": (2, -0.75, False, False),  # DeiT, which found that bilinear shortens the vectors
    "bicubic-antialias": (2, -0.5, False, True),  # timm
}

# The type of a field states its valid values.
Pair = tuple[int, int]  # (height, width) in pixels, or one number for a square
Stages = tuple[int, ...]  # one positive integer for each stage
Count = int  # from 0; an int is at least 1
Share = float  # in [0, 1)
Positive = float  # above 0


def is_whole(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_stages(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_whole, value))


# by type: the check of a value, and the remedy
VALID: dict[Any, tuple[Callable[[Any], bool], str]] = {
    "Pair": (lambda value: is_stages(value) and len(value) == 2, "pixels, such as 224, or (height, width)"),
    "Pair | None": (lambda value: value is None or (is_stages(value) and len(value) == 2), "None, or (rows, columns)"),
    "int | None": (lambda value: value is None or is_whole(value), "None, or an integer of at least 1"),
    "Stages": (is_stages, "one positive integer for each stage"),
    "Count": (lambda value: is_whole(value, 0), "an integer of at least 0"),
    "int": (is_whole, "an integer of at least 1"),
    "Share": (lambda value: is_number(value) and 0 <= value < 1, "a fraction in [0, 1)"),
    "Positive": (lambda value: is_number(value) and value > 0, "a number above 0, as 1e-6"),
    "float": (is_number, "a number, such as 0.0"),
    "float | None": (lambda value: value is None or is_number(value), "None or a number, as 1e-4"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
}


@dataclass(frozen=True, kw_only=True)
class CheckedConfig:
    """Dataclass whose fields are validated on creation: by their types, by `CHOICES` and by `_check_together`.

    Raises:
        ConfigError: names the invalid field, its value and the valid values.
    """

    about: ClassVar[str]  # for messages: "a ViT", "a Swin Transformer"
    CHOICES: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def __post_init__(self) -> None:
        stages = [field.name for field in fields(self) if field.type == "Stages"]
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "Pair" and is_whole(value):
                value = (value, value)
            if field.type in VALID:
                is_valid, remedy = VALID[field.type]
                self._check(name, is_valid(value), remedy)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        for name, known in self.CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name} is {value!r}", nearest(str(value), known))
        for name in stages:
            count = len(getattr(self, stages[0]))
            self._check(name, len(getattr(self, name)) == count, f"one number for each of the {count} stages")
        self._check_together()

    def _check_together(self) -> None:
        """Checks combinations of fields; overridden by subclasses."""

    def _check(self, name: str, good: bool, remedy: str) -> None:
        if not good:
            raise ConfigError(f"{name} is {getattr(self, name)!r}", f"{name} = {remedy}")

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, the inverse of `from_dict`."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Raises `ConfigError` for an unknown field or an invalid value."""
        return changed(cls(), **values)


@dataclass(frozen=True, kw_only=True)
class Config(CheckedConfig):
    """The common fields of all architectures.

    Args:
        image_size: (height, width) in pixels, or one number for a square. Images of other sizes are supported.
        classes: number of outputs; 0 for no head.
        head_bias: initial value of the head's bias.
        drop_path: stochastic depth rate of the last block (Huang et al. 2016), linear from 0 at the first.
        checkpoint: recompute blocks in the backward pass instead of storing their activations.
    """

    architecture: ClassVar[str]
    attention: ClassVar[str]  # complexity of attention in the number of patches N, "N^2" in a ViT

    image_size: Pair = (224, 224)
    in_channels: int = 3
    classes: Count = 1000
    head_bias: float = 0.0
    drop_path: Share = 0.0
    checkpoint: bool = False

    @property
    def patch_size(self) -> Pair:
        """Size (height, width) in pixels of a token of `patchify`; a field in most architectures."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Width of the tokens; a field in most architectures."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """Number of blocks; a field in networks without stages."""
        raise NotImplementedError

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each of the maps of `Backbone.feature_maps`; a field in some architectures."""
        return (self.width,) * self.depth

    @property
    def cells(self) -> list[Pair]:
        """Size (height, width) in pixels of a cell of each of the maps of `Backbone.feature_maps`, their strides."""
        return [self.patch_size] * len(self.widths)

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Indices of the maps that dense tasks use by default: every stage of a pyramid, the last block of other networks."""
        stages = len(self.cells)
        return tuple(range(stages)) if self.cells[0] != self.cells[-1] else (stages - 1,)

    @property
    def even_layers(self) -> tuple[int, ...]:
        """Indices of four maps at even intervals up to the last, or of all where there are fewer: 2, 5, 8, 11 of 12. Of 24 they
        are 4, 11, 17, 23 as in DINOv2 (Oquab et al. 2023, section 7.4, "lin. 4") and DINOv3, whose other indices are even.
        """
        maps, count = len(self.cells), min(len(self.cells), 4)
        return (4, 11, 17, 23) if maps == 24 else tuple(maps * part // count - 1 for part in range(1, count + 1))

    @property
    def cell(self) -> Pair:
        """Size (height, width) in pixels of a token of `encode`: a patch, unless stages downsample."""
        return self.cells[-1]

    @property
    def blocks(self) -> int:
        """Number of blocks in all stages."""
        return self.depth

    @property
    def grid(self) -> Pair:
        """Rows and columns of the tokens of `patchify` at ``image_size``."""
        return grid_of(self.image_size, self.patch_size)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Learned tokens before the patches."""
        return ()


@dataclass(frozen=True, kw_only=True)
class IsotropicConfig(Config):
    """The common fields of networks whose blocks all have the same width, on the grid of the patches.

    Args:
        patch_size: (height, width) in pixels, or one number for a square.
        position_resize: interpolation of position tables for other image sizes, one of `RESIZES`.
        gelu: "tanh", the approximation in the ViT paper's code, "exact", or "quick", x sigmoid(1.702 x).
        pad: pad images to whole patches with zeros at the bottom and on the right.
    """

    CHOICES: ClassVar = {"position_resize": tuple(RESIZES), "gelu": GELUS}

    patch_size: Pair = (16, 16)
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_width: int = 3072
    position_resize: str = "paper"
    gelu: str = "tanh"
    norm_eps: Positive = 1e-6
    pad: bool = False

    def _check_together(self) -> None:
        self._check("heads", self.width % self.heads == 0, f"a divisor of width={self.width}")
        if not self.pad:
            check_divides(self.image_size, self.patch_size)


@dataclass(frozen=True, kw_only=True)
class StagedConfig(Config):
    """The config of a pyramid: ``depths`` blocks in each stage, of which each halves the map of the one before."""

    depths: Stages = (2, 2, 2, 2)

    @property
    def cells(self) -> list[Pair]:
        height, width = self.patch_size
        return [(height << stage, width << stage) for stage in range(len(self.depths))]

    def _check_heads(self, heads: Stages) -> None:
        divide = all(width % count == 0 for width, count in zip(self.widths, heads))
        self._check("heads", divide, f"in each stage a divisor of its width, widths={self.widths}")

    @property
    def width(self) -> int:
        return self.widths[-1]

    @property
    def depth(self) -> int:
        return sum(self.depths)


C = TypeVar("C", bound="CheckedConfig")


def changed(config: C, **changes: Any) -> C:
    """Returns ``config`` with changed fields. Raises `ConfigError` for an unknown field, with the nearest names."""
    known = [field.name for field in fields(config)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"{config.about} has no field {name!r}", nearest(name, known))
    return replace(config, **changes)


def grid_of(size: Sequence[int], patch_size: Sequence[int]) -> tuple[int, int]:
    """Returns the rows and columns of patches that cover an image of (height, width)."""
    # without negative numbers, whose quotient the ONNX exporter rounds up
    rows, columns = ((length + patch - 1) // patch for length, patch in zip(size, patch_size))
    return rows, columns


def check_divides(size: Sequence[int], patch_size: Sequence[int]) -> None:
    """Raises `ConfigError` for an image that is not divisible into patches, with the nearest valid sizes."""
    if all(length % patch == 0 for length, patch in zip(size, patch_size)):
        return
    below = [max(length // patch, 1) * patch for length, patch in zip(size, patch_size)]
    above = [-(-length // patch) * patch for length, patch in zip(size, patch_size)]
    written, patches, *near = ["x".join(map(str, sides)) for sides in (size, patch_size, below, above)]
    raise ConfigError(
        f"an image of {written} pixels does not divide into patches of {patches}",
        f"resize to {' or '.join(dict.fromkeys(near))}, or set pad=True (--set model.changes.pad=true) to pad with zeros",
    )
