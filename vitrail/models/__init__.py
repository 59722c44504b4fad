"""Architectures: a name gives a frozen config, a config gives a backbone."""

from __future__ import annotations

from typing import Any

from vitrail.errors import ConfigError, nearest
from vitrail.models.config import ViTConfig as ViTConfig
from vitrail.models.config import changed
from vitrail.models.cost import multiply_adds as multiply_adds
from vitrail.models.cost import parameter_count as parameter_count
from vitrail.models.layers import Patches as Patches
from vitrail.models.layers import Tokens as Tokens
from vitrail.models.positions import resize_tables as resize_tables
from vitrail.models.vit import AttentionGrid as AttentionGrid
from vitrail.models.vit import ViT as ViT


def _vit(width: int, depth: int, heads: int, mlp_width: int, patch: int) -> ViTConfig:
    return ViTConfig(width=width, depth=depth, heads=heads, mlp_width=mlp_width, patch_size=(patch, patch))


# B, L, H: the paper's table 1. Ti, S: DeiT and AugReg. M: DeiT III. So400m: Alabdulmohsin et al. 2023.
# giant, gigantic: Zhai et al. 2022, their g and G. e: Chen et al. 2022 (PaLI).
MODELS: dict[str, ViTConfig] = {
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


def configure(model: str | ViTConfig, **changes: Any) -> ViTConfig:
    """The config of a name, or a config, with some fields changed.

    Args:
        changes: fields of `ViTConfig`, such as ``image_size=384``, ``in_channels=5`` or ``pool="gap"``.

    Raises:
        ConfigError: an unknown model or field, with the nearest names; a value that cannot be meant.
    """
    if isinstance(model, str) and model not in MODELS:
        raise ConfigError(f"there is no model {model!r}", nearest(model, MODELS))
    return changed(MODELS[model] if isinstance(model, str) else model, **changes)


def create_backbone(model: str | ViTConfig, **changes: Any) -> ViT:
    """A freshly initialised network, of what `configure` takes; inside ``torch.device("meta")`` it takes no memory."""
    return ViT(configure(model, **changes))
