"""PVT and PVT v2 in transformers: names and config.json. Both have a single eps, and v1 has four stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.pvt import PVTConfig
from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.weights.huggingface.family import (
    CHANNELS,
    DROPOUTS,
    GELU,
    IMAGE_SIZE,
    QKV_BIAS,
    Family,
    Field,
)
from vitrail.weights.layout import refuse
from vitrail.weights.names import KV, State

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
FIELDS = (
    CHANNELS,
    Field("depths", "depths", [2, 2, 2, 2], write=list),
    Field("heads", "num_attention_heads", [1, 2, 5, 8], write=list),
    Field("mlp_ratios", "mlp_ratios", [8, 8, 4, 4], write=list),
    GELU,
    *DROPOUTS,
    Field("drop_path", "drop_path_rate", 0.0),
    Field("norm_eps", "layer_norm_eps", 1e-6),
    QKV_BIAS,
)
FIELDS_V1 = (
    IMAGE_SIZE,
    *FIELDS,
    Field("widths", "hidden_sizes", [64, 128, 320, 512], write=list),
    Field("reductions", "sequence_reduction_ratios", [8, 4, 2, 1], write=list),
)
FIELDS_V2 = (
    IMAGE_SIZE._replace(default=[224, 224]),
    *FIELDS,
    Field("widths", "hidden_sizes", [32, 64, 160, 256], write=list),
    Field("reductions", "sr_ratios", [8, 4, 2, 1], write=list),
    Field("linear", "linear_attention", False),
)
STRIDES = [4, 2, 2, 2]


def read(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> PVTConfig:
    """Returns the config of a PVT."""
    values |= _read(fields)
    if len(fields["strides"]) != STAGES or fields["patch_sizes"] != fields["strides"]:
        raise _patches_error(fields, f"{STAGES} stages without overlap")
    return PVTConfig(**values)


def read_v2(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> PVTv2Config:
    """Returns the config of a PVT v2."""
    values |= _read(fields)
    if fields["patch_sizes"] != [2 * stride - 1 for stride in fields["strides"]]:
        raise _patches_error(fields, "patches of 2 * stride - 1")
    return PVTv2Config(**values)


def _read(fields: Mapping[str, Any]) -> dict[str, Any]:
    strides = fields["strides"]
    if not isinstance(strides, Sequence) or not strides or list(strides[1:]) != [2] * len(strides[1:]):
        raise CheckpointError(f"it has the strides {str(strides)[:80]}", "all strides after the first must be 2")
    return {"patch_size": strides[0], "conv_norm_eps": fields["layer_norm_eps"]}


def _patches_error(fields: Mapping[str, Any], supported: str) -> CheckpointError:
    what = f"it has patches of {str(fields['patch_sizes'])[:80]} every {str(fields['strides'])[:80]}"
    return CheckpointError(what, f"supported: {supported}")


def write(config: PVTConfig) -> tuple[dict[str, Any], list[str]]:
    whole = [length * 2 ** (STAGES - 1) for length in config.patch_size]
    wrong = {
        f"{len(config.depths)} stages, it has {STAGES},": len(config.depths) != STAGES,
        "patches that are not 4x4": config.patch_size != (4, 4),
        "an image that is not square": config.image_size[0] != config.image_size[1],
        "padding": any(length % patch for length, patch in zip(config.image_size, whole)),
    }
    refuse("transformers' 'pvt'", wrong)
    strides = _strides(config)
    # without num_labels transformers assumes 1,000 classes, independent of their names
    fields = {"num_encoder_blocks": STAGES, "strides": strides, "patch_sizes": strides, "num_labels": config.classes}
    return fields, ["transformers does not support other image sizes"]


def write_v2(config: PVTv2Config) -> tuple[dict[str, Any], list[str]]:
    refuse("transformers' 'pvt_v2'", {"a patch that is not square": config.patch_size[0] != config.patch_size[1]})
    strides = _strides(config)
    patches = [2 * stride - 1 for stride in strides]
    return {"num_encoder_blocks": len(strides), "strides": strides, "patch_sizes": patches}, []


def _strides(config: PVTConfig | PVTv2Config) -> list[int]:
    return [config.patch_size[0], *[2] * (len(config.depths) - 1)]


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


PVT = _family(
    "pvt",
    model="Pvt",
    names=NAMES,
    fields=FIELDS_V1,
    others={"strides": STRIDES, "patch_sizes": STRIDES},
    read=read,
    write=write,
)
PVT_V2 = _family(
    "pvt_v2",
    model="PvtV2",
    names=NAMES_V2,
    fields=FIELDS_V2,
    others={"strides": STRIDES, "patch_sizes": [7, 3, 3, 3]},
    read=read_v2,
    write=write_v2,
)
