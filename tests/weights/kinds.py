"""The kinds of models that conversion is tried on: what is changed of a small one, and which layouts can express it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from vitrail.models import MODELS
from vitrail.tasks.classification.classifier import Classifier, create_classifier

SMALL: dict[str, Any] = {"image_size": 16, "patch_size": 4, "width": 24, "depth": 2, "heads": 2, "mlp_width": 41}
DEIT3 = {"layer_scale": 0.1, "prefix_positions": False, "gelu": "exact", "position_resize": "bicubic"}
# changes of the config, and the layouts that can express such a model
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "the paper's": ({}, ("google", "timm")),
    "exact GELU, another norm and resize": (
        {"gelu": "exact", "norm_eps": 1e-5, "position_resize": "bicubic"},
        ("google",),
    ),
    "mean": ({"pool": "gap", "prefix": ()}, ("google", "timm")),
    "mean, then the norm": ({"pool": "gap", "pool_norm": True}, ("timm",)),
    "attention pooling": ({"pool": "map", "prefix": ()}, ("google", "timm")),
    "attention pooling of all tokens": ({"pool": "map", "registers": 1}, ("timm",)),
    "two heads": ({"prefix": ("cls", "dist")}, ("timm",)),
    "registers": ({"registers": 3}, ("timm",)),
    "registers, positions on patches": ({"registers": 3, "prefix_positions": False}, ("timm",)),
    "DeiT III": (DEIT3, ("timm",)),
    "positions on patches": ({"prefix_positions": False}, ("google", "timm")),
    "no biases of q, k, v": ({"qkv_bias": False}, ("timm",)),
    "grey": ({"in_channels": 1}, ("google", "timm")),
    "five channels": ({"in_channels": 5}, ("google", "timm")),
    "no square": ({"image_size": (8, 24), "patch_size": (4, 8)}, ("google", "timm")),
    "sines": ({"positions": "sincos2d", "pool": "gap", "prefix": ()}, ("google",)),
    "a hidden layer": ({"pre_logits": True}, ("google",)),
    "no head": ({"classes": ()}, ("google", "timm")),
    "transformers' eps": ({"norm_eps": 1e-12, "gelu": "exact"}, ("huggingface",)),
}
SWIN = {
    "model": "swin-t",
    "image_size": 32,
    "patch_size": 2,
    "width": 8,
    "depths": (2, 1, 2),
    "heads": (1, 2, 4),
    "window": 4,
}
CAIT = {"model": "cait-xxs24", "depth": 2, "class_depth": 1, "mlp_width": 41}
PVT = {"model": "pvt-v2-b0", "image_size": 64, "widths": (8, 16, 40, 64), "depths": (1, 2, 1, 1)}
BEIT = {"model": "beit-b16"}
BIT = {"model": "bit-r50x1", "depths": (3,), "standardise": "timm"}
ROOT = {"model": "r-vit-ti16", "patch_size": 8, "gelu": "exact", "standardise": "timm", "group_norm_eps": 1e-5}
STAGES = {**ROOT, "model": "r26-vit-s32", "patch_size": 32, "image_size": 64}
KINDS |= {
    "Swin": (SWIN, ("timm",)),
    "Swin on an oblong": ({**SWIN, "depths": (2, 1, 1), "image_size": (32, 64), "qkv_bias": False}, ("timm",)),
    "CaiT": (CAIT, ("timm",)),
    "CaiT on an oblong": ({**CAIT, "image_size": (8, 16), "in_channels": 1}, ("timm",)),
    "PVT v2": (PVT, ("timm",)),
    "linear PVT v2": ({**PVT, "linear": True, "image_size": (64, 96)}, ("timm",)),
    "BEiT": (BEIT, ("timm",)),
    "BEiT before fine-tuning": (
        {**BEIT, "relative_bias": "shared", "pool": "cls", "positions": True, "image_size": (8, 16)},
        ("timm",),
    ),
    "BiT": (BIT, ("google", "timm")),
    "narrow BiT": ({**BIT, "stem_width": 32}, ("timm",)),
    "wide BiT on an odd map": ({**BIT, "width_factor": 2, "image_size": (18, 31), "in_channels": 1}, ("timm",)),
    "BiT without a head": ({**BIT, "classes": ()}, ("google", "timm")),
    "the root of a hybrid": (ROOT, ("google", "timm")),
    "the root of a hybrid, on an oblong": (
        {**ROOT, "patch_size": (4, 8), "image_size": (8, 24), "in_channels": 5},
        ("google", "timm"),
    ),
    "a hybrid": ({**STAGES, "pool": "gap", "registers": 2}, ("timm",)),
}


def a_model(*, classes: tuple[str, ...] = ("ant", "bee", "cat"), **changes: Any) -> Classifier:
    """Numbers of some size in every tensor."""
    name = changes.pop("model", "vit-ti16")
    known = {field.name for field in fields(MODELS[name])}
    small = {field: value for field, value in SMALL.items() if field in known and name[:3] not in ("swi", "pvt")}
    model = create_classifier(name, classes=classes, **{**small, **changes})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.2 if parameter.ndim > 1 else 0.3))
    return model.eval()
