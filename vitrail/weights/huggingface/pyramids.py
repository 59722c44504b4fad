"""Swin, PVT, PVT v2 and BiT's ResNet in transformers: names and config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.config import GROUPS, grid_of
from vitrail.models.layers import standardise
from vitrail.models.pvt import PVTConfig
from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.models.resnet import ResNetConfig, width_fields
from vitrail.models.swin import SwinConfig
from vitrail.text import printable
from vitrail.weights.huggingface.family import CHANNELS, COMMON, IMAGE_SIZE, PATCH_SIZE, Family, Field, name_block
from vitrail.weights.layout import refuse
from vitrail.weights.names import KV, State, nest

DROP_PATH = Field("drop_path", "drop_path_rate", 0.0)
SWIN_EPS = 1e-5  # of the norms after patch embedding and before merging, independent of layer_norm_eps


def read_swin(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> SwinConfig:
    if fields["use_absolute_embeddings"]:
        what = "learned positions (use_absolute_embeddings) are not supported"
        raise CheckpointError(what, "use a model without them")
    if fields["layer_norm_eps"] != SWIN_EPS:
        inside = printable(fields["layer_norm_eps"])
        what = f"it has layer_norm_eps {inside} in its blocks and {SWIN_EPS:g} between them"
        raise CheckpointError(what, f"use a model with layer_norm_eps {SWIN_EPS:g}")
    return SwinConfig(**values)


def write_swin(config: SwinConfig) -> tuple[dict[str, Any], list[str]]:
    smallest = config.grid
    for _ in config.depths[1:]:
        smallest = grid_of(smallest, (2, 2))
    rows, columns = smallest
    wrong = {
        f"windows of {config.window} in a map of {rows}x{columns} (unsupported)": min(smallest) < config.window,
        f"norm_eps={config.norm_eps:g} in all its norms": config.norm_eps != SWIN_EPS,
    }
    refuse("transformers' 'swin'", wrong)
    notes = ["transformers does not support image sizes with maps smaller than a window"]
    return {"use_absolute_embeddings": False}, notes


TABLE = {"attn.relative_position_bias_table": "attention.self.relative_position_bias_table"}
SWIN = Family(
    model_type="swin",
    body="swin",
    names={
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "patch_embed.norm": "embeddings.norm",
        **nest("stages.{}.blocks.{}.", "encoder.layers.{}.blocks.{}.", name_block("self") | TABLE),
        # transformers merges patches at the end of a stage, vitrail at the start of the next
        "stages.{1}.downsample.": "encoder.layers.{}.downsample.",
        "norm": "layernorm",
    },
    unused=("embeddings.mask_token", "encoder.layers.{}.blocks.{}.attention.self.relative_position_index"),
    unused_heads=("decoder.",),
    model="Swin",
    processor="ViT",
    fields=(
        IMAGE_SIZE,
        PATCH_SIZE._replace(default=4),
        *COMMON,
        Field("width", "embed_dim", 96),
        Field("depths", "depths", [2, 2, 6, 2]),
        Field("heads", "num_heads", [3, 6, 12, 24]),
        Field("window", "window_size", 7),
        Field("mlp_ratio", "mlp_ratio", 4.0),
        DROP_PATH._replace(default=0.1),
        Field("norm_eps", "layer_norm_eps", SWIN_EPS),
    ),
    others={"use_absolute_embeddings": False},
    read=read_swin,
    write=write_swin,
)


PVT_STAGES = 4
STRIDES = [4, 2, 2, 2]


def read_pvt(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> PVTConfig:
    values |= _read_strides(fields)
    if len(fields["strides"]) != PVT_STAGES or fields["patch_sizes"] != fields["strides"]:
        raise _patches_error(fields, f"{PVT_STAGES} stages without overlap")
    return PVTConfig(**values)


def read_pvt_v2(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> PVTv2Config:
    values |= _read_strides(fields)
    if fields["patch_sizes"] != [2 * stride - 1 for stride in fields["strides"]]:
        raise _patches_error(fields, "patches of 2 * stride - 1")
    return PVTv2Config(**values)


def _read_strides(fields: Mapping[str, Any]) -> dict[str, Any]:
    strides = fields["strides"]
    if not isinstance(strides, Sequence) or not strides or list(strides[1:]) != [2] * len(strides[1:]):
        raise CheckpointError(f"it has the strides {str(strides)[:80]}", "all strides after the first must be 2")
    return {"patch_size": strides[0], "conv_norm_eps": fields["layer_norm_eps"]}


def _patches_error(fields: Mapping[str, Any], supported: str) -> CheckpointError:
    what = f"it has patches of {str(fields['patch_sizes'])[:80]} every {str(fields['strides'])[:80]}"
    return CheckpointError(what, f"supported: {supported}")


def write_pvt(config: PVTConfig) -> tuple[dict[str, Any], list[str]]:
    whole = [length * 2 ** (PVT_STAGES - 1) for length in config.patch_size]
    wrong = {
        f"{len(config.depths)} stages, it has {PVT_STAGES},": len(config.depths) != PVT_STAGES,
        "patches that are not 4x4": config.patch_size != (4, 4),
        "an image that is not square": config.image_size[0] != config.image_size[1],
        "padding": any(length % patch for length, patch in zip(config.image_size, whole)),
    }
    refuse("transformers' 'pvt'", wrong)
    strides = _strides(config)
    # without num_labels transformers assumes 1,000 classes, independent of their names
    labels = {"num_labels": config.classes}
    fields = {"num_encoder_blocks": PVT_STAGES, "strides": strides, "patch_sizes": strides, **labels}
    return fields, ["transformers does not support other image sizes"]


def write_pvt_v2(config: PVTv2Config) -> tuple[dict[str, Any], list[str]]:
    refuse("transformers' 'pvt_v2'", {"a patch that is not square": config.patch_size[0] != config.patch_size[1]})
    strides = _strides(config)
    patches = [2 * stride - 1 for stride in strides]
    return {"num_encoder_blocks": len(strides), "strides": strides, "patch_sizes": patches}, []


def _strides(config: PVTConfig | PVTv2Config) -> list[int]:
    return [config.patch_size[0], *[2] * (len(config.depths) - 1)]


def unify_eps(config: Any) -> tuple[Any, list[str]]:
    """Returns the config with one eps in all norms, as in transformers, and a note."""
    if config.conv_norm_eps == config.norm_eps:
        return config, []
    note = f"norms after convolutions have the eps {config.norm_eps:g} in transformers, not {config.conv_norm_eps:g}"
    return replace(config, conv_norm_eps=config.norm_eps), [note]


def _name_pvt_block(attention: str, reduction: str, proj: str) -> dict[str, str]:
    projections = {"q": "query", "k": "key", "v": "value", "sr": reduction, "norm": "layer_norm"}
    return {
        "norm1": "layer_norm_1",
        **nest("attn.", f"{attention}.", projections),
        "attn.proj": proj,
        "norm2": "layer_norm_2",
        "mlp.fc1": "mlp.dense1",
        "mlp.fc2": "mlp.dense2",
        "mlp.dwconv": "mlp.dwconv.dwconv",
    }


def _pvt(
    model_type: str, patches: str, proj: str, *, names: dict[str, str], fields: Sequence[Field], **parts: Any
) -> Family:
    """Returns the family whose stages have the projection and the norm of patches in the module ``patches``."""
    embedding = {"proj": proj, "norm": "layer_norm"}
    return Family(
        model_type=model_type,
        body=model_type,
        names={
            **nest("patch_embed.", f"{patches.format(0)}.", embedding),
            **nest("stages.{}.downsample.", f"{patches}.", embedding),
            **names,
        },
        parts=KV,
        processor="Pvt",
        fields=(
            *COMMON,
            Field("depths", "depths", [2, 2, 2, 2]),
            Field("heads", "num_attention_heads", [1, 2, 5, 8]),
            Field("mlp_ratios", "mlp_ratios", [8, 8, 4, 4]),
            DROP_PATH,
            Field("norm_eps", "layer_norm_eps", 1e-6),
            *fields,
        ),
        express=unify_eps,
        **parts,
    )


BLOCK = _name_pvt_block("attention.self", "sequence_reduction", "attention.output.dense")
PVT = _pvt(
    "pvt",
    "encoder.patch_embeddings.{}",
    "projection",
    model="Pvt",
    names={
        "cls_token": f"encoder.patch_embeddings.{PVT_STAGES - 1}.cls_token",
        "stages.{}.pos_embed": "encoder.patch_embeddings.{}.position_embeddings",
        **nest("stages.{}.blocks.{}.", "encoder.block.{}.{}.", BLOCK),
        "norm": "encoder.layer_norm",
    },
    fields=(
        IMAGE_SIZE,
        Field("widths", "hidden_sizes", [64, 128, 320, 512]),
        Field("reductions", "sequence_reduction_ratios", [8, 4, 2, 1]),
    ),
    others={"strides": STRIDES, "patch_sizes": STRIDES},
    read=read_pvt,
    write=write_pvt,
)
BLOCK_V2 = _name_pvt_block("attention", "spatial_reduction", "attention.proj")
PVT_V2 = _pvt(
    "pvt_v2",
    "encoder.layers.{}.patch_embedding",
    "proj",
    model="PvtV2",
    names={
        **nest("stages.{}.blocks.{}.", "encoder.layers.{}.blocks.{}.", BLOCK_V2),
        "stages.{}.norm": "encoder.layers.{}.layer_norm",
    },
    fields=(
        IMAGE_SIZE._replace(default=[224, 224]),
        Field("widths", "hidden_sizes", [32, 64, 160, 256]),
        Field("reductions", "sr_ratios", [8, 4, 2, 1]),
        Field("linear", "linear_attention", False),
    ),
    others={"strides": STRIDES, "patch_sizes": [7, 3, 3, 3]},
    read=read_pvt_v2,
    write=write_pvt_v2,
)


BIT_RULE, BIT_EPS = "timm", 1e-5  # of kernel standardisation and group norms
# fields with a single supported value
BIT_FIXED = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": GROUPS,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
    "width_factor": 1,  # other values fail in transformers
}
BIT_STAGES = 4  # further stages do not downsample in transformers


def read_bit(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ResNetConfig:
    for name, value in BIT_FIXED.items():
        if fields[name] != value:
            raise CheckpointError(f"it has {name} {str(fields[name])[:80]!r}", f"only {name} {value!r} is supported")
    if len(fields["depths"]) > BIT_STAGES:
        raise CheckpointError(f"it has {len(fields['depths'])} stages", f"at most {BIT_STAGES} stages are supported")
    root, widths = fields["embedding_size"], fields["hidden_sizes"]
    if root % GROUPS or widths != _bit_widths(root, len(fields["depths"])):
        what = f"it has widths of {root} and {str(widths)[:80]}"
        raise CheckpointError(what, f"supported: a multiple of {GROUPS}, and 4, 8, 16, ... times that")
    return ResNetConfig(**values, **width_fields(root), standardise=BIT_RULE, group_norm_eps=BIT_EPS)


def write_bit(config: ResNetConfig) -> tuple[dict[str, Any], list[str]]:
    wrong = {
        f"the stem {config.stem!r}": config.stem != "paper",
        f"group_norm_eps={config.group_norm_eps:g}": config.group_norm_eps != BIT_EPS,
        f"{len(config.depths)} stages that halve the map": len(config.depths) > BIT_STAGES,
    }
    refuse("transformers' 'bit'", wrong)
    widths = _bit_widths(config.root_width, len(config.depths))
    return {"embedding_size": config.root_width, "hidden_sizes": widths, **BIT_FIXED}, []


def _bit_widths(root: int, stages: int) -> list[int]:
    return [4 * root * 2**stage for stage in range(stages)]


def express_bit(config: ResNetConfig) -> tuple[ResNetConfig, list[str]]:
    """Returns the config with timm's rule, which does not change kernels that are already standardised, and a note."""
    if config.standardise == BIT_RULE:
        return config, []
    note = f"kernels are written standardised by {config.standardise!r}, which transformers' rule {BIT_RULE!r} does not change"
    return replace(config, standardise=BIT_RULE), [note]


def standardise_kernels(config: ResNetConfig, state: State) -> State:
    """Returns the tensors for a config of `express_bit`."""
    if config.standardise == BIT_RULE:
        return state
    kernels = {name: tensor for name, tensor in state.items() if tensor.ndim == 4}
    return {**state, **{name: standardise(tensor, config.standardise) for name, tensor in kernels.items()}}


BOTTLENECK = {
    "downsample.conv": "downsample.conv",
    **{f"{kind}{part}": f"{kind}{part}" for kind in ("norm", "conv") for part in (1, 2, 3)},
}
BIT = Family(
    model_type="bit",
    body="bit",
    names={
        "stem.conv": "embedder.convolution",
        **nest("stages.{}.blocks.{}.", "encoder.stages.{}.layers.{}.", BOTTLENECK),
        "norm": "norm",
    },
    heads={"head": "classifier.1"},
    model="Bit",
    processor="Bit",
    fields=(CHANNELS, Field("depths", "depths", [3, 4, 6, 3]), DROP_PATH),
    others={"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], **BIT_FIXED},
    read=read_bit,
    write=write_bit,
    express=express_bit,
    express_state=standardise_kernels,
)
FAMILIES = (SWIN, PVT, PVT_V2, BIT)
