"""One or more small configs of every architecture, which whatever goes through all of them is parametrised with."""

from __future__ import annotations

from vitrail.models import Config, ResNetConfig, ViTConfig

SMALL = {"image_size": 32, "classes": 7}

TINY: dict[str, Config] = {
    "vit": ViTConfig(**SMALL, patch_size=8, width=16, depth=3, heads=2, mlp_width=24),
    "vit, root": ViTConfig(**SMALL, patch_size=8, stem=(), stem_width=32, width=16, depth=2, heads=2, mlp_width=24),
    "vit, stem": ViTConfig(
        **SMALL, patch_size=16, stem=(1, 2), stem_width=32, width=16, depth=2, heads=2, mlp_width=24
    ),
    "bit": ResNetConfig(**SMALL, depths=(1, 2)),
    # maps of 9 x 7, 5 x 4, 3 x 2
    "bit, odd map": ResNetConfig(**{**SMALL, "image_size": (34, 27)}, depths=(1, 1, 1)),
}
