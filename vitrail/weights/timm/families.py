"""timm's layouts of CaiT, BEiT, Swin, PVT v2 and BiT's ResNet, and its names of hybrids. Most names are vitrail's.

D width, C channels, P x Q a patch, F channels of the last map, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.models import ViTConfig
from vitrail.models.beit import BEiTConfig
from vitrail.models.cait import CaiTConfig
from vitrail.models.config import grid_of
from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.models.resnet import ResNetConfig
from vitrail.models.swin import SwinConfig
from vitrail.weights.layout import is_cut
from vitrail.weights.names import State
from vitrail.weights.shapes import Grid, choose_grid, count_modules, count_outputs, factorise, resnet_fields
from vitrail.weights.timm.family import BLOCKS, IMAGES, Family, find_heads, get_ratio

TABLE = "relative_position_bias_table"


def _common(state: State) -> dict[str, Any]:
    """Returns the fields that all of them have."""
    width, channels, *patch = state["patch_embed.proj.weight"].shape  # (D, C, P, Q)
    return {"width": width, "in_channels": channels, "patch_size": tuple(patch), "classes": count_outputs(state)}


def _infer_cait(state: State, where: Path, arguments: Mapping[str, Any]) -> CaiTConfig:
    fields, slots = _common(state), state["pos_embed"].shape[1]
    patch, about = fields["patch_size"], f"{where} has {slots} positions of patches"
    grid = choose_grid(lambda grid: slots == math.prod(grid), factorise(slots), patch, arguments, about)
    return CaiTConfig(
        **fields,
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        depth=count_modules(state, "blocks."),
        class_depth=count_modules(state, "blocks_token_only."),
        heads=len(state["blocks.0.attn.proj_l.weight"]),
        mlp_width=len(state["blocks.0.mlp.fc1.weight"]),
        position_resize="bicubic-antialias",
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        layer_scale=arguments.get("init_values") or 1e-5,
    )


# (width, depth) -> timm's name of the size, and the pixels of its images
CAITS = {
    (192, 24): "xxs24_224",
    (192, 36): "xxs36_224",
    (288, 24): "xs24_384",
    (384, 24): "s24_224",
    (384, 36): "s36_384",
    (768, 36): "m36_384",
    (768, 48): "m48_448",
}
CAIT = Family(
    config=CaiTConfig,
    mark="blocks_token_only.0.attn.q.weight",
    infer=_infer_cait,
    needed=frozenset(["img_size", "init_values"]),
    written={
        **IMAGES,
        **BLOCKS,
        "depth_token_only": "class_depth",
        "mlp_ratio_token_only": get_ratio,
        "qkv_bias": "qkv_bias",
        "init_values": "layer_scale",
    },
    pool="token",
    find_wrong=lambda config: {"images that are not whole patches": is_cut(config)},
    architecture=lambda config: f"cait_{CAITS.get((config.width, config.depth), 'xxs24_224')}",
)


def _infer_beit(state: State, where: Path, arguments: Mapping[str, Any]) -> BEiTConfig:
    own, shared = state.get(f"blocks.0.attn.{TABLE}"), state.get(f"rel_pos_bias.{TABLE}")
    table, fields = own if own is not None else shared, _common(state)
    patch = fields["patch_size"]
    grid = _find_beit_grid(table, state.get("pos_embed"), patch, arguments, where)
    return BEiTConfig(
        **fields,
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        depth=count_modules(state, "blocks."),
        heads=find_heads(fields["width"], where) if table is None else table.shape[1],
        mlp_width=len(state["blocks.0.mlp.fc1.weight"]),
        pool="gap" if "fc_norm.weight" in state else "cls",
        relative_bias="every" if own is not None else "none" if shared is None else "shared",
        positions="pos_embed" in state,
        position_resize="bicubic-antialias",
        layer_scale=(arguments.get("init_values") or 0.1) if "blocks.0.gamma_1" in state else None,
    )


def _find_beit_grid(
    table: Tensor | None, positions: Tensor | None, patch: Grid, arguments: Mapping[str, Any], where: Path
) -> Grid:
    """Returns the grid by the number of positions, or of relative offsets: (2 h - 1) (2 w - 1), plus 3 of the class token."""
    if positions is None and table is None:
        raise ValueError("its image size cannot be inferred from positions or relative positions")
    offsets, slots = None if table is None else len(table) - 3, None if positions is None else positions.shape[1] - 1

    def fits(grid: Grid) -> bool:
        rows, columns = grid
        return offsets in (None, (2 * rows - 1) * (2 * columns - 1)) and slots in (None, rows * columns)

    rows, columns = factorise(offsets or 0)
    near = factorise(slots) if slots is not None else ((rows + 1) // 2, (columns + 1) // 2)
    about = f"{slots} positions" if offsets is None else f"{offsets} relative offsets"
    return choose_grid(fits, near, patch, arguments, f"{where} has {about} of patches")


BEIT = Family(
    config=BEiTConfig,
    mark="blocks.0.attn.q_bias",
    infer=_infer_beit,
    needed=frozenset(["img_size", "init_values"]),
    written={
        **IMAGES,
        **BLOCKS,
        "global_pool": lambda config: "avg" if config.pool == "gap" else "token",
        "init_values": "layer_scale",
        "use_abs_pos_emb": "positions",
        "use_rel_pos_bias": lambda config: config.relative_bias == "every",
        "use_shared_rel_pos_bias": lambda config: config.relative_bias == "shared",
    },
    find_wrong=lambda config: {
        "images that are not whole patches": is_cut(config),
        "blocks without LayerScale": config.layer_scale is None,
    },
    architecture=lambda config: f"beit_{'large' if config.width == 1024 else 'base'}_patch16_224",
)


def _infer_swin(state: State, where: Path, arguments: Mapping[str, Any]) -> SwinConfig:
    """The image size is not in the tensors: 32 windows per side unless the arguments state otherwise."""
    fields, stages = _common(state), range(count_modules(state, "stages."))
    tables = [state[f"stages.{stage}.blocks.0.attn.{TABLE}"] for stage in stages]  # of (2 w - 1)^2 rows
    window = (math.isqrt(len(tables[0])) + 1) // 2
    config = SwinConfig(
        **fields,
        image_size=arguments.get("img_size") or arguments.get("input_size") or (32 * window, 32 * window),
        depths=tuple(count_modules(state, f"stages.{stage}.blocks.") for stage in stages),
        heads=tuple(table.shape[1] for table in tables),
        window=window,
        mlp_ratio=len(state["stages.0.blocks.0.mlp.fc1.weight"]) / fields["width"],
        qkv_bias="stages.0.blocks.0.attn.qkv.bias" in state,
    )
    SWIN.check(config)
    return config


def _find_wrong_in_swin(config: SwinConfig) -> dict[str, bool]:
    """timm shrinks and shifts windows for each axis separately, and rolls a map before padding. Both implementations agree if
    every map consists of whole windows and is larger than a window along both axes or along neither.
    """
    grid, wrong = config.grid, {}
    for depth in config.depths:
        whole = not any(length % config.window for length in grid)
        part = f"windows of {config.window} on maps of {grid[0]}x{grid[1]}, which it shifts differently"
        wrong[part] = not whole or (len({length == config.window for length in grid}) > 1 and depth > 1)
        grid = grid_of(grid, (2, 2))
    return wrong


SWINS = {(96, 6): "tiny", (96, 18): "small", (128, 18): "base", (192, 18): "large"}


def _name_swin(config: SwinConfig) -> str:
    size = SWINS.get((config.width, config.depths[2] if len(config.depths) > 2 else 0), "tiny")
    window = 12 if config.window == 12 and size in ("base", "large") else 7
    return f"swin_{size}_patch4_window{window}_{window * 32}"


SWIN = Family(
    config=SwinConfig,
    mark=f"layers.0.blocks.0.attn.{TABLE}",
    names={"stages.": "layers.", "head.": "head.fc."},
    infer=_infer_swin,
    needed=frozenset(["img_size"]),
    written={
        **IMAGES,
        "patch_size": lambda config: config.patch_size[0],
        "embed_dim": "width",
        "depths": "depths",
        "num_heads": "heads",
        "window_size": "window",
        "mlp_ratio": "mlp_ratio",
        "qkv_bias": "qkv_bias",
    },
    pool="avg",
    head=("head.fc",),
    find_wrong=_find_wrong_in_swin,
    architecture=_name_swin,
)


def _infer_pvt_v2(state: State, where: Path, arguments: Mapping[str, Any]) -> PVTv2Config:
    """The image size is not in the tensors: 224 pixels unless the arguments state otherwise."""
    stages = range(count_modules(state, "stages."))
    first = [f"stages.{stage}.blocks.0." for stage in stages]
    widths = tuple(len(state[f"{block}attn.q.weight"]) for block in first)
    kernels = [state.get(f"{block}attn.sr.weight") for block in first]  # (D, D, R, R)
    reductions = arguments.get("sr_ratios") or (1 if kernel is None else kernel.shape[2] for kernel in kernels)
    return PVTv2Config(
        image_size=arguments.get("input_size") or (224, 224),
        in_channels=state["patch_embed.proj.weight"].shape[1],
        classes=count_outputs(state),
        widths=widths,
        depths=tuple(count_modules(state, f"stages.{stage}.blocks.") for stage in stages),
        heads=tuple(arguments.get("num_heads") or (1, 2, 5, 8)),  # of the published sizes
        mlp_ratios=tuple(len(state[f"{block}mlp.fc1.weight"]) // width for block, width in zip(first, widths)),
        reductions=tuple(reductions),
        qkv_bias="stages.0.blocks.0.attn.q.bias" in state,
        linear=all(kernel is not None and kernel.shape[2] == 1 for kernel in kernels),
    )


PVT_V2S: dict[tuple[int, ...], str] = {
    (32, 2, 2, 2, 2): "b0",
    (64, 2, 2, 2, 2): "b1",
    (64, 3, 4, 6, 3): "b2",
    (64, 3, 4, 18, 3): "b3",
    (64, 3, 8, 27, 3): "b4",
    (64, 3, 6, 40, 3): "b5",
}


def _name_pvt_v2(config: PVTv2Config) -> str:
    size = PVT_V2S.get((config.widths[0], *config.depths), "b0")
    return f"pvt_v2_{size}_li" if config.linear and size == "b2" else f"pvt_v2_{size}"


PVT_V2 = Family(
    config=PVTv2Config,
    mark="stages.0.blocks.0.attn.kv.weight",
    infer=_infer_pvt_v2,
    needed=frozenset(["num_heads", "sr_ratios"]),
    written={
        "in_chans": "in_channels",
        "embed_dims": "widths",
        "depths": "depths",
        "num_heads": "heads",
        "mlp_ratios": "mlp_ratios",
        "sr_ratios": "reductions",
        "qkv_bias": "qkv_bias",
        "linear": "linear",
    },
    pool="avg",
    find_wrong=lambda config: {f"patches of {config.patch_size}": config.patch_size != (4, 4)},
    architecture=_name_pvt_v2,
)


# timm's kernel standardisation and norms, in BiT and in hybrids
NUMERICS: dict[str, Any] = {"standardise": "timm", "group_norm_eps": 1e-5}
# blocks per stage, for which timm has no argument -> timm's name, and the available width factors
LAYERS = {
    "50": ((3, 4, 6, 3), (1, 3)),
    "101": ((3, 4, 23, 3), (1, 3)),
    "152": ((3, 8, 36, 3), (2, 4)),
}


def _infer_bit(state: State, where: Path, arguments: Mapping[str, Any]) -> ResNetConfig:
    """The image size is not in the tensors: 224 pixels unless the arguments state otherwise."""
    return ResNetConfig(image_size=arguments.get("input_size") or (224, 224), **resnet_fields(state), **NUMERICS)


def _find_wrong_in_bit(config: ResNetConfig) -> dict[str, bool]:
    return {
        f"the stem {config.stem!r}": config.stem != "paper",
        f"stages of {', '.join(map(str, config.depths))} blocks": not _layers(config),
    }


def _layers(config: ResNetConfig) -> str | None:
    """Returns the name of the model whose first stages have those blocks, or None."""
    return next((word for word, (depths, _) in LAYERS.items() if depths[: len(config.depths)] == config.depths), None)


def _factor(config: ResNetConfig) -> int:
    _, factors = LAYERS[_layers(config) or "50"]
    return config.width_factor if config.width_factor in factors else factors[0]


def _widths(config: ResNetConfig) -> list[int]:
    """timm multiplies the widths of the root and of the stages by the factor of the named model."""
    return [config.root_width // _factor(config) * 2**stage for stage in range(len(config.depths) + 2)]


BIT = Family(
    config=ResNetConfig,
    mark="stages.0.blocks.0.norm3.weight",
    names={"head.": "head.fc."},
    infer=_infer_bit,
    written={
        "in_chans": "in_channels",
        "stem_chs": lambda config: _widths(config)[0],
        "channels": lambda config: _widths(config)[2:],
    },
    unread=frozenset(["zero_init_last"]),
    pool="avg",
    head=("head.fc",),
    find_wrong=_find_wrong_in_bit,
    architecture=lambda config: f"resnetv2_{_layers(config)}x{_factor(config)}_bit",
    # (K, F, 1, 1) and (K, F)
    to_own=lambda config, state: {
        name: tensor.flatten(1) if name == "head.weight" else tensor for name, tensor in state.items()
    },
    to_timms=lambda config, state: {
        name: tensor[:, :, None, None] if name == "head.weight" else tensor for name, tensor in state.items()
    },
)

# blocks per stage, for which timm has no argument -> sizes of the ViT, and timm's name of the stem
HYBRIDS: dict[tuple[int, ...], tuple[tuple[str, ...], str]] = {
    (): (("tiny",), "r_s16_p8"),
    (2, 2, 2, 2): (("small", "base"), "r26_s32"),
    (3, 4, 9): (("base",), "r50_s16"),
    (3, 4, 6, 3): (("large",), "r50_s32"),
}


def is_timms_stem(config: ViTConfig) -> bool:
    """Whether one of timm's models has the stem of a config."""
    return config.stem in HYBRIDS and config.stem_width == ViTConfig.stem_width


def name_hybrid(config: ViTConfig, size: str) -> str:
    """Returns the name of a timm model with the stem, of this ``size`` if there is one."""
    sizes, stem = HYBRIDS[config.stem or ()]
    return f"vit_{size if size in sizes else sizes[0]}_{stem}_224"
