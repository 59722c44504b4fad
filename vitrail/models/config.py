"""All that makes one ViT, as one frozen value that is checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from vitrail.errors import ConfigError, nearest
from vitrail.models.positions import KINDS, PLACES, RESIZES

CHOICES = {
    "pool": ("cls", "gap", "map"),
    "positions": KINDS,
    "positions_at": PLACES,
    "position_resize": tuple(RESIZES),
    "gelu": ("tanh", "exact"),
    "initial": ("paper", "mimetic"),
}
LEAST = {"in_channels": 1, "classes": 0, "width": 1, "depth": 1, "heads": 1, "mlp_width": 1, "registers": 0}
SHARES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
SWITCHES = ("pre_logits", "qkv_bias", "pad", "checkpoint")
PREFIXES = ((), ("cls",), ("cls", "dist"))


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The fields of a ViT; the defaults are ViT-B/16 as in the paper.

    Args:
        image_size: (height, width) in pixels, as ``patch_size``; one number stands for a square.
        classes: outputs of the head; 0 is no head.
        prefix: learned tokens before the patches: none, the class token, or also DeiT's distillation token.
        registers: further learned tokens, without position and never read (Darcet et al. 2024).
        pool: what the head reads: the prefix tokens, the mean of the patches, or attention with a learned query.
        positions: see `vitrail.models.positions`.
        positions_at: added at the stem, at every layer from a table of its own, or at every layer from one table
            (appendix D.4). Relative positions are part of attention: "shared" is one table, otherwise each layer has its own.
        position_resize: how tables follow another image size; one of `positions.RESIZES`.
        pre_logits: the head of pre-training, with a hidden layer and tanh.
        gelu: "tanh", the approximation of the paper's code, or "exact".
        initial: first values of the weights, see `vitrail.models.initialise`: as in the paper, or "mimetic", which learns
            faster from little.
        layer_scale: first value of LayerScale's factors; None is none.
        head_bias: first value of the head's bias.
        dropout: after every dense layer but q, k, v, and after adding positions; ``attention_dropout`` is that of the
            attention matrices.
        drop_path: stochastic depth of the last block; it grows linearly from 0 at the first.
        patch_dropout: share of patches left out in training, the same number for each image.
        pad: images need not be whole patches; they are filled up with zeros at the bottom and on the right.
        checkpoint: recompute blocks in the backward pass instead of keeping their activations.

    Raises:
        ConfigError: names the field, its value and what to write instead.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    in_channels: int = 3
    classes: int = 1000
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_width: int = 3072
    prefix: tuple[str, ...] = ("cls",)
    registers: int = 0
    pool: str = "cls"
    positions: str = "learned"
    positions_at: str = "stem"
    position_resize: str = "paper"
    pre_logits: bool = False
    gelu: str = "tanh"
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    initial: str = "paper"
    layer_scale: float | None = None
    head_bias: float = 0.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    patch_dropout: float = 0.0
    pad: bool = False
    checkpoint: bool = False

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size"):
            object.__setattr__(self, name, _pair(name, getattr(self, name)))
        object.__setattr__(self, "prefix", tuple(self.prefix))
        for name, least in LEAST.items():
            self._check(name, _is_whole(getattr(self, name), least), f"a whole number from {least}")
        for name in SHARES:
            self._check(name, _is_number(getattr(self, name)) and 0 <= getattr(self, name) < 1, "a share in [0, 1)")
        for name in SWITCHES:
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", nearest(str(getattr(self, name)), known))
        self._check("norm_eps", _is_number(self.norm_eps) and self.norm_eps > 0, "a number above 0, such as 1e-6")
        self._check(
            "layer_scale", self.layer_scale is None or _is_number(self.layer_scale), "None or a number, as 1e-4"
        )
        self._check("head_bias", _is_number(self.head_bias), "a number, such as 0.0")
        self._check_together()

    def _check_together(self) -> None:
        self._check("heads", self.width % self.heads == 0, f"a divisor of width={self.width}")
        learned = 4 if self.initial == "mimetic" else 1
        parts = {"sincos2d": 4, "learned2d": 2, "learned": learned}.get(self.positions, 1)
        what = f"a multiple of {parts}, for positions={self.positions!r} and initial={self.initial!r}"
        self._check("width", self.width % parts == 0, what)
        self._check("prefix", self.prefix in PREFIXES, "one of " + ", ".join(map(str, PREFIXES)))
        what = "('cls',), which pool='cls' reads; or take pool='gap'"
        self._check("prefix", self.prefix != () or self.pool != "cls", what)
        what = "False: with classes=0 there is no head for a hidden layer"
        self._check("pre_logits", not self.pre_logits or self.classes > 0, what)
        if not self.pad:
            check_divides(self.image_size, self.patch_size)

    def _check(self, name: str, good: bool, remedy: str) -> None:
        if not good:
            raise ConfigError(f"{name} is {getattr(self, name)!r}", f"{name} = {remedy}")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at ``image_size``."""
        return grid_of(self.image_size, self.patch_size)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` takes them back."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViTConfig:
        """Raises `ConfigError` for a field that there is not, or a value that cannot be meant."""
        return changed(cls(), **values)


def changed(config: ViTConfig, **changes: Any) -> ViTConfig:
    """``config`` with other values. Raises `ConfigError` for an unknown field, with the nearest names."""
    known = [field.name for field in fields(ViTConfig)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"a ViT has no field {name!r}", nearest(name, known))
    return replace(config, **changes)


def grid_of(size: Sequence[int], patch_size: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of patches that cover an image of (height, width)."""
    rows, columns = (math.ceil(length / patch) for length, patch in zip(size, patch_size))
    return rows, columns


def check_divides(size: Sequence[int], patch_size: Sequence[int]) -> None:
    """Raises `ConfigError` for an image that is not whole patches, with the nearest sizes that are."""
    if all(length % patch == 0 for length, patch in zip(size, patch_size)):
        return
    below = [max(length // patch, 1) * patch for length, patch in zip(size, patch_size)]
    above = [math.ceil(length / patch) * patch for length, patch in zip(size, patch_size)]
    written, patches, *near = ["x".join(map(str, each)) for each in (size, patch_size, below, above)]
    raise ConfigError(
        f"an image of {written} pixels does not divide into patches of {patches}",
        f"resize to {' or '.join(dict.fromkeys(near))}, or set pad=True to fill up with zeros",
    )


def _pair(name: str, value: Any) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if len(pair) != 2 or not all(_is_whole(length, 1) for length in pair):
        raise ConfigError(f"{name} is {value!r}", f"{name} = pixels, such as 224, or (height, width)")
    return pair


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
