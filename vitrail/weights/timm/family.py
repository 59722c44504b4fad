"""The description of one of timm's architectures, and shared functions for reading them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import Config
from vitrail.weights.layout import refuse
from vitrail.weights.names import Names, State, invert, rename
from vitrail.weights.tensors import OTHER, refusing_values

# width -> heads of the published sizes: 64 wide up to B and in L, 72 in So400m, 80 in H, 88 in g, 104 in G, 112 in e
HEADS = {
    192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 640: 10, 768: 12, 832: 13, 896: 14,
    1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16, 1792: 16,
}  # fmt: skip
# arguments that follow from shapes in all architectures, or that are used in training only
COMMON = frozenset(
    {"num_classes", "in_chans", "patch_size", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "weight_init", "drop_rate"}
    | {"pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "norm_layer", "global_pool"}
)


# timm's argument -> the field of our config, or a function of the config
Arguments = Mapping[str, str | Callable[[Any], Any]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """The mapping between one of timm's architectures and vitrail.

    Args:
        config: the type of its configs in vitrail.
        mark: name of a tensor that only this architecture has.
        names: vitrail's names of modules -> timm's, where they differ.
        infer: returns our config of a state dict by our names, given the file for messages and the `needed` arguments.
            Raises `CheckpointError`, or the errors of invalid values.
        needed: arguments of timm's class that cannot be inferred from tensors.
        written: the arguments for a config.
        unread: arguments that are neither, but accepted, besides `COMMON`.
        pool: the only supported ``global_pool``; None if there are several.
        head: names of the layers that timm replaces for other classes.
        find_wrong: returns parts of a config that timm's class may not support, and whether it has them.
        architecture: returns the name of a timm model of this size, or of one that the arguments change to this size.
        prepare: converts tensors by our names, before a config of them is known.
        to_own, to_timms: convert the tensors of a config, by our names, that are of another form in timm.
    """

    config: type[Config]
    mark: str
    names: Names = field(default_factory=dict)
    infer: Callable[[State, Path, Mapping[str, Any]], Any]
    needed: frozenset[str] = frozenset()
    written: Arguments
    unread: frozenset[str] = frozenset()
    pool: str | None = None
    head: tuple[str, ...] = ("head",)
    find_wrong: Callable[[Any], Mapping[str, bool]]
    architecture: Callable[[Any], str]
    prepare: Callable[[State], State] = lambda state: state
    to_own: Callable[[Any, State], State] = lambda config, state: state
    to_timms: Callable[[Any, State], State] = lambda config, state: state

    @property
    def name(self) -> str:
        return self.config.about.partition(" ")[2]

    @property
    def accepted(self) -> frozenset[str]:
        """All arguments of timm's class that are accepted."""
        return self.needed | self.written.keys() | self.unread | COMMON

    def read(self, state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any] = {}) -> tuple[Any, State]:
        """Returns our config of a state dict of timm, and its tensors by our names. Raises `CheckpointError`."""
        own = self.prepare(rename(state, invert(self.names)))
        with refusing_values(f"the {self.name} of {where} cannot be built", OTHER):
            config = self.infer(own, where, arguments)
            return config, self.to_own(config, own)

    def write(self, config: Any, state: Mapping[str, Tensor]) -> State:
        """Returns the tensors by timm's names."""
        return rename(self.to_timms(config, dict(state)), self.names)

    def arguments(self, config: Any) -> dict[str, Any]:
        """Returns the arguments of timm's class for a config. Raises as `check`."""
        self.check(config)
        values = {name: get(config) if callable(get) else getattr(config, get) for name, get in self.written.items()}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {name: value for name, value in listed.items() if value is not None}

    def check(self, config: Any) -> None:
        """Raises `CheckpointError` for a config with a part that timm's class does not support."""
        refuse(f"timm's {self.name}", self.find_wrong(config))


def find_heads(width: int, where: Path) -> int:
    """Returns the heads of the published model of a width. Raises `CheckpointError` if there is none."""
    if width not in HEADS:
        known = ", ".join(f"{width} ({heads})" for width, heads in HEADS.items())
        what = f"{where} has width {width}, and its number of attention heads cannot be inferred"
        remedy = 'put it into a folder with a config.json with "model_args": {"num_heads": ...}'
        raise CheckpointError(what, remedy, value=f"known widths (heads): {known}")
    return HEADS[width]


def get_ratio(config: Any) -> float:
    """Returns timm's MLP ratio: the width times this ratio, truncated, is the width of the MLP."""
    ratio = config.mlp_width / config.width
    return ratio if int(config.width * ratio) == config.mlp_width else math.nextafter(ratio, math.inf)


# arguments that most classes have
IMAGES: Arguments = {"img_size": "image_size", "patch_size": "patch_size", "in_chans": "in_channels"}
BLOCKS: Arguments = {"embed_dim": "width", "depth": "depth", "num_heads": "heads", "mlp_ratio": get_ratio}
