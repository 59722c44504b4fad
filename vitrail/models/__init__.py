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
    from vitrail.models.registered import register_model as register_model
    from vitrail.models.vit import ViT as ViT
    from vitrail.models.vit import ViTConfig as ViTConfig

_NAMES = {
    "attention": ("AttentionGrid", "AttentionRecord"),
    "backbone": ("Backbone", "device_of"),
    "config": ("Config",),
    "family": ("ARCHITECTURES", "MODELS", "configure", "cost_of", "create_backbone", "sketch"),
    "known": ("Cost",),
    "layers": ("Patches", "Tokens"),
    "registered": ("register_model",),
    "vit": ("ViT", "ViTConfig"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.models' has no attribute {name!r}")
    return getattr(import_module(f"vitrail.models.{_HOMES[name]}"), name)
