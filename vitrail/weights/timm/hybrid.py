"""The stem of a hybrid in timm's layout. The names are those of `vitrail.models.hybrid`, and patch sizes are in cells of
the stem's map.

D channels of the root, C of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.weights.tensors import printable
from vitrail.weights.timm.resnet import NUMERICS, depths_of

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
