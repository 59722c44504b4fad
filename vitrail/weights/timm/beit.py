"""timm's layout of BEiT. The names are those of `vitrail.models.beit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.models.beit import BEiTConfig
from vitrail.weights.layout import choose_grid, factorise
from vitrail.weights.timm.family import (
    COMMON,
    Family,
    State,
    count_modules,
    count_outputs,
    heads_of,
    ratio_of,
    refuse,
)

TABLE = "relative_position_bias_table"
SHARED = f"rel_pos_bias.{TABLE}"


def read(state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any]) -> tuple[BEiTConfig, State]:
    """Infers the config; for the image size see `choose_grid`."""
    width, channels, *patch = state["patch_embed.proj.weight"].shape  # (D, C, P, Q)
    own, shared = state.get(f"blocks.0.attn.{TABLE}"), state.get(SHARED)
    table = own if own is not None else shared
    config = BEiTConfig(
        image_size=_image_size(table, state.get("pos_embed"), patch, arguments, where),
        patch_size=(patch[0], patch[1]),
        in_channels=channels,
        classes=count_outputs(state, "head.weight"),
        width=width,
        depth=count_modules(state, "blocks."),
        heads=heads_of(width, where) if table is None else table.shape[1],
        mlp_width=len(state["blocks.0.mlp.fc1.weight"]),
        pool="gap" if "fc_norm.weight" in state else "cls",
        relative_bias="every" if own is not None else "none" if shared is None else "shared",
        positions="pos_embed" in state,
        position_resize="bicubic-antialias",
        layer_scale=(arguments.get("init_values") or 0.1) if "blocks.0.gamma_1" in state else None,
    )
    return config, dict(state)


def _image_size(
    table: Tensor | None, positions: Tensor | None, patch: list[int], arguments: Mapping[str, Any], where: Path
) -> tuple[int, int]:
    """Returns the image size from the number of positions, or of relative offsets: (2 h - 1) (2 w - 1), plus 3 of the class
    token.
    """
    if positions is None and table is None:
        raise ValueError("its image size cannot be inferred from positions or relative positions")
    offsets, slots = None if table is None else len(table) - 3, None if positions is None else positions.shape[1] - 1

    def fits(grid: tuple[int, int]) -> bool:
        rows, columns = grid
        return offsets in (None, (2 * rows - 1) * (2 * columns - 1)) and slots in (None, rows * columns)

    rows, columns = factorise(offsets or 0)
    near = factorise(slots) if slots is not None else ((rows + 1) // 2, (columns + 1) // 2)
    about = f"{slots} positions" if offsets is None else f"{offsets} relative offsets"
    grid = choose_grid(fits, near, patch, arguments, where, f"{about} of patches")
    return grid[0] * patch[0], grid[1] * patch[1]


def check(config: BEiTConfig) -> None:
    whole = all(side % patch == 0 for side, patch in zip(config.image_size, config.patch_size))
    wrong = {"images that are not whole patches": not whole, "blocks without LayerScale": config.layer_scale is None}
    refuse("BEiT", wrong)


def arguments(config: BEiTConfig) -> dict[str, Any]:
    return {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.in_channels,
        "global_pool": "avg" if config.pool == "gap" else "token",
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio_of(config.mlp_width, config.width),
        "init_values": config.layer_scale,
        "use_abs_pos_emb": config.positions,
        "use_rel_pos_bias": config.relative_bias == "every",
        "use_shared_rel_pos_bias": config.relative_bias == "shared",
    }


def architecture(config: BEiTConfig) -> str:
    return f"beit_{'large' if config.width == 1024 else 'base'}_patch16_224"


BEIT = Family(
    config=BEiTConfig,
    mark="blocks.0.attn.q_bias",
    needed=frozenset(["img_size", "init_values"]),
    derived=COMMON | {"global_pool", "num_heads", "use_abs_pos_emb", "use_rel_pos_bias", "use_shared_rel_pos_bias"},
    read=read,
    check=check,
    write=lambda config, state: dict(state),
    arguments=arguments,
    architecture=architecture,
)
