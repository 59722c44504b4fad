"""BEiT in transformers: names and config.json.

Its relative position tables are correct for square images only; for others, transformers swaps rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.beit import BEiTConfig
from vitrail.weights.huggingface.family import (
    CHANNELS,
    GELU,
    IMAGE_SIZE,
    Family,
    Field,
    side_or_pair,
)
from vitrail.weights.layout import refuse
from vitrail.weights.names import State

LAYER = "encoder.layer.{}"
TABLE = "relative_position_bias.relative_position_bias_table"
NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "rel_pos_bias.relative_position_bias_table": f"encoder.{TABLE}",
    "blocks.{}.norm1": f"{LAYER}.layernorm_before",
    "blocks.{}.attn.q.weight": f"{LAYER}.attention.attention.query.weight",
    "blocks.{}.attn.k.weight": f"{LAYER}.attention.attention.key.weight",
    "blocks.{}.attn.v.weight": f"{LAYER}.attention.attention.value.weight",
    "blocks.{}.attn.q_bias": f"{LAYER}.attention.attention.query.bias",
    "blocks.{}.attn.v_bias": f"{LAYER}.attention.attention.value.bias",
    "blocks.{}.attn.relative_position_bias_table": f"{LAYER}.attention.attention.{TABLE}",
    "blocks.{}.attn.proj": f"{LAYER}.attention.output.dense",
    "blocks.{}.gamma_1": f"{LAYER}.lambda_1",
    "blocks.{}.norm2": f"{LAYER}.layernorm_after",
    "blocks.{}.mlp.fc1": f"{LAYER}.intermediate.dense",
    "blocks.{}.mlp.fc2": f"{LAYER}.output.dense",
    "blocks.{}.gamma_2": f"{LAYER}.lambda_2",
    "norm": "layernorm",
    "fc_norm": "pooler.layernorm",
}
FIELDS = (
    Field("width", "hidden_size", 768),
    Field("depth", "num_hidden_layers", 12),
    Field("heads", "num_attention_heads", 12),
    Field("mlp_width", "intermediate_size", 3072),
    GELU,
    Field("norm_eps", "layer_norm_eps", 1e-12),
    IMAGE_SIZE,
    Field("patch_size", "patch_size", 16, write=side_or_pair),
    CHANNELS,
    Field("positions", "use_absolute_position_embeddings", False),
    Field(
        "layer_scale",
        "layer_scale_init_value",
        0.1,
        lambda scale: scale if scale > 0 else None,
        lambda scale: scale or 0.0,
    ),
    Field("drop_path", "drop_path_rate", 0.1),
)
# use_relative_position_bias, use_shared_relative_position_bias
BIASES = {(True, False): "every", (False, True): "shared", (False, False): "none"}


def read(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> BEiTConfig:
    """In a pretrained model, the head for visual tokens has a norm outside of the body. The class token is pooled after the
    same norm.
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


def write(config: BEiTConfig) -> tuple[dict[str, Any], list[str]]:
    rows, columns = config.grid
    scale = config.layer_scale
    wrong = {
        f"relative positions of {rows}x{columns} patches": rows != columns and config.relative_bias != "none",
        "a patch that is not square": config.patch_size[0] != config.patch_size[1],
        f"LayerScale that starts at {scale}": scale is not None and scale <= 0,
        "padding": any(length % patch for length, patch in zip(config.image_size, config.patch_size)),
    }
    refuse("transformers' 'beit'", wrong)
    fields = {
        "use_relative_position_bias": config.relative_bias == "every",
        "use_shared_relative_position_bias": config.relative_bias == "shared",
        "use_mean_pooling": config.pool == "gap",
    }
    return fields, _notes(config)


def _notes(config: BEiTConfig) -> list[str]:
    rules = {
        "relative positions": (config.relative_bias != "none", config.bias_resize, "bilinear"),
        "positions": (config.positions, config.position_resize, "bicubic"),
    }
    notes = [
        f"at other image sizes {what} are resized by {theirs!r} in transformers, by {ours!r} in vitrail"
        for what, (there, ours, theirs) in rules.items()
        if there and ours != theirs
    ]
    if config.pad:
        notes.append("partial patches at the border are cropped by transformers, and padded with zeros by vitrail")
    return notes


BEIT = Family(
    model_type="beit",
    body="beit",
    names=NAMES,
    heads={"head": "classifier"},
    also={"layernorm": "norm"},
    unused=(
        "embeddings.mask_token",
        "encoder.relative_position_bias.relative_position_index",
        f"{LAYER}.attention.attention.relative_position_bias.relative_position_index",
    ),
    unused_heads=("lm_head.",),
    model="Beit",
    processor="Beit",
    fields=FIELDS,
    others={"use_relative_position_bias": False, "use_shared_relative_position_bias": False},
    read=read,
    write=write,
)
