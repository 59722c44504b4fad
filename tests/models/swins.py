"""Small Swin Transformers, in fp64 unless ``dtype`` says otherwise, and images for them."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.models.conftest import shaken
from vitrail.models import create_backbone
from vitrail.models.swin import Swin, SwinConfig

TINY = SwinConfig(image_size=48, classes=5, width=8, depths=(2, 3), heads=(2, 4), window=3, mlp_ratio=2.0)


def make(seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> Swin:
    return shaken(create_backbone(replace(TINY, **changes)), seed).to(dtype).eval()


def pictures(height: int, width: int, batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1)).double()
