"""The Swin Transformer in transformers: names and config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.config import grid_of
from vitrail.models.swin import SwinConfig
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
from vitrail.weights.tensors import printable

EPS = 1e-5  # of the norms after patch embedding and before merging, independent of layer_norm_eps
NAMES = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "patch_embed.norm": "embeddings.norm",
    "stages.{}.blocks.{}.norm1": "encoder.layers.{}.blocks.{}.layernorm_before",
    "stages.{}.blocks.{}.attn.q": "encoder.layers.{}.blocks.{}.attention.self.query",
    "stages.{}.blocks.{}.attn.k": "encoder.layers.{}.blocks.{}.attention.self.key",
    "stages.{}.blocks.{}.attn.v": "encoder.layers.{}.blocks.{}.attention.self.value",
    "stages.{}.blocks.{}.attn.relative_position_bias_table": (
        "encoder.layers.{}.blocks.{}.attention.self.relative_position_bias_table"
    ),
    "stages.{}.blocks.{}.attn.proj": "encoder.layers.{}.blocks.{}.attention.output.dense",
    "stages.{}.blocks.{}.norm2": "encoder.layers.{}.blocks.{}.layernorm_after",
    "stages.{}.blocks.{}.mlp.fc1": "encoder.layers.{}.blocks.{}.intermediate.dense",
    "stages.{}.blocks.{}.mlp.fc2": "encoder.layers.{}.blocks.{}.output.dense",
    # transformers merges patches at the end of a stage, vitrail at the start of the next
    "stages.{1}.downsample.": "encoder.layers.{}.downsample.",
    "norm": "layernorm",
}
FIELDS = (
    IMAGE_SIZE,
    Field("patch_size", "patch_size", 4, write=side_or_pair),
    CHANNELS,
    Field("width", "embed_dim", 96),
    Field("depths", "depths", [2, 2, 6, 2], write=list),
    Field("heads", "num_heads", [3, 6, 12, 24], write=list),
    Field("window", "window_size", 7),
    Field("mlp_ratio", "mlp_ratio", 4.0),
    QKV_BIAS,
    *DROPOUTS,
    Field("drop_path", "drop_path_rate", 0.1),
    GELU,
    Field("norm_eps", "layer_norm_eps", EPS),
)


def read(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> SwinConfig:
    if fields["use_absolute_embeddings"]:
        raise CheckpointError(
            "learned positions (use_absolute_embeddings) are not supported", "use a model without them"
        )
    if fields["layer_norm_eps"] != EPS:
        what = f"it has layer_norm_eps {printable(fields['layer_norm_eps'])} in its blocks and {EPS:g} between them"
        raise CheckpointError(what, f"use a model with layer_norm_eps {EPS:g}")
    return SwinConfig(**values)


def write(config: SwinConfig) -> tuple[dict[str, Any], list[str]]:
    smallest = config.grid
    for _ in config.depths[1:]:
        smallest = grid_of(smallest, (2, 2))
    rows, columns = smallest
    wrong = {
        f"windows of {config.window} in a map of {rows}x{columns} (unsupported)": min(smallest) < config.window,
        f"norm_eps={config.norm_eps:g} in all its norms": config.norm_eps != EPS,
    }
    refuse("transformers' 'swin'", wrong)
    notes = ["transformers does not support image sizes with maps smaller than a window"]
    return {"use_absolute_embeddings": False}, notes


SWIN = Family(
    model_type="swin",
    body="swin",
    names=NAMES,
    heads={"head": "classifier"},
    unused=("embeddings.mask_token", "encoder.layers.{}.blocks.{}.attention.self.relative_position_index"),
    unused_heads=("decoder.",),
    model="Swin",
    processor="ViT",
    fields=FIELDS,
    others={"use_absolute_embeddings": False},
    read=read,
    write=write,
)
