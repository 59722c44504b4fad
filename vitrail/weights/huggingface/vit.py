"""ViT, DeiT, ViT-MAE, DINOv2 and BEiT in transformers: names, config.json, and conversion to what transformers supports.

D width, N patches, P prefix tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig, positions
from vitrail.models.beit import BEiTConfig
from vitrail.weights.blocks import PACKED, find_other_parts
from vitrail.weights.huggingface import foundation
from vitrail.weights.huggingface.family import (
    CHANNELS,
    COMMON,
    GELU,
    IMAGE_SIZE,
    PATCH_SIZE,
    Family,
    Field,
    hidden_width,
    name_block,
    note_sizes,
)
from vitrail.weights.layout import is_cut, refuse
from vitrail.weights.names import State, invert, nest, rename

AROUND = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
BLOCK = name_block("attention")
OF_VIT = {**AROUND, **nest("blocks.{}.", "encoder.layer.{}.", BLOCK)}
OF_DINOV2 = {
    **OF_VIT,
    **{f"blocks.{{}}.{name}": f"encoder.layer.{{}}.{name}" for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")},
    "blocks.{}.mlp.w12": "encoder.layer.{}.mlp.weights_in",  # of a SwiGLU
    "blocks.{}.mlp.w3": "encoder.layer.{}.mlp.weights_out",
    "blocks.{}.ls1.gamma": "encoder.layer.{}.layer_scale1.lambda1",
    "blocks.{}.ls2.gamma": "encoder.layer.{}.layer_scale2.lambda1",
}
SIZES = (
    Field("width", "hidden_size", 768),
    Field("depth", "num_hidden_layers", 12),
    Field("heads", "num_attention_heads", 12),
    IMAGE_SIZE,
    PATCH_SIZE,
)
MLP = (Field("mlp_width", "intermediate_size", 3072), Field("norm_eps", "layer_norm_eps", 1e-12))
OF_DINO = (
    Field("norm_eps", "layer_norm_eps", 1e-6),
    Field("layer_scale", "layerscale_value", 1.0),
    Field("drop_path", "drop_path_rate", 0.0),
)
DINO = ("dinov2", "eomt")  # what the model types with LayerScale begin with
# interpolation of positions; the others have no antialiasing
RULES = dict.fromkeys(("dinov2_with_registers", "eomt"), "bicubic-antialias")
PREFIXES: dict[str, tuple[str, ...]] = {"deit": ("cls", "dist"), "ijepa": ()}
POOLS = {
    "vit": ("cls",),
    "ijepa": ("gap",),
    "deit": ("cls", "cls-only"),
    "dinov2": ("cls+gap",),
    "dinov2_with_registers": ("cls+gap",),
    "eomt": (),
}


def read(model_type: str, values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """Bare models of transformers have no head and pool the class token, or both tokens in DeiT."""
    pool = "cls-only" if model_type == "deit" and "head.weight" in state else "cls"
    if model_type.startswith(DINO):
        is_gated = bool(fields["use_swiglu_ffn"])
        values["mlp_width"] = hidden_width(values["width"], float(fields["mlp_ratio"]), gated=is_gated)
        values |= {"mlp": "swiglu"} if is_gated else {}
        pool = "cls+gap" if values["classes"] else "cls"
    return ViTConfig(
        **values,
        prefix=PREFIXES.get(model_type, ("cls",)),
        pool="gap" if model_type == "ijepa" else pool,
        position_resize=RULES.get(model_type, "bicubic"),
    )


def model_type_of(config: ViTConfig) -> str:
    """Returns the closest model type."""
    if (foundation_type := foundation.model_type_of(config)) is not None:
        return foundation_type
    if "dist" in config.prefix:
        return "deit"
    if config.registers:
        return "dinov2_with_registers"
    if config.prefix == () and config.layer_scale is None:
        return "ijepa"
    return "vit" if config.layer_scale is None else "dinov2"


def write(model_type: str, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    _check_writable(model_type, config)
    fields: dict[str, Any] = {}
    if config.layer_scale is not None:
        fields = {"mlp_ratio": _whole_ratio(config), "use_swiglu_ffn": config.mlp == "swiglu"}
    if model_type == "deit" and config.classes and config.pool == "cls":
        fields = {"architectures": ["DeiTForImageClassificationWithTeacher"]}
    notes = note_sizes(config, {"positions": (config.position_resize, RULES.get(model_type, "bicubic"))})
    if not config.classes and model_type in ("vit", "deit"):
        notes.append("the pooler of the bare model has no weights: use last_hidden_state, not pooler_output")
    return fields, notes


def _whole_ratio(config: ViTConfig) -> int:
    """Returns the ratio from which transformers computes the width of the MLP, if there is one."""
    return math.ceil(config.mlp_width * (1.5 if config.mlp == "swiglu" else 1) / config.width)


def _check_writable(model_type: str, config: ViTConfig) -> None:
    of_dino, is_gated = model_type.startswith(DINO), config.mlp == "swiglu"
    has_ratio = hidden_width(config.width, _whole_ratio(config), gated=is_gated) == config.mlp_width
    bare = () if model_type == "ijepa" or config.classes else ("cls",)
    pools = (*bare, *POOLS[model_type])
    wrong = {
        f"the prefix {config.prefix}": config.prefix != PREFIXES.get(model_type, ("cls",)),
        f"pool={config.pool!r}": config.pool not in pools,
        "a stem of convolutions": config.stem is not None,
        "registers": config.registers > 0 and not of_dino,
        "LayerScale": config.layer_scale is not None and not of_dino,
        "registers without LayerScale": config.layer_scale is None and of_dino,
        f"an MLP {config.mlp_width} wide, no multiple of {config.width},": of_dino and not (is_gated or has_ratio),
        "SwiGLU layers": is_gated and not (of_dino and has_ratio),
        **find_other_parts(config, but=("mlp", "qkv_bias")),
        f"{config.positions} positions, {config.positions_at}": (config.positions, config.positions_at)
        != ("learned", "stem"),
        "a hidden layer in the head": config.pre_logits,
        f"windows of {config.window} patches": config.window > 0,
        "blocks without skips": not config.skips,
        "padding": is_cut(config),
    }
    refuse(f"transformers' {model_type!r}", wrong)


def express_config(config: ViTConfig) -> tuple[ViTConfig, list[str]]:
    """Returns the config with positions as one learned table at the stem, if that is equivalent, and a note."""
    at_stem = config.positions in ("learned", "sincos2d") and config.positions_at == "stem"
    if not at_stem and config.positions != "none":
        return config, []
    note = "positions are written as a table, which transformers resizes for other image sizes; vitrail recomputes them"
    learned = replace(config, positions="learned", positions_at="stem", prefix_positions=True)
    return learned, [note] if config.positions == "sincos2d" else []


def express_state(config: ViTConfig, state: State) -> State:
    """Returns the tensors for a config of `express_config`: a table (1, P + N, D), zero for prefix tokens without position."""
    patches = math.prod(config.grid)
    if config.positions == "sincos2d":
        table = positions.sincos2d(config.grid, config.width)[None]
    else:
        table = state.get("pos_embed", torch.zeros(1, patches, config.width))
    nowhere = table.new_zeros(1, len(config.prefix) + patches - table.shape[1], config.width)
    gated = rename(state, invert(PACKED)) if config.mlp == "swiglu" else state
    return {**gated, "pos_embed": torch.cat([nowhere, table], 1)}


def restore_state(config: ViTConfig, state: State) -> State:
    """The inverse of `express_state`."""
    others = {name: tensor for name, tensor in state.items() if name != "pos_embed"}
    if config.positions != "learned":
        return others
    return {**others, "pos_embed": state["pos_embed"][:, len(config.prefix) - config.prefix_slots :]}


def _family(model_type: str, *, body: str | None = None, fields: tuple[Field, ...] = MLP, **parts: Any) -> Family:
    return Family(
        model_type=model_type,
        body=body or model_type,
        fields=(*SIZES, *COMMON, *fields),
        read=partial(read, model_type),
        write=partial(write, model_type),
        express=express_config,
        express_state=express_state,
        restore_state=restore_state,
        **parts,
    )


def _dinov2(model_type: str, *, fields: tuple[Field, ...] = (), **parts: Any) -> Family:
    others = {"mlp_ratio": 4, "use_swiglu_ffn": False}
    unused = ("embeddings.mask_token",)
    parts |= {"prepare": lambda state: rename(state, PACKED)}
    return _family(model_type, fields=(*OF_DINO, *fields), unused=unused, processor="Bit", others=others, **parts)


UNUSED: dict[str, Any] = {"unused": ("embeddings.mask_token", "pooler."), "unused_heads": ("decoder.",)}
FAMILIES = (
    _family("vit", names=OF_VIT, model="ViT", processor="ViT", **UNUSED),
    _family(
        "ijepa",
        names={ours: theirs for ours, theirs in OF_VIT.items() if ours != "cls_token"},
        model="IJepa",
        processor="ViT",
        unused=("embeddings.mask_token", "pooler."),
    ),
    _family(
        "deit",
        names={**OF_VIT, "dist_token": "embeddings.distillation_token"},
        heads={"head": "classifier", "head.cls": "cls_classifier", "head.dist": "distillation_classifier"},
        model="DeiT",
        processor="DeiT",
        **UNUSED,
    ),
    _family("vit_mae", body="vit", names=OF_VIT, heads={}, unused_heads=("decoder.",), model="ViTMAE", processor="ViT"),
    _dinov2("dinov2", names=OF_DINOV2, model="Dinov2", fields=(PATCH_SIZE._replace(default=14),)),
    *foundation.FAMILIES,
    _dinov2(
        "dinov2_with_registers",
        names={**OF_DINOV2, "reg_token": "embeddings.register_tokens"},
        model="Dinov2WithRegisters",
        fields=(Field("registers", "num_register_tokens", 4),),
    ),
)


TABLE = "relative_position_bias.relative_position_bias_table"
INDEX = "relative_position_bias.relative_position_index"
# use_relative_position_bias, use_shared_relative_position_bias
BIASES = {(True, False): "every", (False, True): "shared", (False, False): "none"}
OF_BEIT = {
    **BLOCK,
    "attn.q_bias": "attention.attention.query.bias",
    "attn.v_bias": "attention.attention.value.bias",
    "attn.relative_position_bias_table": f"attention.attention.{TABLE}",
    "gamma_1": "lambda_1",
    "gamma_2": "lambda_2",
}


def read_beit(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> BEiTConfig:
    """In a pretrained model, the head for visual tokens has a norm outside of the body. The class token is pooled after the
    same norm. Tables of relative positions are right for square images only; for others, transformers swaps rows and columns.
    """
    bias = BIASES.get((fields["use_relative_position_bias"], fields["use_shared_relative_position_bias"]))
    if bias is None:
        raise CheckpointError("it has both shared and per-block relative positions", "only one of them is supported")
    config = BEiTConfig(
        **values,
        pool="cls" if "norm.weight" in state else "gap",
        relative_bias=bias,
        bias_resize="bilinear",
        position_resize="bicubic",
    )
    if bias != "none" and config.grid[0] != config.grid[1]:
        what = f"it has relative positions of {config.grid[0]}x{config.grid[1]} patches, whose axes transformers swaps"
        raise CheckpointError(what, "only square images are supported")
    return config


def write_beit(config: BEiTConfig) -> tuple[dict[str, Any], list[str]]:
    rows, columns = config.grid
    scale = config.layer_scale
    wrong = {
        f"relative positions of {rows}x{columns} patches": rows != columns and config.relative_bias != "none",
        "a patch that is not square": config.patch_size[0] != config.patch_size[1],
        f"LayerScale that starts at {scale}": scale is not None and scale <= 0,
        "padding": is_cut(config),
    }
    refuse("transformers' 'beit'", wrong)
    fields = {
        "use_relative_position_bias": config.relative_bias == "every",
        "use_shared_relative_position_bias": config.relative_bias == "shared",
        "use_mean_pooling": config.pool == "gap",
    }
    rules = {"relative positions": (config.bias_resize, "bilinear")} if config.relative_bias != "none" else {}
    rules |= {"positions": (config.position_resize, "bicubic")} if config.positions else {}
    return fields, note_sizes(config, rules)


BEIT = Family(
    model_type="beit",
    body="beit",
    names={
        **AROUND,
        "rel_pos_bias.relative_position_bias_table": f"encoder.{TABLE}",
        **nest("blocks.{}.", "encoder.layer.{}.", OF_BEIT),
        "fc_norm": "pooler.layernorm",
    },
    also={"layernorm": "norm"},
    unused=("embeddings.mask_token", f"encoder.{INDEX}", f"encoder.layer.{{}}.attention.attention.{INDEX}"),
    unused_heads=("lm_head.",),
    model="Beit",
    processor="Beit",
    fields=(
        *SIZES,
        CHANNELS,
        GELU,
        *MLP,
        Field("positions", "use_absolute_position_embeddings", False),
        Field(
            "layer_scale",
            "layer_scale_init_value",
            0.1,
            read=lambda scale: scale if scale > 0 else None,
            write=lambda scale: scale or 0.0,
        ),
        Field("drop_path", "drop_path_rate", 0.1),
    ),
    others={"use_relative_position_bias": False, "use_shared_relative_position_bias": False},
    read=read_beit,
    write=write_beit,
)
