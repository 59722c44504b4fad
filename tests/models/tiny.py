"""One or more small configs of every architecture, which whatever goes through all of them is parametrised with."""

from __future__ import annotations

from vitrail.models import Config, PVTConfig, PVTv2Config, ViTConfig

SMALL = {"image_size": 32, "classes": 7}

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
    "pvt": PVTConfig(**SMALL, **PYRAMID),
    # maps of 9 x 7, 5 x 4 and 3 x 2: filled up, and left over by the reductions
    "pvt, odd map": PVTConfig(**{**SMALL, "image_size": (34, 27)}, **PYRAMID, pad=True),
    "pvt v2": PVTv2Config(**SMALL, **PYRAMID),
    "pvt v2, linear": PVTv2Config(**{**SMALL, "image_size": (34, 27)}, **PYRAMID, linear=True),
}
