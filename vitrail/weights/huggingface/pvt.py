"""PVT and PVT v2 in transformers: names and config.json. Both have a single eps, and v1 has four stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.pvt import PVTConfig
from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.weights.huggingface.family import (
    Family,
    State,
    act_of,
    check_expressible,
    count_outputs,
    gelu_of,
    side_or_pair,
)
from vitrail.weights.qkv import KV

STAGES = 4
BLOCK = "encoder.block.{}.{}"
NAMES = {
    "cls_token": f"encoder.patch_embeddings.{STAGES - 1}.cls_token",
    "patch_embed.proj": "encoder.patch_embeddings.0.projection",
    "patch_embed.norm": "encoder.patch_embeddings.0.layer_norm",
    "stages.{}.pos_embed": "encoder.patch_embeddings.{}.position_embeddings",
    "stages.{}.downsample.proj": "encoder.patch_embeddings.{}.projection",
    "stages.{}.downsample.norm": "encoder.patch_embeddings.{}.layer_norm",
    "stages.{}.blocks.{}.norm1": f"{BLOCK}.layer_norm_1",
    "stages.{}.blocks.{}.attn.q": f"{BLOCK}.attention.self.query",
    "stages.{}.blocks.{}.attn.k": f"{BLOCK}.attention.self.key",
    "stages.{}.blocks.{}.attn.v": f"{BLOCK}.attention.self.value",
    "stages.{}.blocks.{}.attn.sr": f"{BLOCK}.attention.self.sequence_reduction",
    "stages.{}.blocks.{}.attn.norm": f"{BLOCK}.attention.self.layer_norm",
    "stages.{}.blocks.{}.attn.proj": f"{BLOCK}.attention.output.dense",
    "stages.{}.blocks.{}.norm2": f"{BLOCK}.layer_norm_2",
    "stages.{}.blocks.{}.mlp.fc1": f"{BLOCK}.mlp.dense1",
    "stages.{}.blocks.{}.mlp.fc2": f"{BLOCK}.mlp.dense2",
    "norm": "encoder.layer_norm",
}
LAYER = "encoder.layers.{}"
NAMES_V2 = {
    "patch_embed.proj": "encoder.layers.0.patch_embedding.proj",
    "patch_embed.norm": "encoder.layers.0.patch_embedding.layer_norm",
    "stages.{}.downsample.proj": f"{LAYER}.patch_embedding.proj",
    "stages.{}.downsample.norm": f"{LAYER}.patch_embedding.layer_norm",
    "stages.{}.blocks.{}.norm1": f"{LAYER}.blocks.{{}}.layer_norm_1",
    "stages.{}.blocks.{}.attn.q": f"{LAYER}.blocks.{{}}.attention.query",
    "stages.{}.blocks.{}.attn.k": f"{LAYER}.blocks.{{}}.attention.key",
    "stages.{}.blocks.{}.attn.v": f"{LAYER}.blocks.{{}}.attention.value",
    "stages.{}.blocks.{}.attn.sr": f"{LAYER}.blocks.{{}}.attention.spatial_reduction",
    "stages.{}.blocks.{}.attn.norm": f"{LAYER}.blocks.{{}}.attention.layer_norm",
    "stages.{}.blocks.{}.attn.proj": f"{LAYER}.blocks.{{}}.attention.proj",
    "stages.{}.blocks.{}.norm2": f"{LAYER}.blocks.{{}}.layer_norm_2",
    "stages.{}.blocks.{}.mlp.fc1": f"{LAYER}.blocks.{{}}.mlp.dense1",
    "stages.{}.blocks.{}.mlp.dwconv": f"{LAYER}.blocks.{{}}.mlp.dwconv.dwconv",
    "stages.{}.blocks.{}.mlp.fc2": f"{LAYER}.blocks.{{}}.mlp.dense2",
    "stages.{}.norm": f"{LAYER}.layer_norm",
}
DEFAULTS = {
    "image_size": 224,
    "num_channels": 3,
    "depths": [2, 2, 2, 2],
    "hidden_sizes": [64, 128, 320, 512],
    "patch_sizes": [4, 2, 2, 2],
    "strides": [4, 2, 2, 2],
    "num_attention_heads": [1, 2, 5, 8],
    "mlp_ratios": [8, 8, 4, 4],
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
}
DEFAULTS_V1 = {**DEFAULTS, "sequence_reduction_ratios": [8, 4, 2, 1]}
DEFAULTS_V2 = {
    **DEFAULTS,
    "image_size": [224, 224],
    "hidden_sizes": [32, 64, 160, 256],
    "patch_sizes": [7, 3, 3, 3],
    "sr_ratios": [8, 4, 2, 1],
    "linear_attention": False,
}


def read(fields: Mapping[str, Any], state: State) -> PVTConfig:
    """Returns the config of a PVT with the tensors ``state`` and the ``fields`` of config.json."""
    strides, common = fields["strides"], _read(fields, state)
    if len(strides) != STAGES or fields["patch_sizes"] != strides:
        what = f"it has patches of {str(fields['patch_sizes'])[:80]} every {str(strides)[:80]}"
        raise CheckpointError(what, f"supported: {STAGES} stages without overlap")
    return PVTConfig(**common, reductions=fields["sequence_reduction_ratios"])


def read_v2(fields: Mapping[str, Any], state: State) -> PVTv2Config:
    """Returns the config of a PVT v2."""
    strides, common = fields["strides"], _read(fields, state)
    if fields["patch_sizes"] != [2 * stride - 1 for stride in strides]:
        what = f"it has patches of {str(fields['patch_sizes'])[:80]} every {str(strides)[:80]}"
        raise CheckpointError(what, "supported: patches of 2 * stride - 1")
    return PVTv2Config(**common, reductions=fields["sr_ratios"], linear=fields["linear_attention"])


def _read(fields: Mapping[str, Any], state: State) -> dict[str, Any]:
    strides = fields["strides"]
    if not isinstance(strides, Sequence) or not strides or list(strides[1:]) != [2] * len(strides[1:]):
        raise CheckpointError(f"it has the strides {str(strides)[:80]}", "all strides after the first must be 2")
    return {
        "image_size": fields["image_size"],
        "patch_size": strides[0],
        "in_channels": fields["num_channels"],
        "classes": count_outputs(state),
        "widths": fields["hidden_sizes"],
        "depths": fields["depths"],
        "heads": fields["num_attention_heads"],
        "mlp_ratios": fields["mlp_ratios"],
        "gelu": gelu_of(fields["hidden_act"]),
        "norm_eps": fields["layer_norm_eps"],
        "conv_norm_eps": fields["layer_norm_eps"],
        "qkv_bias": fields["qkv_bias"],
        "dropout": fields["hidden_dropout_prob"],
        "attention_dropout": fields["attention_probs_dropout_prob"],
        "drop_path": fields["drop_path_rate"],
    }


def write(config: PVTConfig) -> tuple[str, dict[str, Any], list[str]]:
    """Returns the class, the fields of config.json and notes for a config of a PVT."""
    whole = [length * 2 ** (STAGES - 1) for length in config.patch_size]
    wrong = {
        f"{len(config.depths)} stages, it has {STAGES},": len(config.depths) != STAGES,
        "patches that are not 4x4": config.patch_size != (4, 4),
        "an image that is not square": config.image_size[0] != config.image_size[1],
        "padding": any(length % patch for length, patch in zip(config.image_size, whole)),
    }
    check_expressible("pvt", wrong)
    fields = _write("pvt", config)
    # without num_labels transformers assumes 1,000 classes, independent of their names
    sizes = {
        "patch_sizes": fields["strides"],
        "sequence_reduction_ratios": list(config.reductions),
        "num_labels": config.classes,
    }
    notes = ["transformers does not support other image sizes"]
    return "PvtForImageClassification" if config.classes else "PvtModel", {**fields, **sizes}, notes


def write_v2(config: PVTv2Config) -> tuple[str, dict[str, Any], list[str]]:
    """Returns the class, the fields of config.json and notes for a config of a PVT v2."""
    fields = _write("pvt_v2", config)
    sizes = {
        "patch_sizes": [2 * stride - 1 for stride in fields["strides"]],
        "sr_ratios": list(config.reductions),
        "linear_attention": config.linear,
    }
    return "PvtV2ForImageClassification" if config.classes else "PvtV2Model", {**fields, **sizes}, []


def _write(model_type: str, config: PVTConfig | PVTv2Config) -> dict[str, Any]:
    check_expressible(model_type, {"a patch that is not square": config.patch_size[0] != config.patch_size[1]})
    return {
        "image_size": side_or_pair(config.image_size),
        "num_channels": config.in_channels,
        "num_encoder_blocks": len(config.depths),
        "depths": list(config.depths),
        "hidden_sizes": list(config.widths),
        "strides": [config.patch_size[0], *[2] * (len(config.depths) - 1)],
        "num_attention_heads": list(config.heads),
        "mlp_ratios": list(config.mlp_ratios),
        "hidden_act": act_of(config.gelu),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "drop_path_rate": config.drop_path,
        "layer_norm_eps": config.norm_eps,
        "qkv_bias": config.qkv_bias,
    }


def express_config(config: Any) -> tuple[Any, list[str]]:
    """Returns the config with one eps in all norms, as in transformers, and a note."""
    if config.conv_norm_eps == config.norm_eps:
        return config, []
    note = f"norms after convolutions have the eps {config.norm_eps:g} in transformers, not {config.conv_norm_eps:g}"
    return replace(config, conv_norm_eps=config.norm_eps), [note]


def _family(model_type: str, **fields: Any) -> Family:
    head = {"head": "classifier"}
    return Family(
        model_type=model_type, body=model_type, heads=head, parts=KV, processor="Pvt", express=express_config, **fields
    )


PVT = _family("pvt", names=NAMES, defaults=DEFAULTS_V1, read=read, write=write)
PVT_V2 = _family("pvt_v2", names=NAMES_V2, defaults=DEFAULTS_V2, read=read_v2, write=write_v2)
