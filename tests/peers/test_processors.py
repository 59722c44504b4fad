"""Image processors of transformers that need torchvision: their defaults are those that are assumed here."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from vitrail.models import ViTConfig
from vitrail.weights.huggingface.processor import from_processor

pytestmark = pytest.mark.peers


def test_defaults_of_dinov3s_processor_are_transformers():
    config = ViTConfig(image_size=32, patch_size=8, depth=1, width=12)
    stated = transformers.DINOv3ViTImageProcessor().to_dict()
    named = {"image_processor_type": "DINOv3ViTImageProcessor"}
    expected, _ = from_processor({**stated, **named}, "ViT", config, Path("folder"))
    assert from_processor(named, "ViT", config, Path("folder"))[0] == expected
