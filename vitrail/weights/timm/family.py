"""The description of one of timm's architectures, and shared functions for reading them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import Config

State = dict[str, Tensor]
# width -> heads of the published sizes: 64 wide up to B and in L, 72 in So400m, 80 in H, 88 in g, 104 in G, 112 in e
HEADS = {
    192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 640: 10, 768: 12, 832: 13, 896: 14,
    1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16, 1792: 16,
}  # fmt: skip
KEEP = "keep it in vitrail's format: --to native"


@dataclass(frozen=True, kw_only=True)
class Family:
    """The mapping between one of timm's architectures and vitrail.

    Args:
        config: the type of its configs in vitrail.
        mark: name of a tensor that only this architecture has.
        needed: arguments of timm's class that cannot be inferred from tensors.
        derived: arguments that can be inferred from tensors, and those that are used in training only.
        pool: the only supported ``global_pool``; None if there are several.
        head: names of the layers that timm replaces for other classes.
        read: converts a state dict to our config and tensors, given the file for messages and the `needed` arguments.
            Raises `CheckpointError`, or the errors of invalid values.
        check: raises `CheckpointError` for a config that timm's class does not support.
        write: returns the tensors by timm's names.
        arguments: returns the arguments of timm's class for a config.
        architecture: returns the name of a timm model of this size, or of one that the arguments change to this size.
    """

    config: type[Config]
    mark: str
    needed: frozenset[str]
    derived: frozenset[str]
    pool: str | None = None
    head: tuple[str, ...] = ("head",)
    read: Callable[[Mapping[str, Tensor], Path, Mapping[str, Any]], tuple[Any, State]]
    check: Callable[[Any], None]
    write: Callable[[Any, Mapping[str, Tensor]], State]
    arguments: Callable[[Any], dict[str, Any]]
    architecture: Callable[[Any], str]


# arguments that follow from shapes in all architectures, or that are used in training only
COMMON = frozenset(
    {"num_classes", "in_chans", "patch_size", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "weight_init", "drop_rate"}
    | {"pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"}
)


def count_modules(state: Mapping[str, Tensor], before: str) -> int:
    """Returns the number of modules named ``before`` plus a number. Raises `ValueError` for an impossible number."""
    count = 1 + max((int(name[len(before) :].split(".")[0]) for name in state if name.startswith(before)), default=-1)
    if count > len(state):
        raise ValueError(f"it has {len(state)} tensors for {count} modules {before}0, {before}1, ...")
    return count


def count_outputs(state: Mapping[str, Tensor], head: str) -> int:
    return len(state[head]) if head in state else 0


def refuse(about: str, wrong: Mapping[str, bool]) -> None:
    """Raises `CheckpointError` for the first part of a model that has no counterpart in timm."""
    for part, there in wrong.items():
        if there:
            raise CheckpointError(f"timm's {about} has no counterpart of {part}", KEEP)


def heads_of(width: int, where: Path) -> int:
    if width not in HEADS:
        known = ", ".join(f"{width} ({heads})" for width, heads in HEADS.items())
        what = f"{where} has width {width}, and its number of attention heads cannot be inferred"
        raise CheckpointError(
            what,
            'put it into a folder with a config.json with "model_args": {"num_heads": ...}',
            value=f"known widths (heads): {known}",
        )
    return HEADS[width]


def ratio_of(mlp_width: int, width: int) -> float:
    """Returns timm's MLP ratio: the width times this ratio, truncated, is the width of the MLP."""
    ratio = mlp_width / width
    return ratio if int(width * ratio) == mlp_width else math.nextafter(ratio, math.inf)
