"""The published sizes of the ViT and of its kin, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.models.config import Config
from vitrail.models.vit import ViTConfig


def _vit(width: int, depth: int, heads: int, mlp_width: int, patch: int) -> ViTConfig:
    return ViTConfig(width=width, depth=depth, heads=heads, mlp_width=mlp_width, patch_size=(patch, patch))


# B, L, H: the paper's table 1. Ti, S: DeiT and AugReg. M: DeiT III. So400m: Alabdulmohsin et al. 2023.
# giant, gigantic: Zhai et al. 2022, their g and G. e: Chen et al. 2022 (PaLI).
VITS: dict[str, ViTConfig] = {
    "vit-ti16": _vit(192, 12, 3, 768, 16),
    "vit-s32": _vit(384, 12, 6, 1536, 32),
    "vit-s16": _vit(384, 12, 6, 1536, 16),
    "vit-s14": _vit(384, 12, 6, 1536, 14),
    "vit-s8": _vit(384, 12, 6, 1536, 8),
    "vit-m16": _vit(512, 12, 8, 2048, 16),
    "vit-b32": _vit(768, 12, 12, 3072, 32),
    "vit-b16": _vit(768, 12, 12, 3072, 16),
    "vit-b14": _vit(768, 12, 12, 3072, 14),
    "vit-b8": _vit(768, 12, 12, 3072, 8),
    "vit-l32": _vit(1024, 24, 16, 4096, 32),
    "vit-l16": _vit(1024, 24, 16, 4096, 16),
    "vit-l14": _vit(1024, 24, 16, 4096, 14),
    "vit-h32": _vit(1280, 32, 16, 5120, 32),
    "vit-h16": _vit(1280, 32, 16, 5120, 16),
    "vit-h14": _vit(1280, 32, 16, 5120, 14),
    "vit-so400m14": _vit(1152, 27, 16, 4304, 14),
    "vit-giant14": _vit(1408, 40, 16, 6144, 14),
    "vit-gigantic14": _vit(1664, 48, 16, 8192, 14),
    "vit-e14": _vit(1792, 56, 16, 15360, 14),
}


def _deit(like: str, **changes: Any) -> ViTConfig:
    numerics: dict[str, Any] = {"gelu": "exact", "position_resize": "bicubic", "initial": "truncated"}
    return replace(VITS[like], **{**numerics, **changes})


# Touvron et al. 2021a, DeiT; the distilled models have a second token with a separate head
DEITS: dict[str, ViTConfig] = {
    "deit-ti16": _deit("vit-ti16"),
    "deit-s16": _deit("vit-s16"),
    "deit-b16": _deit("vit-b16"),
    "deit-ti16-distilled": _deit("vit-ti16", prefix=("cls", "dist")),
    "deit-s16-distilled": _deit("vit-s16", prefix=("cls", "dist")),
    "deit-b16-distilled": _deit("vit-b16", prefix=("cls", "dist")),
    # Touvron et al. 2022, DeiT III
    "deit3-s16": _deit("vit-s16", layer_scale=1e-4, prefix_positions=False),
    "deit3-m16": _deit("vit-m16", layer_scale=1e-4, prefix_positions=False),
    "deit3-b16": _deit("vit-b16", layer_scale=1e-4, prefix_positions=False),
    "deit3-l16": _deit("vit-l16", layer_scale=1e-4, prefix_positions=False),
    "deit3-h14": _deit("vit-h14", layer_scale=1e-4, prefix_positions=False),
}

# R50 (3, 4, 9) has the blocks of its fourth stage in the third (paper, section 4.1). R26, and R with only the root, are from
# AugReg (Steiner et al. 2022); their R+Ti/16 has patches of 32 pixels, because the root has stride 4 instead of 2.
HYBRIDS: dict[str, Config] = {
    "r-vit-ti16": replace(VITS["vit-ti16"], stem=(), patch_size=(32, 32)),
    "r26-vit-s32": replace(VITS["vit-s32"], stem=(2, 2, 2, 2)),
    "r26-vit-b32": replace(VITS["vit-b32"], stem=(2, 2, 2, 2)),
    "r50-vit-b16": replace(VITS["vit-b16"], stem=(3, 4, 9)),
    "r50-vit-b32": replace(VITS["vit-b32"], stem=(3, 4, 6, 3)),
    "r50-vit-l16": replace(VITS["vit-l16"], stem=(3, 4, 9)),
    "r50-vit-l32": replace(VITS["vit-l32"], stem=(3, 4, 6, 3)),
}
