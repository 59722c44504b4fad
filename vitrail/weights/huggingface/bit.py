"""BiT's ResNet in transformers: names, and config.json. Its kernels are standardised there by timm's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.models.config import GROUPS
from vitrail.models.resnet import STEM_WIDTH, ResNetConfig
from vitrail.models.standardise import standardise
from vitrail.weights.huggingface.family import Family, State, check_expressible, count_outputs

RULE, EPS = "timm", 1e-5  # of kernels, and of group norms
LAYER = "encoder.stages.{}.layers.{}"
NAMES = {
    "stem.conv": "embedder.convolution",
    "stages.{}.blocks.{}.downsample.conv": f"{LAYER}.downsample.conv",
    **{f"stages.{{}}.blocks.{{}}.norm{part}": f"{LAYER}.norm{part}" for part in (1, 2, 3)},
    **{f"stages.{{}}.blocks.{{}}.conv{part}": f"{LAYER}.conv{part}" for part in (1, 2, 3)},
    "norm": "norm",
}
DEFAULTS = {
    "num_channels": 3,
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "drop_path_rate": 0.0,
}
# what is as it is here, and not otherwise
FIXED = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": GROUPS,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
    "width_factor": 1,  # with any other it fails
}
MOST_STAGES = 4  # of more the last maps are not halved there


def read(fields: Mapping[str, Any], state: State) -> ResNetConfig:
    """The config of a model whose tensors are ``state`` and whose config.json states ``fields``, which no size is among."""
    for name, value in FIXED.items():
        if fields[name] != value:
            raise CheckpointError(f"it has {name} {str(fields[name])[:80]!r}", f"BiTs with {name} {value!r} are read")
    if len(fields["depths"]) > MOST_STAGES:
        raise CheckpointError(f"it has {len(fields['depths'])} stages", f"BiTs of up to {MOST_STAGES} stages are read")
    factor, widths, depths = fields["embedding_size"] // STEM_WIDTH, fields["hidden_sizes"], fields["depths"]
    wanted = [4 * STEM_WIDTH * factor * 2**stage for stage in range(len(depths))]
    if widths != wanted or factor * STEM_WIDTH != fields["embedding_size"]:
        what = f"it has widths of {fields['embedding_size']} and {str(widths)[:80]}"
        raise CheckpointError(what, f"{STEM_WIDTH} times a whole number, and 4, 8, 16, ... times that, are read")
    return ResNetConfig(
        in_channels=fields["num_channels"],
        classes=count_outputs(state),
        depths=depths,
        width_factor=factor,
        standardise=RULE,
        group_norm_eps=EPS,
        drop_path=fields["drop_path_rate"],
    )


def write(config: ResNetConfig) -> tuple[str, dict[str, Any], list[str]]:
    """The class, the fields of config.json and notes for a config."""
    wrong = {
        f"group_norm_eps={config.group_norm_eps:g}": config.group_norm_eps != EPS,
        f"{len(config.depths)} stages that halve the map": len(config.depths) > MOST_STAGES,
    }
    check_expressible("bit", wrong)
    stages = range(len(config.depths))
    fields = {
        "num_channels": config.in_channels,
        "embedding_size": config.stem_width,
        "hidden_sizes": [4 * config.stem_width * 2**stage for stage in stages],
        "depths": list(config.depths),
        "drop_path_rate": config.drop_path,
        **FIXED,
    }
    return "BitForImageClassification" if config.classes else "BitModel", fields, []


def express_config(config: ResNetConfig) -> tuple[ResNetConfig, list[str]]:
    """The same with kernels for timm's rule, which leaves those alone that are standardised; and a note."""
    if config.standardise == RULE:
        return config, []
    note = f"kernels are written as {config.standardise!r} standardises them, which their rule {RULE!r} repeats"
    return replace(config, standardise=RULE), [note]


def express_state(config: ResNetConfig, state: State) -> State:
    """The tensors for what `express_config` gives."""
    if config.standardise == RULE:
        return state
    kernels = {name: tensor for name, tensor in state.items() if tensor.ndim == 4}
    return {**state, **{name: standardise(tensor, config.standardise) for name, tensor in kernels.items()}}


BIT = Family(
    model_type="bit",
    body="bit",
    names=NAMES,
    heads={"head": "classifier.1"},
    defaults={**DEFAULTS, **FIXED},
    processor="Bit",
    read=read,
    write=write,
    express=express_config,
    express_state=express_state,
)
