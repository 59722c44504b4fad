"""Models whose preprocessing gives images of another size than the network's, as DINOv2's: written with resized positions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Dinov2Config, Dinov2ForImageClassification

from tests.each_row import each_row
from vitrail.verbs.convert import convert
from vitrail.verbs.export import export
from vitrail.weights import load

IMAGES = torch.randn(2, 3, 42, 42, generator=torch.Generator().manual_seed(1))
RESIZED = "resized  positions for images of 70x70 to 42x42, the crop of the preprocessing (--crop gives another)"


def saved(folder: Path) -> torch.Tensor:
    """Saves a DINOv2 for 70x70 pixels with a crop of 42x42, and returns the logits of transformers for `IMAGES`."""
    config = Dinov2Config(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=70, patch_size=14, num_labels=5
    )
    torch.manual_seed(0)
    model = Dinov2ForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    processor = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 48},
        "crop_size": {"height": 42, "width": 42},
        "do_center_crop": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    with torch.no_grad():
        return model(IMAGES).logits


@each_row("to", ["native", "huggingface"])
def test_a_converted_model_gives_the_logits_of_transformers(to, tmp_path):
    expected, lines = saved(tmp_path / "dinov2"), []
    convert(tmp_path / "dinov2", tmp_path / "copy", to, log=lines.append)
    assert RESIZED in lines
    copy = load(tmp_path / "copy", log=lines.append)
    torch.testing.assert_close(copy(IMAGES), expected, atol=1e-5, rtol=1e-5)
    assert copy.config.image_size == copy.preprocessing.size == (42, 42)
    assert copy.preprocessing == load(tmp_path / "dinov2", log=lines.append).preprocessing


def test_a_requested_size_keeps_the_positions(tmp_path):
    saved(tmp_path / "dinov2")
    lines: list[str] = []
    convert(tmp_path / "dinov2", tmp_path / "copy", "native", crop=70, log=lines.append)
    copy, source = (load(tmp_path / name, log=lines.append) for name in ("copy", "dinov2"))
    assert torch.equal(copy.backbone.pos_embed, source.backbone.pos_embed)
    assert copy.preprocessing.size == (70, 70)
    assert not any(line.startswith("resized") for line in lines)


@pytest.mark.slow
def test_an_exported_model_gives_the_logits_of_transformers(tmp_path):
    expected = saved(tmp_path / "dinov2")
    lines: list[str] = []
    export(tmp_path / "dinov2", tmp_path / "x.onnx", images=2, quiet=True, log=lines.append)
    assert RESIZED in lines
    torch.testing.assert_close(load(tmp_path / "x.onnx")(IMAGES), expected, atol=1e-4, rtol=1e-4)
