"""The Swin Transformer in transformers: names and config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.config import grid_of
from vitrail.models.swin import SwinConfig
from vitrail.weights.huggingface.family import (
    Family,
    State,
    act_of,
    check_expressible,
    count_outputs,
    gelu_of,
    side_or_pair,
)
from vitrail.weights.tensors import printable

MOST_STAGES = 16
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
    **{
        f"stages.{stage}.downsample.{part}": f"encoder.layers.{stage - 1}.downsample.{part}"
        for stage in range(1, MOST_STAGES)
        for part in ("norm", "reduction")
    },
    "norm": "layernorm",
}
DEFAULTS = {
    "image_size": 224,
    "patch_size": 4,
    "num_channels": 3,
    "embed_dim": 96,
    "depths": [2, 2, 6, 2],
    "num_heads": [3, 6, 12, 24],
    "window_size": 7,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.1,
    "hidden_act": "gelu",
    "use_absolute_embeddings": False,
    "layer_norm_eps": EPS,
}


def read(fields: Mapping[str, Any], state: State) -> SwinConfig:
    """Returns the config of a model with the tensors ``state`` and the ``fields`` of config.json."""
    if fields["use_absolute_embeddings"]:
        raise CheckpointError("it has learned positions (use_absolute_embeddings)", "they are not supported")
    if fields["layer_norm_eps"] != EPS:
        what = f"it has layer_norm_eps {printable(fields['layer_norm_eps'])} in its blocks and {EPS:g} between them"
        raise CheckpointError(what, "both must be equal")
    return SwinConfig(
        image_size=fields["image_size"],
        patch_size=fields["patch_size"],
        in_channels=fields["num_channels"],
        classes=count_outputs(state),
        width=fields["embed_dim"],
        depths=fields["depths"],
        heads=fields["num_heads"],
        window=fields["window_size"],
        mlp_ratio=fields["mlp_ratio"],
        qkv_bias=fields["qkv_bias"],
        gelu=gelu_of(fields["hidden_act"]),
        norm_eps=fields["layer_norm_eps"],
        dropout=fields["hidden_dropout_prob"],
        attention_dropout=fields["attention_probs_dropout_prob"],
        drop_path=fields["drop_path_rate"],
    )


def write(config: SwinConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Returns the class, the fields of config.json and notes for a config."""
    smallest = config.grid
    for _ in config.depths[1:]:
        smallest = grid_of(smallest, (2, 2))
    rows, columns = smallest
    wrong = {
        f"windows of {config.window} in a map of {rows}x{columns} (unsupported)": min(smallest) < config.window,
        f"{len(config.depths)} stages": len(config.depths) > MOST_STAGES,
        f"norm_eps={config.norm_eps:g} in all its norms": config.norm_eps != EPS,
    }
    check_expressible("swin", wrong)
    fields = {
        "image_size": side_or_pair(config.image_size),
        "patch_size": side_or_pair(config.patch_size),
        "num_channels": config.in_channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "drop_path_rate": config.drop_path,
        "hidden_act": act_of(config.gelu),
        "use_absolute_embeddings": False,
        "layer_norm_eps": EPS,
    }
    notes = ["transformers does not support image sizes with maps smaller than a window"]
    return "SwinForImageClassification" if config.classes else "SwinModel", fields, notes


SWIN = Family(
    model_type="swin",
    body="swin",
    names=NAMES,
    heads={"head": "classifier"},
    unused=("embeddings.mask_token", "encoder.layers.{}.blocks.{}.attention.self.relative_position_index"),
    unused_heads=("decoder",),
    defaults=DEFAULTS,
    processor="ViT",
    read=read,
    write=write,
)
