"""BiT's ResNet in transformers: names and config.json. transformers standardises kernels by timm's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.config import GROUPS
from vitrail.models.layers import standardise
from vitrail.models.resnet import ResNetConfig, width_fields
from vitrail.weights.huggingface.family import CHANNELS, Family, Field
from vitrail.weights.layout import refuse
from vitrail.weights.names import State

RULE, EPS = "timm", 1e-5  # of kernel standardisation and group norms
LAYER = "encoder.stages.{}.layers.{}"
NAMES = {
    "stem.conv": "embedder.convolution",
    "stages.{}.blocks.{}.downsample.conv": f"{LAYER}.downsample.conv",
    **{f"stages.{{}}.blocks.{{}}.norm{part}": f"{LAYER}.norm{part}" for part in (1, 2, 3)},
    **{f"stages.{{}}.blocks.{{}}.conv{part}": f"{LAYER}.conv{part}" for part in (1, 2, 3)},
    "norm": "norm",
}
FIELDS = (CHANNELS, Field("depths", "depths", [3, 4, 6, 3], write=list), Field("drop_path", "drop_path_rate", 0.0))
WIDTHS = {"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048]}
# fields with a single supported value
FIXED = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": GROUPS,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
    "width_factor": 1,  # other values fail in transformers
}
MOST_STAGES = 4  # further stages do not downsample in transformers


def read(values: dict[str, Any], fields: Mapping[str, Any], state: State) -> ResNetConfig:
    for name, value in FIXED.items():
        if fields[name] != value:
            raise CheckpointError(f"it has {name} {str(fields[name])[:80]!r}", f"only {name} {value!r} is supported")
    if len(fields["depths"]) > MOST_STAGES:
        raise CheckpointError(f"it has {len(fields['depths'])} stages", f"at most {MOST_STAGES} stages are supported")
    root, widths = fields["embedding_size"], fields["hidden_sizes"]
    if root % GROUPS or widths != _widths(root, len(fields["depths"])):
        what = f"it has widths of {root} and {str(widths)[:80]}"
        raise CheckpointError(what, f"supported: a multiple of {GROUPS}, and 4, 8, 16, ... times that")
    return ResNetConfig(**values, **width_fields(root), standardise=RULE, group_norm_eps=EPS)


def write(config: ResNetConfig) -> tuple[dict[str, Any], list[str]]:
    wrong = {
        f"the stem {config.stem!r}": config.stem != "paper",
        f"group_norm_eps={config.group_norm_eps:g}": config.group_norm_eps != EPS,
        f"{len(config.depths)} stages that halve the map": len(config.depths) > MOST_STAGES,
    }
    refuse("transformers' 'bit'", wrong)
    widths = _widths(config.root_width, len(config.depths))
    return {"embedding_size": config.root_width, "hidden_sizes": widths, **FIXED}, []


def _widths(root: int, stages: int) -> list[int]:
    return [4 * root * 2**stage for stage in range(stages)]


def express_config(config: ResNetConfig) -> tuple[ResNetConfig, list[str]]:
    """Returns the config with timm's rule, which does not change kernels that are already standardised, and a note."""
    if config.standardise == RULE:
        return config, []
    note = (
        f"kernels are written standardised by {config.standardise!r}, which transformers' rule {RULE!r} does not change"
    )
    return replace(config, standardise=RULE), [note]


def express_state(config: ResNetConfig, state: State) -> State:
    """Returns the tensors for a config of `express_config`."""
    if config.standardise == RULE:
        return state
    kernels = {name: tensor for name, tensor in state.items() if tensor.ndim == 4}
    return {**state, **{name: standardise(tensor, config.standardise) for name, tensor in kernels.items()}}


BIT = Family(
    model_type="bit",
    body="bit",
    names=NAMES,
    heads={"head": "classifier.1"},
    model="Bit",
    processor="Bit",
    fields=FIELDS,
    others={**WIDTHS, **FIXED},
    read=read,
    write=write,
    express=express_config,
    express_state=express_state,
)
