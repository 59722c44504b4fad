"""timm's layout of Swin Transformers, where stages are called layers and the head head.fc."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models.config import grid_of
from vitrail.models.swin import SwinConfig
from vitrail.weights.timm.family import COMMON, KEEP, Family, State, count_modules, count_outputs

TABLE = "layers.0.blocks.0.attn.relative_position_bias_table"
SIZES = {(96, 6): "tiny", (96, 18): "small", (128, 18): "base", (192, 18): "large"}


def read(state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any]) -> tuple[SwinConfig, State]:
    """Infers the config. The image size is not in the tensors: 32 windows per side unless the arguments state otherwise."""
    stages = range(count_modules(state, "layers."))
    width, channels, *patch = state["patch_embed.proj.weight"].shape  # (D, C, P, Q)
    window = (math.isqrt(len(state[TABLE])) + 1) // 2  # of (2 w - 1)^2 rows
    side = window * 32
    config = SwinConfig(
        image_size=arguments.get("img_size") or arguments.get("input_size") or (side, side),
        patch_size=(patch[0], patch[1]),
        in_channels=channels,
        classes=count_outputs(state, "head.fc.weight"),
        width=width,
        depths=tuple(count_modules(state, f"layers.{stage}.blocks.") for stage in stages),
        heads=tuple(state[TABLE.replace("layers.0", f"layers.{stage}")].shape[1] for stage in stages),
        window=window,
        mlp_ratio=len(state["layers.0.blocks.0.mlp.fc1.weight"]) / width,
        qkv_bias="layers.0.blocks.0.attn.qkv.bias" in state,
    )
    check(config)
    return config, {
        name.replace("layers.", "stages.").replace("head.fc.", "head."): tensor for name, tensor in state.items()
    }


def check(config: SwinConfig) -> None:
    """Raises `CheckpointError` for configs that timm computes differently.

    timm shrinks and shifts windows for each axis separately, and rolls a map before padding. Both implementations agree if
    every map consists of whole windows and is larger than a window along both axes or along neither.
    """
    grid = grid_of(config.image_size, config.patch_size)
    for depth in config.depths:
        whole = not any(length % config.window for length in grid)
        if not whole or (len({length == config.window for length in grid}) > 1 and depth > 1):
            what = f"timm's Swin shifts windows of {config.window} differently on maps of {grid[0]}x{grid[1]}"
            raise CheckpointError(what, KEEP)
        grid = grid_of(grid, (2, 2))


def write(config: SwinConfig, state: Mapping[str, Tensor]) -> State:
    return {name.replace("stages.", "layers.").replace("head.", "head.fc."): tensor for name, tensor in state.items()}


def arguments(config: SwinConfig) -> dict[str, Any]:
    return {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size[0],
        "in_chans": config.in_channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
    }


def architecture(config: SwinConfig) -> str:
    size = SIZES.get((config.width, config.depths[2] if len(config.depths) > 2 else 0), "tiny")
    windows = 12 if config.window == 12 and size in ("base", "large") else 7
    return f"swin_{size}_patch4_window{windows}_{windows * 32}"


SWIN = Family(
    config=SwinConfig,
    mark=TABLE,
    needed=frozenset(["img_size"]),
    derived=COMMON | {"depths", "num_heads", "window_size"},
    pool="avg",
    head=("head.fc",),
    read=read,
    check=check,
    write=write,
    arguments=arguments,
    architecture=architecture,
)
