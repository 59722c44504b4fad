"""timm's layout of BiT's ResNet, whose head is a convolution, and its names of hybrids.

F channels of the last map, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.models import ViTConfig
from vitrail.models.resnet import ResNetConfig
from vitrail.weights.names import State
from vitrail.weights.shapes import resnet_fields
from vitrail.weights.timm.family import Family

# timm's kernel standardisation and norms, in BiT and in hybrids
NUMERICS: dict[str, Any] = {"standardise": "timm", "group_norm_eps": 1e-5}
# blocks per stage, for which timm has no argument -> timm's name, and the available width factors
LAYERS = {
    "50": ((3, 4, 6, 3), (1, 3)),
    "101": ((3, 4, 23, 3), (1, 3)),
    "152": ((3, 8, 36, 3), (2, 4)),
}


def _infer(state: State, where: Path, arguments: Mapping[str, Any]) -> ResNetConfig:
    """The image size is not in the tensors: 224 pixels unless the arguments state otherwise."""
    return ResNetConfig(image_size=arguments.get("input_size") or (224, 224), **resnet_fields(state), **NUMERICS)


def _find_wrong(config: ResNetConfig) -> dict[str, bool]:
    return {
        f"the stem {config.stem!r}": config.stem != "paper",
        f"stages of {', '.join(map(str, config.depths))} blocks": not _layers(config),
    }


def _layers(config: ResNetConfig) -> str | None:
    """Returns the name of the model whose first stages have those blocks, or None."""
    return next((word for word, (depths, _) in LAYERS.items() if depths[: len(config.depths)] == config.depths), None)


def _factor(config: ResNetConfig) -> int:
    _, factors = LAYERS[_layers(config) or "50"]
    return config.width_factor if config.width_factor in factors else factors[0]


def _widths(config: ResNetConfig) -> list[int]:
    """timm multiplies the widths of the root and of the stages by the factor of the named model."""
    return [config.root_width // _factor(config) * 2**stage for stage in range(len(config.depths) + 2)]


BIT = Family(
    config=ResNetConfig,
    mark="stages.0.blocks.0.norm3.weight",
    names={"head.": "head.fc."},
    infer=_infer,
    written={
        "in_chans": "in_channels",
        "stem_chs": lambda config: _widths(config)[0],
        "channels": lambda config: _widths(config)[2:],
    },
    unread=frozenset(["zero_init_last"]),
    pool="avg",
    head=("head.fc",),
    find_wrong=_find_wrong,
    architecture=lambda config: f"resnetv2_{_layers(config)}x{_factor(config)}_bit",
    # (K, F, 1, 1) and (K, F)
    to_own=lambda config, state: {
        name: tensor.flatten(1) if name == "head.weight" else tensor for name, tensor in state.items()
    },
    to_timms=lambda config, state: {
        name: tensor[:, :, None, None] if name == "head.weight" else tensor for name, tensor in state.items()
    },
)

# blocks per stage, for which timm has no argument -> sizes of the ViT, and timm's name of the stem
HYBRIDS: dict[tuple[int, ...], tuple[tuple[str, ...], str]] = {
    (): (("tiny",), "r_s16_p8"),
    (2, 2, 2, 2): (("small", "base"), "r26_s32"),
    (3, 4, 9): (("base",), "r50_s16"),
    (3, 4, 6, 3): (("large",), "r50_s32"),
}


def is_timms_stem(config: ViTConfig) -> bool:
    """Whether one of timm's models has the stem of a config."""
    return config.stem in HYBRIDS and config.stem_width == ViTConfig.stem_width


def name_hybrid(config: ViTConfig, size: str) -> str:
    """Returns the name of a timm model with the stem, of this ``size`` if there is one."""
    sizes, stem = HYBRIDS[config.stem or ()]
    return f"vit_{size if size in sizes else sizes[0]}_{stem}_224"
