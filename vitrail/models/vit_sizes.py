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


# of foundation models from the code of their authors
NUMERICS: dict[str, Any] = {"gelu": "exact", "norm_eps": 1e-5, "initial": "truncated"}


def _dinov3(width: int, depth: int, heads: int, mlp_width: int, **changes: Any) -> ViTConfig:
    size = _vit(width, depth, heads, mlp_width, 16)
    numerics: dict[str, Any] = {**NUMERICS, "position_resize": "bicubic", "layer_scale": 1e-5}
    places: dict[str, Any] = {"rope": "dinov3", "positions": "none", "registers": 4, "qkv_bias": "qv"}
    return replace(size, image_size=(256, 256), **{**numerics, **places, **changes})


def _clip(like: str, **changes: Any) -> ViTConfig:
    numerics: dict[str, Any] = {**NUMERICS, "position_resize": "bicubic-antialias"}
    return replace(VITS[like], pre_norm=True, **{**numerics, **changes})


def _siglip(width: int, depth: int, heads: int, mlp_width: int, patch: int, side: int = 256) -> ViTConfig:
    size = _vit(width, depth, heads, mlp_width, patch)
    return replace(size, image_size=(side, side), prefix=(), pool="map", position_resize="bicubic-antialias")


def _eva02(width: int, depth: int, heads: int, mlp_width: int, **changes: Any) -> ViTConfig:
    size = _vit(width, depth, heads, mlp_width, 14)
    numerics: dict[str, Any] = {"gelu": "exact", "position_resize": "bicubic-antialias", "initial": "truncated"}
    places: dict[str, Any] = {"rope": "eva02", "rope_grid": (16, 16), "mlp": "swiglu", "qkv_bias": "qv"}
    return replace(size, pool="gap", pool_norm=True, **numerics, **places, **changes)


def _pe(width: int, depth: int, heads: int, mlp_width: int, patch: int, side: int, **changes: Any) -> ViTConfig:
    size, cells = _vit(width, depth, heads, mlp_width, patch), side // patch
    numerics: dict[str, Any] = {**NUMERICS, "position_resize": "bilinear", "pre_norm": True}
    places: dict[str, Any] = {"rope": "pe", "rope_grid": (cells, cells), "pool": "map", "pool_heads": 8}
    return replace(size, image_size=(side, side), **numerics, **places, **changes)


def _aimv2(width: int, heads: int, mlp_width: int) -> ViTConfig:
    parts: dict[str, Any] = {**NUMERICS, "norm": "rms", "patch_norm": True, "mlp": "swiglu"}
    absent: dict[str, Any] = {"prefix": (), "pool": "gap", "qkv_bias": False, "bias": False}
    return replace(_vit(width, 24, heads, mlp_width, 14), position_resize="bicubic-antialias", **parts, **absent)


SIGLIPS = {
    "b16": _siglip(768, 12, 12, 3072, 16, 224),
    "l16": _siglip(1024, 24, 16, 4096, 16),
    "so400m14": _siglip(1152, 27, 16, 4304, 14, 224),
}
# foundation models. Siméoni et al. 2025, DINOv3; Oquab et al. 2023, DINOv2; Radford et al. 2021, CLIP, and OpenCLIP; Zhai et al.
# 2023, SigLIP, and Tschannen et al. 2025, SigLIP 2; Fang et al. 2023, EVA-02; Bolya et al. 2025, Perception Encoder; Fini et al.
# 2024, AIMv2
FOUNDATIONS: dict[str, Config] = {
    "dinov3-s16": _dinov3(384, 12, 6, 1536),
    "dinov3-s16plus": _dinov3(384, 12, 6, 1536, mlp="swiglu"),
    "dinov3-b16": _dinov3(768, 12, 12, 3072),
    "dinov3-l16": _dinov3(1024, 24, 16, 4096),
    "dinov3-h16plus": _dinov3(1280, 32, 20, 5120, mlp="swiglu"),
    "dinov3-7b16": _dinov3(4096, 40, 32, 8192, mlp="swiglu", qkv_bias=False),
    "eupe-ti16": _dinov3(192, 12, 3, 768),
    "eupe-s16": _dinov3(384, 12, 6, 1536),
    "eupe-b16": _dinov3(768, 12, 12, 3072),
    "dinov2-giant14": replace(
        _vit(1536, 40, 24, 4096, 14), mlp="swiglu", layer_scale=1e-5, gelu="exact", position_resize="bicubic"
    ),
    "clip-b32": _clip("vit-b32"),
    "clip-b16": _clip("vit-b16"),
    "clip-l14": _clip("vit-l14"),
    "clip-h14": _clip("vit-h14"),
    "clip-giant14": _clip("vit-giant14"),
    "clip-gigantic14": _clip("vit-gigantic14"),
    **{f"siglip-{size}": config for size, config in SIGLIPS.items()},
    **{f"siglip2-{size}": config for size, config in SIGLIPS.items()},
    "siglip2-so400m16": _siglip(1152, 27, 16, 4304, 16),
    "siglip2-giantopt16": _siglip(1536, 40, 16, 6144, 16),
    "eva02-ti14": _eva02(192, 12, 3, 512),
    "eva02-s14": _eva02(384, 12, 6, 1024),
    "eva02-b14": _eva02(768, 12, 12, 2048, mlp_norm=True),
    "eva02-l14": _eva02(1024, 24, 16, 2730, mlp_norm=True),
    "pe-core-ti16": _pe(192, 12, 3, 768, 16, 384),
    "pe-core-s16": _pe(384, 12, 6, 1536, 16, 384),
    "pe-core-b16": _pe(768, 12, 12, 3072, 16, 224),
    "pe-core-l14": _pe(1024, 24, 16, 4096, 14, 336),
    "pe-core-gigantic14": _pe(1536, 50, 16, 8960, 14, 448, prefix=(), pool_mlp_width=6144),
    "aimv2-l14": _aimv2(1024, 8, 2816),
    "aimv2-h14": _aimv2(1536, 12, 4096),
    "aimv2-1b14": _aimv2(2048, 16, 5632),
    "aimv2-3b14": _aimv2(3072, 24, 8192),
}
