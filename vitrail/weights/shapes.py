"""What names and shapes of tensors, by vitrail's names, tell of a network: its config, but for the numerics.

D width, C channels, P x Q a patch, S slots of the table of positions.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Config
from vitrail.models.config import grid_of
from vitrail.models.resnet import width_fields
from vitrail.text import printable

Shapes = Mapping[str, Tensor]
Grid = tuple[int, int]  # rows, columns
STEM = "patch_embed.backbone."
ROOTS = (f"{STEM}stem.conv.weight", f"{STEM}conv.weight")  # before stages, and without stages
DEFAULT_SIDE = 224  # pixels, if no shape determines the size
_BLOCK = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.")


def vit_fields(state: Shapes, where: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a `ViTConfig`, plain or hybrid. Without a table of positions they are sines.

    Args:
        where: the file, for messages.
        arguments: those of `choose_grid`, and ``no_embed_class``: whether only patches have positions, if either is possible.

    Raises:
        CheckpointError: as `choose_grid` and `stem_fields`.
        KeyError, ValueError: a tensor is missing, or has other axes.
    """
    width, channels, *cells = state["patch_embed.proj.weight"].shape  # (D, C, P, Q)
    fields: dict[str, Any] = {"patch_size": tuple(cells), "in_channels": channels, **stem_fields(state, cells, where)}
    patch, table = fields["patch_size"], state.get("pos_embed")  # (1, S, D)
    prefix = tuple(token for token in ("cls", "dist") if f"{token}_token" in state)
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    if table is None:
        size = arguments.get("img_size") or arguments.get("input_size") or (DEFAULT_SIDE, DEFAULT_SIDE)
        slots, grid = 0, (max(size[0] // patch[0], 1), max(size[1] // patch[1], 1))
    else:
        # published models with registers have slots for patches only
        alone = bool(registers or arguments.get("no_embed_class"))
        slots, before = table.shape[1], len(prefix) + registers
        about = f"{slots} positions for patches" + (f" and up to {before} other tokens" if before else "")
        near = most_likely(sorted((slots - before, slots), reverse=alone))
        grid = choose_grid(
            lambda grid: slots - math.prod(grid) in (0, before), near, patch, arguments, f"{where} has {about}"
        )
    return {
        **fields,
        "image_size": (grid[0] * patch[0], grid[1] * patch[1]),
        "classes": count_outputs(state),
        "width": width,
        "depth": count_modules(state, "blocks."),
        "prefix": prefix,
        "registers": registers,
        "pool_norm": "fc_norm.weight" in state,
        "positions": "sincos2d" if table is None else "learned",
        "prefix_positions": table is None or not prefix or slots > math.prod(grid),
        "pre_logits": "head.pre_logits.weight" in state,
        **block_fields(state),
        "pre_norm": "norm_pre.weight" in state,
        "patch_norm": "patch_embed.norm.weight" in state,
        "final_norm": "norm.weight" in state or "fc_norm.weight" in state,
    }


def block_fields(state: Shapes) -> dict[str, Any]:
    """Returns the fields of a `ViTConfig` that the tensors of its first block determine."""
    first, second = state["blocks.0.mlp.fc1.weight"], state["blocks.0.mlp.fc2.weight"]
    is_gated = len(first) == 2 * second.shape[1]
    return {
        "mlp": "swiglu" if is_gated else "gelu",
        "mlp_width": second.shape[1] if is_gated else len(first),
        "mlp_norm": "blocks.0.mlp.norm.weight" in state,
        "attention_norm": "blocks.0.attn.norm.weight" in state,
        "norm": "layer" if "blocks.0.norm1.bias" in state else "rms",
        "qkv_bias": "qv" if "blocks.0.attn.q_bias" in state else "blocks.0.attn.qkv.bias" in state,
        "bias": "blocks.0.attn.proj.bias" in state,
    }


def stem_fields(state: Shapes, cells: Sequence[int], where: Path) -> dict[str, Any]:
    """Returns the fields of a hybrid's config that its stem determines; none for a plain ViT.

    Args:
        cells: rows and columns of the stem's map per patch.

    Raises:
        CheckpointError: the stem is not that of the ViT paper.
    """
    names = [name for name in state if name.startswith(STEM)]
    if not names:
        return {}
    root = next((name for name in ROOTS if name in state), None)
    if root is None:
        what = f"the stem of {where} is not the ViT paper's ResNet: it contains {printable(', '.join(names[:3]), 200)}, ..."
        raise CheckpointError(what, "such models are not supported")
    width, channels, *_ = state[root].shape  # (D, C, 7, 7)
    stem = depths_of(state, STEM)
    stride = 4 * 2 ** max(len(stem) - 1, 0)
    patch = tuple(stride * length for length in cells)
    return {"patch_size": patch, "in_channels": channels, "stem": stem, "stem_width": width}


def resnet_fields(state: Shapes) -> dict[str, Any]:
    """Returns the fields of a `ResNetConfig`, of which no tensor shows the image size. Raises as `vit_fields`."""
    width, channels, *_ = state["stem.conv.weight"].shape  # (D, C, 7, 7)
    classes, depths = count_outputs(state), depths_of(state)
    return {"in_channels": channels, "classes": classes, "depths": depths, **width_fields(width)}


def count_modules(state: Shapes, before: str) -> int:
    """Returns the number of modules named ``before`` plus a number. Raises `ValueError` for an impossible number."""
    count = 1 + max((int(name[len(before) :].split(".")[0]) for name in state if name.startswith(before)), default=-1)
    if count > len(state):
        raise ValueError(f"it has {len(state)} tensors for {count} modules {before}0, {before}1, ...")
    return count


def count_outputs(state: Shapes) -> int:
    """Returns the number of outputs of the head; 0 without a head."""
    head = state.get("head.weight", state.get("head.cls.weight"))
    return len(head) if head is not None and head.ndim else 0


def depths_of(state: Shapes, before: str = "") -> tuple[int, ...]:
    """Returns the blocks of each stage whose names begin with ``before``. They are counted, so that large numbers in names
    have no effect. Raises `ValueError` if a stage is missing.
    """
    blocks: dict[str, set[str]] = defaultdict(set)
    for name in state:
        if name.startswith(before) and (match := _BLOCK.match(name, len(before))):
            blocks[match[1]].add(match[2])
    stages = [str(number) for number in range(len(blocks))]
    if blocks.keys() != set(stages):
        raise ValueError(f"its stages are {', '.join(sorted(blocks))}")
    return tuple(len(blocks[stage]) for stage in stages)


def choose_grid(
    fits: Callable[[Grid], bool], near: Grid, patch: Sequence[int], arguments: Mapping[str, Any], about: str
) -> Grid:
    """Returns the rows and columns of patches that a table of positions is for: as stated by ``grid`` or ``img_size``, or
    else those of the preprocessing's ``input_size`` or of the requested ``image_size`` if these fit, or else a square.

    Args:
        fits: whether a grid can have this table.
        near: the most square of these grids.
        patch: height and width of a patch in pixels.
        about: "FILE has 37 positions", for messages.

    Raises:
        CheckpointError: the stated grid does not fit; or none is stated, and a square does not fit.
    """
    remedy = f"give its rows and columns of patches, such as --grid {near[0]}x{near[1]}"
    remedy += f", or {near[1]}x{near[0]}" if near[0] != near[1] else ""
    remedy += " (for a training, to `vitrail convert` first)"
    stated, size = arguments.get("grid"), arguments.get("img_size")
    has = "the grid has" if stated or size is None else f"images of {size[0]}x{size[1]} have"
    if stated is None and size is not None:
        stated = (max(size[0] // patch[0], 1), max(size[1] // patch[1], 1))
    if stated is not None:
        if fits(stated):
            return stated
        raise CheckpointError(f"{about}, but {has} {stated[0]}x{stated[1]} patches", remedy)
    for size in (arguments.get("input_size"), arguments.get("image_size")):
        if size is not None and fits(grid := grid_of(size, patch)):
            return grid
    if near[0] == near[1] and fits(near):
        return near
    raise CheckpointError(f"{about}, which is not a square grid", remedy)


def factorise(number: int) -> Grid:
    """Returns the most nearly equal factors of a number, the smaller one first."""
    first = next((first for first in range(math.isqrt(max(number, 1)), 1, -1) if number % first == 0), 1)
    return first, max(number, 1) // first


def most_likely(counts: Sequence[int]) -> Grid:
    """Returns the most square grid of one of several numbers of patches: of the first that is a square, or else of the first
    that has a grid of at most 1 to 4, or else of the first.
    """
    grids = [factorise(count) for count in counts]
    return min(grids, key=lambda grid: (grid[0] != grid[1], grid[1] > 4 * grid[0]))


def check_grid_allowed(stated: object, *, has_table: bool, path: Path) -> None:
    """Raises `ConfigError` if ``path`` states its image size, or if its network has no table of positions."""
    if not has_table:
        raise ConfigError(f"{path} has no table of positions, and a grid was given", "leave --grid out")
    if stated:
        what = f"{path} states its image size, and a grid was given"
        raise ConfigError(what, "leave --grid out; --crop gives another input size")


def describe_grid(config: Config) -> str:
    """Returns the assumption of a grid of patches in words."""
    (height, width), (rows, columns) = config.image_size, config.grid
    return f"image size {height}x{width}, a grid of {rows}x{columns} patches (--grid states another)"
