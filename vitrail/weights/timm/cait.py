"""timm's layout of CaiT. The names are those of `vitrail.models.cait`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.models.cait import CaiTConfig
from vitrail.weights.layout import choose_grid, factorise
from vitrail.weights.timm.family import COMMON, Family, State, count_modules, count_outputs, ratio_of, refuse

SIZES = {
    (192, 24): "xxs24",
    (192, 36): "xxs36",
    (288, 24): "xs24",
    (384, 24): "s24",
    (384, 36): "s36",
    (768, 36): "m36",
    (768, 48): "m48",
}
AT = {"xxs24": 224, "xxs36": 224, "s24": 224, "m48": 448}  # the others have 384 pixels


def read(state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any]) -> tuple[CaiTConfig, State]:
    """Infers the config; for the image size see `choose_grid`."""
    width, channels, *patch = state["patch_embed.proj.weight"].shape  # (D, C, P, Q)
    slots = state["pos_embed"].shape[1]
    about = f"{slots} positions of patches"
    grid = choose_grid(lambda grid: slots == grid[0] * grid[1], factorise(slots), patch, arguments, where, about)
    config = CaiTConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch_size=(patch[0], patch[1]),
        in_channels=channels,
        classes=count_outputs(state, "head.weight"),
        width=width,
        depth=count_modules(state, "blocks."),
        class_depth=count_modules(state, "blocks_token_only."),
        heads=len(state["blocks.0.attn.proj_l.weight"]),
        mlp_width=len(state["blocks.0.mlp.fc1.weight"]),
        position_resize="bicubic-antialias",
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        layer_scale=arguments.get("init_values") or 1e-5,
    )
    return config, dict(state)


def check(config: CaiTConfig) -> None:
    whole = all(side % patch == 0 for side, patch in zip(config.image_size, config.patch_size))
    refuse("CaiT", {"images that are not whole patches": not whole})


def arguments(config: CaiTConfig) -> dict[str, Any]:
    ratio = ratio_of(config.mlp_width, config.width)
    return {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.in_channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "depth_token_only": config.class_depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio,
        "mlp_ratio_token_only": ratio,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
    }


def architecture(config: CaiTConfig) -> str:
    size = SIZES.get((config.width, config.depth), "xxs24")
    return f"cait_{size}_{AT.get(size, 384)}"


CAIT = Family(
    config=CaiTConfig,
    mark="blocks_token_only.0.attn.q.weight",
    needed=frozenset(["img_size", "init_values"]),
    derived=COMMON | {"num_heads", "depth_token_only", "mlp_ratio_token_only"},
    pool="token",
    read=read,
    check=check,
    write=lambda config, state: dict(state),
    arguments=arguments,
    architecture=architecture,
)
