"""ResNets in Google's layouts: the stem of a hybrid, and BiT. BiT has two generations of names: those of the paper's files
are from TensorFlow (`a/standardized_conv2d`), later ones from big_vision (`conv1`).

Kernels are (P, Q, inputs, outputs) and are stored before standardisation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.models import ViTConfig
from vitrail.models.resnet import ResNetConfig, width_fields

Names = dict[str, tuple[str, str]]  # vitrail's tensor -> Google's array, and its kind

# vitrail's module of a bottleneck -> Google's, in hybrids and in BiT
HYBRID = {
    **{f"conv{number}": f"conv{number}" for number in (1, 2, 3)},
    **{f"norm{number}": f"gn{number}" for number in (1, 2, 3)},
    "downsample.conv": "conv_proj",
    "downsample.norm": "gn_proj",
}
BIT = {
    **{f"conv{number}": f"{letter}/standardized_conv2d" for number, letter in enumerate("abc", 1)},
    **{f"norm{number}": f"{letter}/group_norm" for number, letter in enumerate("abc", 1)},
    "downsample.conv": "a/proj/standardized_conv2d",
}
# big_vision's array -> the paper's, inside and outside of bottlenecks
PAPERS = {
    **{f"{HYBRID[ours]}/kernel": f"{theirs}/kernel" for ours, theirs in BIT.items() if "conv" in ours},
    **{f"{HYBRID[ours]}/scale": f"{theirs}/gamma" for ours, theirs in BIT.items() if "norm" in ours},
    **{f"{HYBRID[ours]}/bias": f"{theirs}/beta" for ours, theirs in BIT.items() if "norm" in ours},
    "root_block/conv_root/kernel": "root_block/standardized_conv2d/kernel",
    "norm-pre-head/scale": "group_norm/gamma",
    "norm-pre-head/bias": "group_norm/beta",
    "head/kernel": "head/conv2d/kernel",
    "head/bias": "head/conv2d/bias",
}
STEM = "conv_root/kernel"
ROOT = "root_block/standardized_conv2d/kernel"
ROOTS = (ROOT, "root_block/conv_root/kernel")
HEAD = "head/conv2d/kernel"
NUMBERED = re.compile(r"(standardized_conv2d|group_norm)_\d+(?=/)")  # TensorFlow counts the layers of one kind
UNIT = re.compile(r"(block\d+)/(unit\d+)/")


def stem_fields(arrays: Mapping[str, np.ndarray], cells: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of a hybrid's config that its stem determines; none for a plain ViT.

    Args:
        cells: rows and columns of the stem's map per patch.
    """
    if STEM not in arrays:
        return {}
    *_, channels, width = arrays[STEM].shape
    stem = _depths(arrays)
    stride = 4 * 2 ** max(len(stem) - 1, 0)
    return {
        "patch_size": tuple(stride * length for length in cells),
        "in_channels": channels,
        "stem": stem,
        "stem_width": width,
    }


def stem_names(config: ViTConfig) -> Names:
    """Returns the names of all tensors of a hybrid's stem; none for a plain ViT."""
    if config.stem is None:
        return {}
    root = "stem." if config.stem else ""
    modules = {f"{root}conv": "conv_root", f"{root}norm": "gn_root"}
    modules |= _bottlenecks(config.stem, HYBRID, "block{}/unit{}/")
    names = _names(modules, scale="scale", shift="bias", kind="norm of maps")
    return {f"patch_embed.backbone.{ours}": array for ours, array in names.items()}


def bit_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of a BiT ResNet by the names of the paper's files; empty for other models."""
    plain = {name: NUMBERED.sub(r"\1", name) for name in arrays}
    roots = [name for name in plain.values() if name.endswith(ROOTS)]
    if not roots:
        return {}
    around = min(roots, key=len).rpartition("root_block/")[0]  # "resnet/", "", "params/"
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not plain[name].startswith(around):
            continue  # the optimiser's
        inner = plain[name].removeprefix(around)
        unit = match[0] if (match := UNIT.match(inner)) else ""
        rest = inner.removeprefix(unit)
        inner = unit + PAPERS.get(rest, rest)
        if inner in renamed:
            raise ValueError(f"{inner} appears twice")
        renamed[inner] = array
    return renamed


def bit_config(arrays: Mapping[str, np.ndarray]) -> ResNetConfig:
    """Infers the config from names and shapes. Raises `KeyError`, `ValueError` or `ConfigError` if that is not possible."""
    *_, channels, width = arrays[ROOT].shape
    return ResNetConfig(
        in_channels=channels,
        classes=arrays[HEAD].shape[-1] if HEAD in arrays else 0,
        depths=_depths(arrays),
        **width_fields(width),
    )


def bit_names(config: ResNetConfig) -> Names:
    """Returns the names of all tensors of a BiT ResNet."""
    modules = {"stem.conv": "root_block/standardized_conv2d", "norm": "group_norm"}
    modules |= _bottlenecks(config.depths, BIT, "block{}/unit{:02d}/")
    names = _names(modules, scale="gamma", shift="beta", kind="norm")
    if config.classes:
        names |= {"head.weight": (HEAD, "1 x 1"), "head.bias": ("head/conv2d/bias", "norm")}
    return names


def _depths(arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Returns the number of units of each block. They are counted, so that large numbers in names have no effect."""
    units: dict[str, set[str]] = defaultdict(set)
    for name in arrays:
        if match := UNIT.match(name):
            units[match[1]].add(match[2])
    blocks = [f"block{number}" for number in range(1, len(units) + 1)]
    if units.keys() != set(blocks):
        raise ValueError(f"its blocks are {', '.join(sorted(units))}")
    return tuple(len(units[block]) for block in blocks)


def _bottlenecks(depths: Sequence[int], modules: Mapping[str, str], owner: str) -> dict[str, str]:
    """Maps vitrail's modules of all bottlenecks to Google's. The first of a stage has a projection shortcut."""
    return {
        f"stages.{stage}.blocks.{block}.{ours}": owner.format(stage + 1, block + 1) + theirs
        for stage, depth in enumerate(depths)
        for block in range(depth)
        for ours, theirs in modules.items()
        if block == 0 or "downsample" not in ours
    }


def _names(modules: Mapping[str, str], *, scale: str, shift: str, kind: str) -> Names:
    """Returns the tensors of convolutions without bias, and of norms, whose arrays have this ``kind``."""
    names: Names = {}
    for ours, theirs in modules.items():
        if "norm" in ours:
            names |= {f"{ours}.weight": (f"{theirs}/{scale}", kind), f"{ours}.bias": (f"{theirs}/{shift}", kind)}
        else:
            names[f"{ours}.weight"] = (f"{theirs}/kernel", "convolution")
    return names
