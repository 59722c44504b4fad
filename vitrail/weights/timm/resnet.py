"""timm's layout of BiT's ResNet. The names are those of `vitrail.models.resnet`, except for the head, a convolution.

F channels of the last map, K classes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.models.resnet import ResNetConfig, width_fields
from vitrail.weights.tensors import printable
from vitrail.weights.timm.family import COMMON, Family, State, count_outputs, refuse

BLOCK = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.")
# timm's kernel standardisation and norms, in BiT and in hybrids
NUMERICS: dict[str, Any] = {"standardise": "timm", "group_norm_eps": 1e-5}
# blocks per stage, for which timm has no argument -> timm's name, and the available width factors
LAYERS = {
    "50": ((3, 4, 6, 3), (1, 3)),
    "101": ((3, 4, 23, 3), (1, 3)),
    "152": ((3, 8, 36, 3), (2, 4)),
}


def read(state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any]) -> tuple[ResNetConfig, State]:
    """Infers the config. The image size is not in the tensors: 224 pixels unless the arguments state otherwise."""
    width, channels, *_ = state["stem.conv.weight"].shape  # (D, C, 7, 7)
    config = ResNetConfig(
        image_size=arguments.get("input_size") or (224, 224),
        in_channels=channels,
        classes=count_outputs(state, "head.fc.weight"),
        depths=depths_of(state),
        **width_fields(width),
        **NUMERICS,
    )
    # (K, F, 1, 1) to (K, F)
    return config, {
        name.replace("head.fc.", "head."): tensor.flatten(1) if name == "head.fc.weight" else tensor
        for name, tensor in state.items()
    }


def depths_of(state: Mapping[str, Tensor], before: str = "") -> tuple[int, ...]:
    """Returns the blocks of each stage whose names begin with ``before``. They are counted, so that large numbers in names
    have no effect. Raises `ValueError` if a stage is missing.
    """
    blocks: dict[str, set[str]] = defaultdict(set)
    for name in state:
        if name.startswith(before) and (match := BLOCK.match(name, len(before))):
            blocks[match[1]].add(match[2])
    stages = [str(number) for number in range(len(blocks))]
    if blocks.keys() != set(stages):
        raise ValueError(f"its stages are {', '.join(sorted(blocks))}")
    return tuple(len(blocks[stage]) for stage in stages)


def check(config: ResNetConfig) -> None:
    wrong = {
        f"the stem {config.stem!r}": config.stem != "paper",
        f"stages of {', '.join(map(str, config.depths))} blocks": not _layers(config),
    }
    refuse("BiT", wrong)


def write(config: ResNetConfig, state: Mapping[str, Tensor]) -> State:
    return {
        name.replace("head.", "head.fc."): tensor[:, :, None, None] if name == "head.weight" else tensor
        for name, tensor in state.items()
    }


def arguments(config: ResNetConfig) -> dict[str, Any]:
    """Returns timm's arguments. timm multiplies widths by the factor of the named model, with one stage per width."""
    width = config.root_width // _factor(config)
    return {
        "in_chans": config.in_channels,
        "stem_chs": width,
        "channels": [4 * width * 2**stage for stage in range(len(config.depths))],
    }


def architecture(config: ResNetConfig) -> str:
    """Returns the name of a timm model of this size, or of one that the arguments change to this size."""
    return f"resnetv2_{_layers(config)}x{_factor(config)}_bit"


def _layers(config: ResNetConfig) -> str | None:
    """Returns the name of the model whose first stages have those blocks, or None."""
    return next((word for word, (depths, _) in LAYERS.items() if depths[: len(config.depths)] == config.depths), None)


def _factor(config: ResNetConfig) -> int:
    _, factors = LAYERS[_layers(config) or "50"]
    return config.width_factor if config.width_factor in factors else factors[0]


BIT = Family(
    config=ResNetConfig,
    mark="stages.0.blocks.0.norm3.weight",
    needed=frozenset(),
    derived=COMMON | {"stem_chs", "channels", "zero_init_last"},
    pool="avg",
    head=("head.fc",),
    read=read,
    check=check,
    write=write,
    arguments=arguments,
    architecture=architecture,
)


STEM = "patch_embed.backbone."
ROOTS = (f"{STEM}stem.conv.weight", f"{STEM}conv.weight")  # before stages, and without stages
# blocks per stage, for which timm has no argument -> sizes of the ViT, and timm's name of the stem
MODELS: dict[tuple[int, ...], tuple[tuple[str, ...], str]] = {
    (): (("tiny",), "r_s16_p8"),
    (2, 2, 2, 2): (("small", "base"), "r26_s32"),
    (3, 4, 9): (("base",), "r50_s16"),
    (3, 4, 6, 3): (("large",), "r50_s32"),
}


def stem_fields(state: Mapping[str, Tensor], cells: Sequence[int], where: Path) -> dict[str, Any]:
    """Returns the fields of a hybrid's config that its stem determines; none for a plain ViT.

    Args:
        cells: rows and columns of the stem's map per patch.

    Raises:
        CheckpointError: the stem is not that of the ViT paper.
    """
    names = [name for name in state if name.startswith(STEM)]
    if not names:
        return {}
    root = next((name for name in ROOTS if name in state), None)
    if root is None:
        what = f"the stem of {where} is not the ViT paper's ResNet: it contains {printable(', '.join(names[:3]), 200)}, ..."
        raise CheckpointError(what, "such models are not supported")
    width, channels, *_ = state[root].shape  # (D, C, 7, 7)
    stem = depths_of(state, STEM)
    stride = 4 * 2 ** max(len(stem) - 1, 0)
    return {
        "patch_size": [stride * length for length in cells],
        "in_channels": channels,
        "stem": stem,
        "stem_width": width,
        **NUMERICS,
    }


def is_timms_stem(config: ViTConfig) -> bool:
    """Whether one of timm's models has the stem of a config."""
    return config.stem in MODELS and config.stem_width == ViTConfig.stem_width


def hybrid_architecture(config: ViTConfig, size: str) -> str:
    """Returns the name of a timm model with the stem, of this ``size`` if there is one."""
    sizes, stem = MODELS[config.stem or ()]
    return f"vit_{size if size in sizes else sizes[0]}_{stem}_224"
