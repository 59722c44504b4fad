"""What a hybrid's stem adds to timm's layout of a ViT: its names are those of `vitrail.models.hybrid`, and its patches are
counted in cells of the stem's map.

D channels of the root, C of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.models.resnet import STEM_WIDTH
from vitrail.weights.tensors import printable
from vitrail.weights.timm.resnet import NUMERICS, depths_of

STEM = "patch_embed.backbone."
ROOTS = (f"{STEM}stem.conv.weight", f"{STEM}conv.weight")  # before stages, and alone
# blocks of each stage, which timm's models have no argument for -> sizes of the ViT behind it, and timm's word for the stem
MODELS: dict[tuple[int, ...], tuple[tuple[str, ...], str]] = {
    (): (("tiny",), "r_s16_p8"),
    (2, 2, 2, 2): (("small", "base"), "r26_s32"),
    (3, 4, 9): (("base",), "r50_s16"),
    (3, 4, 6, 3): (("large",), "r50_s32"),
}


def stem_fields(state: Mapping[str, Tensor], cells: Sequence[int], where: Path) -> dict[str, Any]:
    """The fields of a hybrid's config that its stem decides; none for a plain ViT.

    Args:
        cells: rows and columns of the stem's map in one patch.

    Raises:
        CheckpointError: there is another stem than the ViT paper's.
    """
    names = [name for name in state if name.startswith(STEM)]
    if not names:
        return {}
    root = next((name for name in ROOTS if name in state), None)
    if root is None:
        what = f"{where} has a stem that is not the ViT paper's ResNet: it holds {printable(', '.join(names[:3]), 200)}, ..."
        raise CheckpointError(what, "such models cannot be built here")
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
    """Whether one of timm's models has the stem of such a config."""
    return config.stem in MODELS and config.stem_width == STEM_WIDTH


def hybrid_architecture(config: ViTConfig, size: str) -> str:
    """The name of timm's model that has the stem, of this ``size`` where there is one."""
    sizes, stem = MODELS[config.stem or ()]
    return f"vit_{size if size in sizes else sizes[0]}_{stem}_224"
