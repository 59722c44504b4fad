"""One or more small configs of every architecture, which whatever goes through all of them is parametrised with."""

from __future__ import annotations

from vitrail.models import Config, ViTConfig
from vitrail.models.beit import BEiTConfig
from vitrail.models.cait import CaiTConfig

SMALL = {"image_size": 32, "classes": 7}
THREE_HEADS = {**SMALL, "patch_size": 8, "width": 12, "depth": 2, "heads": 3, "mlp_width": 20}

TINY: dict[str, Config] = {
    "vit": ViTConfig(**SMALL, patch_size=8, width=16, depth=3, heads=2, mlp_width=24),
    "cait": CaiTConfig(**THREE_HEADS),
    "beit": BEiTConfig(**THREE_HEADS),
    "beit, one table": BEiTConfig(**THREE_HEADS, relative_bias="shared", positions=True, pool="cls"),
}
