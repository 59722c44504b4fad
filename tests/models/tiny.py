"""One or more small configs of every architecture, which whatever goes through all of them is parametrised with."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from vitrail.models import Config, ViTConfig
from vitrail.models.axial import AxialConfig
from vitrail.models.beit import BEiTConfig
from vitrail.models.cait import CaiTConfig
from vitrail.models.pvt import PVTConfig
from vitrail.models.pvt_v2 import PVTv2Config
from vitrail.models.resnet import AxialResNetConfig, ResNetConfig
from vitrail.models.swin import SwinConfig

SMALL = {"image_size": 32, "classes": 7}
THREE_HEADS = {**SMALL, "patch_size": 8, "width": 12, "depth": 2, "heads": 3, "mlp_width": 20}

# maps of 8 x 8, 4 x 4 and 2 x 2 for 32 x 32 pixels
PYRAMID = {
    "widths": (8, 12, 16),
    "depths": (1, 2, 1),
    "heads": (1, 2, 2),
    "mlp_ratios": (3, 2, 2),
    "reductions": (4, 2, 1),
}

TINY: dict[str, Config] = {
    "vit": ViTConfig(**SMALL, patch_size=8, width=16, depth=3, heads=2, mlp_width=24),
    # a grid of 5 x 3 in windows of 2 x 2, filled up, and two blocks of three with them
    "vit, windows": ViTConfig(
        **{**SMALL, "image_size": (40, 24)},
        patch_size=8,
        width=16,
        depth=3,
        heads=2,
        mlp_width=24,
        window=2,
        global_blocks=1,
    ),
    "vit, dinov3": ViTConfig(
        **THREE_HEADS, rope="dinov3", positions="none", registers=2, qkv_bias="qv", layer_scale=0.1, mlp="swiglu"
    ),
    "vit, eva02": ViTConfig(
        **THREE_HEADS,
        **{"rope": "eva02", "rope_grid": (16, 16), "mlp": "swiglu", "mlp_norm": True, "attention_norm": True},
        qkv_bias="qv",
        pool="gap",
        pool_norm=True,
    ),
    "axial": AxialConfig(**SMALL, patch_size=8, width=16, depth=2, heads=2, mlp_width=24),
    # maps of 8 x 8 and 4 x 4, filled up to windows of 3 x 3, every second one shifted
    "swin": SwinConfig(**SMALL, width=8, depths=(2, 2), heads=(1, 2), window=3, mlp_ratio=2.0),
    # maps of 9 x 7, 5 x 4, 3 x 2: odd, filled up, and at last smaller than a window
    "swin, odd map": SwinConfig(
        **{**SMALL, "image_size": (34, 27)}, width=8, depths=(1, 2, 1), heads=(2, 2, 4), window=4
    ),
    "cait": CaiTConfig(**THREE_HEADS),
    "beit": BEiTConfig(**THREE_HEADS),
    "beit, one table": BEiTConfig(**THREE_HEADS, relative_bias="shared", positions=True, pool="cls"),
    "vit, root": ViTConfig(**SMALL, patch_size=8, stem=(), stem_width=32, width=16, depth=2, heads=2, mlp_width=24),
    "vit, stem": ViTConfig(
        **SMALL, patch_size=16, stem=(1, 2), stem_width=32, width=16, depth=2, heads=2, mlp_width=24
    ),
    "bit": ResNetConfig(**SMALL, depths=(1, 2)),
    # maps of 9 x 7, 5 x 4, 3 x 2
    "bit, odd map": ResNetConfig(**{**SMALL, "image_size": (34, 27)}, depths=(1, 1, 1)),
    # maps of 12 x 8 and 6 x 4
    "bit, small stem": ResNetConfig(**{**SMALL, "image_size": (12, 8)}, depths=(1, 2), stem="small", stem_width=32),
    # maps of 8 x 8 and 4 x 4
    "axial resnet": AxialResNetConfig(**SMALL, depths=(1, 2)),
    # maps of 9 x 7, 5 x 4, 3 x 2; the last stage attends on the map of the second alone
    "axial resnet, odd map": AxialResNetConfig(**{**SMALL, "image_size": (34, 27)}, depths=(1, 1, 1), heads=4),
    "axial resnet, small stem": AxialResNetConfig(
        **{**SMALL, "image_size": (12, 8)}, depths=(1, 1), stem="small", stem_width=32, heads=4
    ),
    "pvt": PVTConfig(**SMALL, **PYRAMID),
    # maps of 9 x 7, 5 x 4 and 3 x 2: filled up, and left over by the reductions
    "pvt, odd map": PVTConfig(**{**SMALL, "image_size": (34, 27)}, **PYRAMID, pad=True),
    "pvt v2": PVTv2Config(**SMALL, **PYRAMID),
    "pvt v2, linear": PVTv2Config(**{**SMALL, "image_size": (34, 27)}, **PYRAMID, linear=True),
}


def shares(config: Config) -> list[str]:
    """The fields that are a rate of dropping something."""
    return [field.name for field in fields(config) if field.type == "Share"]


# one of each kind, which the quick tests take of a long product: plain, windows, class attention, convolutions, a pyramid
QUICK = ("vit", "swin", "cait", "bit", "pvt")

# the least of each architecture in which every part of it is traced once
TWO_STAGES: dict[str, Any] = {
    "widths": (8, 12),
    "depths": (1, 1),
    "heads": (1, 2),
    "mlp_ratios": (3, 2),
    "reductions": (4, 1),
}
SHALLOW: dict[str, Config] = {
    "vit": replace(TINY["vit"], depth=1),
    "axial": replace(TINY["axial"], depth=1),
    "swin": replace(TINY["swin"], depths=(2,), heads=(2,)),
    "cait": replace(TINY["cait"], depth=1, class_depth=1),
    "beit": replace(TINY["beit"], depth=1),
    "pvt": replace(TINY["pvt"], **TWO_STAGES),
    "pvt v2": replace(TINY["pvt v2"], **TWO_STAGES),
    "bit": replace(TINY["bit"], depths=(1, 1)),
    "axial resnet": replace(TINY["axial resnet"], depths=(1, 1)),
}
