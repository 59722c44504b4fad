"""Image processors of transformers that need torchvision: their defaults are those that are assumed here."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.each_row import each_row
from vitrail.models import ViTConfig
from vitrail.weights.huggingface.processor import from_processor

pytestmark = pytest.mark.peers


@each_row("kind", ["DINOv3ViT", "Tipsv2"])
def test_defaults_of_processors_that_need_torchvision_are_transformers(kind):
    config = ViTConfig(image_size=32, patch_size=8, depth=1, width=12)
    named = {"image_processor_type": f"{kind}ImageProcessor"}
    stated = getattr(transformers, named["image_processor_type"])().to_dict()
    expected, _ = from_processor({**stated, **named}, "ViT", config, Path("folder"))
    assert from_processor(named, "ViT", config, Path("folder"))[0] == expected
