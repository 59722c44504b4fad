"""All architectures and models by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from vitrail.errors import ConfigError, nearest
from vitrail.models.axial import AXIALS, AxialConfig, AxialViT
from vitrail.models.backbone import Backbone
from vitrail.models.beit import BEITS, BEiT, BEiTConfig
from vitrail.models.cait import CAITS, CaiT, CaiTConfig
from vitrail.models.config import Config, changed
from vitrail.models.cost import count_cost
from vitrail.models.foreign_names import explain_field, translate_model
from vitrail.models.known_costs import Cost
from vitrail.models.pvt import PVT, PVTS, PVTConfig
from vitrail.models.pvt_v2 import PVT_V2S, PVTv2, PVTv2Config
from vitrail.models.resnet import AXIAL_RESNETS, RESNETS, AxialResNet, AxialResNetConfig, ResNet, ResNetConfig
from vitrail.models.swin import SWINS, Swin, SwinConfig
from vitrail.models.vit import DEITS, HYBRIDS, VITS, ViT, ViTConfig

MODELS: dict[str, Config] = {
    **VITS,
    **DEITS,
    **HYBRIDS,
    **AXIALS,
    **CAITS,
    **BEITS,
    **SWINS,
    **PVTS,
    **PVT_V2S,
    **RESNETS,
    **AXIAL_RESNETS,
}
BACKBONES: dict[type[Config], type[Backbone]] = {
    ViTConfig: ViT,
    AxialConfig: AxialViT,
    CaiTConfig: CaiT,
    BEiTConfig: BEiT,
    SwinConfig: Swin,
    PVTConfig: PVT,
    PVTv2Config: PVTv2,
    ResNetConfig: ResNet,
    AxialResNetConfig: AxialResNet,
}
ARCHITECTURES: dict[str, type[Config]] = {config.architecture: config for config in BACKBONES}


def configure(model: str | Config, **changes: Any) -> Config:
    """Returns the config of a model name, or a given config, with changed fields.

    Args:
        changes: fields of the architecture's config, such as ``image_size=384``, ``in_channels=5`` or ``drop_path=0.1``.

    Raises:
        ConfigError: the model or field is unknown (lists the nearest names), or a value is invalid.
    """
    if isinstance(model, str) and model not in MODELS:
        ours = translate_model(model)
        remedy = f"it is called {ours!r} here" if ours in MODELS else nearest(model, MODELS)
        raise ConfigError(f"there is no model {model!r}", remedy)
    config = MODELS[model] if isinstance(model, str) else model
    known = [field.name for field in fields(config)]
    for name in changes:
        if name not in known and (remedy := explain_field(name, known)):
            raise ConfigError(f"{config.about} has no field {name!r}", remedy)
    return changed(config, **changes)


def create_backbone(model: str | Config, **changes: Any) -> Backbone:
    """Builds an initialised network. Takes the arguments of `configure`; allocates nothing within ``torch.device("meta")``."""
    config = configure(model, **changes)
    return BACKBONES[type(config)](config)


def sketch(model: str | Config, **changes: Any) -> Backbone:
    """Builds a network on the meta device, which has shapes but no values."""
    with torch.device("meta"):
        return create_backbone(model, **changes)


def cost_of(config: Config) -> Cost:
    """Returns the cost of a network of ``config``."""
    return count_cost(sketch(config))
