"""ViT, DeiT, ViT-MAE and DINOv2 in transformers: names, config.json, and conversion to what transformers supports.

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
from vitrail.weights.huggingface.family import (
    CHANNELS,
    DROPOUTS,
    GELU,
    IMAGE_SIZE,
    QKV_BIAS,
    Family,
    Field,
    side_or_pair,
)
from vitrail.weights.layout import refuse
from vitrail.weights.names import State

AROUND = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
ATTENTION = {
    "blocks.{}.attn.q": "encoder.layer.{}.attention.attention.query",
    "blocks.{}.attn.k": "encoder.layer.{}.attention.attention.key",
    "blocks.{}.attn.v": "encoder.layer.{}.attention.attention.value",
    "blocks.{}.attn.proj": "encoder.layer.{}.attention.output.dense",
}
OF_VIT = {
    **AROUND,
    **ATTENTION,
    "blocks.{}.norm1": "encoder.layer.{}.layernorm_before",
    "blocks.{}.norm2": "encoder.layer.{}.layernorm_after",
    "blocks.{}.mlp.fc1": "encoder.layer.{}.intermediate.dense",
    "blocks.{}.mlp.fc2": "encoder.layer.{}.output.dense",
}
OF_DINOV2 = {
    **AROUND,
    **ATTENTION,
    "blocks.{}.norm1": "encoder.layer.{}.norm1",
    "blocks.{}.norm2": "encoder.layer.{}.norm2",
    "blocks.{}.mlp.fc1": "encoder.layer.{}.mlp.fc1",
    "blocks.{}.mlp.fc2": "encoder.layer.{}.mlp.fc2",
    "blocks.{}.ls1.gamma": "encoder.layer.{}.layer_scale1.lambda1",
    "blocks.{}.ls2.gamma": "encoder.layer.{}.layer_scale2.lambda1",
}
PATCH_SIZE = Field("patch_size", "patch_size", 16, write=side_or_pair)
FIELDS = (
    Field("width", "hidden_size", 768),
    Field("depth", "num_hidden_layers", 12),
    Field("heads", "num_attention_heads", 12),
    GELU,
    *DROPOUTS,
    IMAGE_SIZE,
    CHANNELS,
    QKV_BIAS,
)
FIELDS_OF_VIT = (
    *FIELDS,
    PATCH_SIZE,
    Field("mlp_width", "intermediate_size", 3072),
    Field("norm_eps", "layer_norm_eps", 1e-12),
)
FIELDS_OF_DINOV2 = (
    *FIELDS,
    Field("norm_eps", "layer_norm_eps", 1e-6),
    Field("layer_scale", "layerscale_value", 1.0),
    Field("drop_path", "drop_path_rate", 0.0),
)
RULES = {"dinov2_with_registers": "bicubic-antialias"}  # interpolation of positions; the others have no antialiasing
POOLS = {"vit": ("cls",), "deit": ("cls", "cls-only"), "dinov2": ("cls+gap",), "dinov2_with_registers": ("cls+gap",)}


def read(model_type: str, values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ViTConfig:
    """Bare models of transformers have no head and pool the class token, or both tokens in DeiT."""
    if fields.get("use_swiglu_ffn"):
        raise CheckpointError(
            "it has SwiGLU layers (use_swiglu_ffn), as DINOv2's giant", "only MLP layers are supported"
        )
    pool = "cls-only" if model_type == "deit" and "head.weight" in state else "cls"
    if model_type.startswith("dinov2"):
        values["mlp_width"] = int(fields["hidden_size"] * float(fields["mlp_ratio"]))
        pool = "cls+gap" if values["classes"] else "cls"
    return ViTConfig(
        **values,
        prefix=("cls", "dist") if model_type == "deit" else ("cls",),
        pool=pool,
        position_resize=RULES.get(model_type, "bicubic"),
    )


def model_type_of(config: ViTConfig) -> str:
    """Returns the closest model type."""
    if "dist" in config.prefix:
        return "deit"
    if config.registers:
        return "dinov2_with_registers"
    return "vit" if config.layer_scale is None else "dinov2"


def write(model_type: str, config: ViTConfig) -> tuple[dict[str, Any], list[str]]:
    _check_writable(model_type, config)
    fields: dict[str, Any] = {}
    if config.layer_scale is not None:
        fields = {"mlp_ratio": config.mlp_width // config.width, "use_swiglu_ffn": False}
    if model_type == "deit" and config.classes and config.pool == "cls":
        fields = {"architectures": ["DeiTForImageClassificationWithTeacher"]}
    return fields, _notes(model_type, config)


def _check_writable(model_type: str, config: ViTConfig) -> None:
    of_dino = model_type.startswith("dinov2")
    pools = POOLS[model_type] if config.classes else ("cls", *POOLS[model_type])
    remainder = any(length % patch for length, patch in zip(config.image_size, config.patch_size))
    wrong = {
        f"the prefix {config.prefix}": config.prefix != (("cls", "dist") if model_type == "deit" else ("cls",)),
        f"pool={config.pool!r}": config.pool not in pools,
        "a stem of convolutions": config.stem is not None,
        "registers": config.registers > 0 and not of_dino,
        "LayerScale": config.layer_scale is not None and not of_dino,
        "registers without LayerScale": config.layer_scale is None and of_dino,
        f"an MLP {config.mlp_width} wide, no multiple of {config.width},": of_dino
        and config.mlp_width % config.width > 0,
        f"{config.positions} positions, {config.positions_at}": (config.positions, config.positions_at)
        != ("learned", "stem"),
        "a hidden layer in the head": config.pre_logits,
        f"windows of {config.window} patches": config.window > 0,
        "blocks without skips": not config.skips,
        "padding": remainder,
    }
    refuse(f"transformers' {model_type!r}", wrong)


def _notes(model_type: str, config: ViTConfig) -> list[str]:
    notes = []
    rule = RULES.get(model_type, "bicubic")
    if config.position_resize != rule:
        notes.append(
            f"at other image sizes positions are resized by {rule!r} in transformers, by {config.position_resize!r} in vitrail"
        )
    if config.pad:
        notes.append("partial patches at the border are cropped by transformers, and padded with zeros by vitrail")
    if not config.classes and model_type in ("vit", "deit"):
        notes.append("the pooler of the bare model has no weights: use last_hidden_state, not pooler_output")
    return notes


def express_config(config: ViTConfig) -> tuple[ViTConfig, list[str]]:
    """Returns the config with positions as one learned table at the stem, if that is equivalent, and a note."""
    at_stem = config.positions in ("learned", "sincos2d") and config.positions_at == "stem"
    if not at_stem and config.positions != "none":
        return config, []
    note = (
        "positions are written as a table: for other image sizes transformers resizes it, and vitrail recomputes them"
    )
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
    return {**state, "pos_embed": torch.cat([nowhere, table], 1)}


def restore_state(config: ViTConfig, state: State) -> State:
    """The inverse of `express_state`."""
    others = {name: tensor for name, tensor in state.items() if name != "pos_embed"}
    if config.positions != "learned":
        return others
    return {**others, "pos_embed": state["pos_embed"][:, len(config.prefix) - config.prefix_slots :]}


def _family(model_type: str, body: str | None = None, **fields: Any) -> Family:
    return Family(
        model_type=model_type,
        body=body or model_type,
        read=partial(read, model_type),
        write=partial(write, model_type),
        express=express_config,
        express_state=express_state,
        restore_state=restore_state,
        **fields,
    )


OF_DINO: dict[str, Any] = {
    "heads": {"head": "classifier"},
    "unused": ("embeddings.mask_token",),
    "processor": "Bit",
    "others": {"mlp_ratio": 4, "use_swiglu_ffn": False},
}
FAMILIES = (
    _family(
        "vit",
        names=OF_VIT,
        heads={"head": "classifier"},
        unused=("embeddings.mask_token", "pooler."),
        unused_heads=("decoder.",),
        model="ViT",
        processor="ViT",
        fields=FIELDS_OF_VIT,
    ),
    _family(
        "deit",
        names={**OF_VIT, "dist_token": "embeddings.distillation_token"},
        heads={
            "head": "classifier",
            "head.cls": "cls_classifier",
            "head.dist": "distillation_classifier",
        },
        unused=("embeddings.mask_token", "pooler."),
        unused_heads=("decoder.",),
        model="DeiT",
        processor="DeiT",
        fields=FIELDS_OF_VIT,
    ),
    _family(
        "vit_mae",
        body="vit",
        names=OF_VIT,
        heads={},
        unused_heads=("decoder.",),
        model="ViTMAE",
        processor="ViT",
        fields=FIELDS_OF_VIT,
    ),
    _family(
        "dinov2",
        names=OF_DINOV2,
        model="Dinov2",
        fields=(*FIELDS_OF_DINOV2, PATCH_SIZE._replace(default=14)),
        **OF_DINO,
    ),
    _family(
        "dinov2_with_registers",
        names={**OF_DINOV2, "reg_token": "embeddings.register_tokens"},
        model="Dinov2WithRegisters",
        fields=(*FIELDS_OF_DINOV2, PATCH_SIZE, Field("registers", "num_register_tokens", 4)),
        **OF_DINO,
    ),
)
