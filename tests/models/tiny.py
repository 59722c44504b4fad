"""One or more small configs of every architecture, which whatever goes through all of them is parametrised with."""

from __future__ import annotations

from vitrail.models import Config, PVTConfig, PVTv2Config, ResNetConfig, SwinConfig, ViTConfig
from vitrail.models.beit import BEiTConfig
from vitrail.models.cait import CaiTConfig

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
    # maps of 8 x 8 and 4 x 4, filled up to windows of 3 x 3, every second one shifted
    "swin": SwinConfig(**SMALL, width=8, depths=(2, 2), heads=(1, 2), window=3, mlp_ratio=2.0),
    # maps of 9 x 7, 5 x 4, 3 x 2: odd, filled up, and at last smaller than a window
    "swin, odd map": SwinConfig(
        **{**SMALL, "image_size": (34, 27)}, width=8, depths=(1, 2, 1), heads=(2, 2, 4), window=4
    ),
    "cait": CaiTConfig(**THREE_HEADS),
    "beit": BEiTConfig(**THREE_HEADS),
    "beit, one table": BEiTConfig(**THREE_HEADS, relative_bias="shared", positions=True, pool="cls"),
    "pvt": PVTConfig(**SMALL, **PYRAMID),
    # maps of 9 x 7, 5 x 4 and 3 x 2: filled up, and left over by the reductions
    "pvt, odd map": PVTConfig(**{**SMALL, "image_size": (34, 27)}, **PYRAMID, pad=True),
    "pvt v2": PVTv2Config(**SMALL, **PYRAMID),
    "pvt v2, linear": PVTv2Config(**{**SMALL, "image_size": (34, 27)}, **PYRAMID, linear=True),
    "vit, root": ViTConfig(**SMALL, patch_size=8, stem=(), stem_width=32, width=16, depth=2, heads=2, mlp_width=24),
    "vit, stem": ViTConfig(
        **SMALL, patch_size=16, stem=(1, 2), stem_width=32, width=16, depth=2, heads=2, mlp_width=24
    ),
    "bit": ResNetConfig(**SMALL, depths=(1, 2)),
    # maps of 9 x 7, 5 x 4, 3 x 2
    "bit, odd map": ResNetConfig(**{**SMALL, "image_size": (34, 27)}, depths=(1, 1, 1)),
}
