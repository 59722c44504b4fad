"""All architectures and models by name, and the names that timm and Hugging Face transformers give to models and fields."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import torch

from vitrail.errors import ConfigError
from vitrail.models.axial import AXIALS, AxialConfig, AxialViT
from vitrail.models.backbone import Backbone
from vitrail.models.beit import BEITS, BEiT, BEiTConfig
from vitrail.models.cait import CAITS, CaiT, CaiTConfig
from vitrail.models.config import Config, changed
from vitrail.models.cost import count_cost
from vitrail.models.known import Cost
from vitrail.models.pvt import PVT, PVTS, PVTConfig
from vitrail.models.pvt_v2 import PVT_V2S, PVTv2, PVTv2Config
from vitrail.models.resnet import AXIAL_RESNETS, RESNETS, AxialResNet, AxialResNetConfig, ResNet, ResNetConfig
from vitrail.models.swin import SWINS, Swin, SwinConfig
from vitrail.models.vit import ViT, ViTConfig
from vitrail.models.vit_sizes import DEITS, FOUNDATIONS, HYBRIDS, VITS
from vitrail.plugins import is_registered, suggest_name

SIZES = {
    "tiny": "ti", "small": "s", "medium": "m", "base": "b", "large": "l", "huge": "h", "giant": "giant", "gigantic": "gigantic",
    "so400m": "so400m", "giant_opt": "giantopt", "huge_plus": "h", "bigg": "gigantic", "g": "giant",
}  # fmt: skip
FIELDS = {
    "num_classes": "classes", "num_labels": "classes", "in_chans": "in_channels", "num_channels": "in_channels",
    "img_size": "image_size", "embed_dim": "width", "hidden_size": "width", "hidden_dim": "width", "num_layers": "depth",
    "num_hidden_layers": "depth", "num_heads": "heads", "num_attention_heads": "heads", "intermediate_size": "mlp_width",
    "mlp_dim": "mlp_width", "drop_path_rate": "drop_path", "drop_rate": "dropout", "attn_drop_rate": "attention_dropout",
    "global_pool": "pool", "reg_tokens": "registers", "init_values": "layer_scale",
}  # fmt: skip
# a pattern of names with "-" replaced by "_", and the name here, from the groups of the pattern
FOREIGN_MODELS = {
    r"vit_(?P<size>\w+?)_plus_patch(?P<patch>\d+)_dinov3": "dinov3-{size}{patch}plus",
    r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_dinov3_qkvb\.eupe": "eupe-{size}{patch}",
    r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_dinov3": "dinov3-{size}{patch}",
    r"dinov3_vit(?P<size>[a-z])(?P<patch>\d+)plus": "dinov3-{size}{patch}plus",
    r"dinov3_vit(?P<size>[a-z]|7b)(?P<patch>\d+)": "dinov3-{size}{patch}",
    r"(vit_giant_patch14_(reg4_)?dinov2|dinov2_(with_registers_)?giant)": "dinov2-giant14",
    r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_clip": "clip-{size}{patch}",
    r"clip_vit_(?P<size>[a-z]+)_(patch)?(?P<patch>\d+)": "clip-{size}{patch}",
    r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_siglip_\d+\.v2": "siglip2-{size}{patch}",
    r"vit_(?P<size>\w+?)_patch(?P<patch>\d+)_siglip": "siglip-{size}{patch}",
    r"siglip(?P<second>2?)_(?P<size>\w+?)_patch(?P<patch>\d+)": "siglip{second}-{size}{patch}",
    r"eva02_(?P<size>[a-z]+)_patch(?P<patch>14)_\d": "eva02-{size}{patch}",
    r"vit_pe_core_(?P<size>[a-z]+)_patch(?P<patch>\d+)": "pe-core-{size}{patch}",
    r"aimv2_(?P<size>\w+?)_patch(?P<patch>\d+)": "aimv2-{size}{patch}",
    r"vit_(?P<size>[a-z0-9]+)_patch(?P<patch>\d+)": "vit-{size}{patch}",
    r"deit_(?P<size>\w+?)_distilled_patch(?P<patch>\d+)": "deit-{size}{patch}-distilled",
    r"deit_(?P<size>\w+?)_patch(?P<patch>\d+)": "deit-{size}{patch}",
    r"deit3_(?P<size>\w+?)_patch(?P<patch>\d+)": "deit3-{size}{patch}",
    r"vit_(?P<size>\w+?)_r(?P<blocks>\d+)_s(?P<patch>\d+)": "r{blocks}-vit-{size}{patch}",
    r"vit_(?P<size>\w+?)_r_s(?P<patch>\d+)": "r-vit-{size}{patch}",
    r"beit(v2)?_(?P<size>[a-z]+)_patch(?P<patch>\d+)": "beit-{size}{patch}",
    r"swin_(?P<letter>[bl])\w+_patch4_window12_384": "swin-{letter}-384",
    r"swin_(?P<letter>[tsbl])\w+_patch4": "swin-{letter}",
    r"cait_(?P<kind>[xsm]+\d+)": "cait-{kind}",
    r"pvt_v2_(?P<kind>b\d)_li": "pvt-v2-{kind}-li",
    r"pvt_v2_(?P<kind>b\d)": "pvt-v2-{kind}",
    r"pvt_(?P<kind>tiny|small|medium|large)": "pvt-{kind}",
    r"(resnetv2_|bit_r?)(?P<kind>\d+x\d)": "bit-r{kind}",
}


def translate_model(name: str) -> str | None:
    """Returns the name that timm's or Hugging Face's ``name`` would have here, whether or not there is such a model."""
    plain = name.rpartition("/")[2].lower().replace("-", "_")
    for pattern, ours in FOREIGN_MODELS.items():
        if match := re.match(pattern, plain):
            groups = match.groupdict()
            if "size" in groups:
                groups["size"] = SIZES.get(groups["size"], groups["size"])
            return ours.format(**groups)
    return None


MODELS: dict[str, Config] = {
    **VITS,
    **DEITS,
    **HYBRIDS,
    **FOUNDATIONS,
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
    """Returns the config of a model name, or a given config, with changed fields such as ``image_size=384`` or ``drop_path=0.1``.

    Raises `ConfigError` for an unknown model or field, with the nearest names, and for an invalid value.
    """
    if isinstance(model, str) and model not in MODELS and not is_registered(model, MODELS):
        ours = translate_model(model)
        remedy = f"it is called {ours!r} here" if ours in MODELS else suggest_name("model", model, MODELS)
        raise ConfigError(f"there is no model {model!r}", remedy)
    config = MODELS[model] if isinstance(model, str) else model
    known = [field.name for field in fields(config)]
    for name in changes:
        if name not in known and FIELDS.get(name) in known:
            raise ConfigError(f"{config.about} has no field {name!r}", f"it is called {FIELDS[name]!r} here")
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
