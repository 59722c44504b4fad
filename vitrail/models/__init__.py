"""Model architectures. A name refers to a frozen config, and a backbone is built from a config.

The names are imported when they are first used: the list of models is shown without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.models.attention import AttentionGrid as AttentionGrid
    from vitrail.models.attention import AttentionRecord as AttentionRecord
    from vitrail.models.backbone import Backbone as Backbone
    from vitrail.models.backbone import device_of as device_of
    from vitrail.models.config import Config as Config
    from vitrail.models.family import ARCHITECTURES as ARCHITECTURES
    from vitrail.models.family import MODELS as MODELS
    from vitrail.models.family import configure as configure
    from vitrail.models.family import cost_of as cost_of
    from vitrail.models.family import create_backbone as create_backbone
    from vitrail.models.family import sketch as sketch
    from vitrail.models.known import Cost as Cost
    from vitrail.models.layers import Patches as Patches
    from vitrail.models.layers import Tokens as Tokens
    from vitrail.models.vit import ViT as ViT
    from vitrail.models.vit import ViTConfig as ViTConfig

_HOMES = {
    "AttentionGrid": "attention",
    "AttentionRecord": "attention",
    "Backbone": "backbone",
    "device_of": "backbone",
    "Config": "config",
    "Cost": "known",
    "ARCHITECTURES": "family",
    "MODELS": "family",
    "configure": "family",
    "cost_of": "family",
    "create_backbone": "family",
    "sketch": "family",
    "Patches": "layers",
    "Tokens": "layers",
    "ViT": "vit",
    "ViTConfig": "vit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.models' has no attribute {name!r}")
    return getattr(import_module(f"vitrail.models.{_HOMES[name]}"), name)
