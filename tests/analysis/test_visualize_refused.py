"""What `visualize_attention` refuses, and what it says."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.analysis.drawn import noise
from tests.analysis.weighing import shaken
from tests.models.tiny import TINY
from vitrail.analysis.visualize import visualize_attention
from vitrail.errors import ConfigError, DataError, DiskError

VIT = TINY["vit"]  # three layers of two heads, a map of 4 x 4


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"layer_idx": 11}, "there is no layer 11: the model has 3"),
        ({}, "there is no layer 11: the model has 3"),
        ({"layer_idx": -4}, "there is no layer -4: the model has 3"),
        ({"layer_idx": 0, "head_idx": 2}, "there is no head 2: the model has 2"),
        ({"layer_idx": 0, "query": (4, 0)}, "there is no row 4"),
        ({"layer_idx": 0, "query": (0, 4)}, "there is no column 4"),
    ],
)
def test_what_the_model_does_not_have_is_told(wanted, message):
    with pytest.raises(ConfigError, match=message):
        visualize_attention(shaken(VIT), noise(60, 90, 3), **wanted)


@pytest.mark.parametrize("image", [noise(60, 90, 3), torch.zeros(1, 3, 32, 32)])
def test_a_model_without_attention_raises(image):
    with pytest.raises(ConfigError, match="has no attention"):
        visualize_attention(shaken(TINY["bit"]), image)


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 3, 32, 32), noise(2, 60, 90, 3), [noise(60, 90, 3), noise(60, 90, 3)], torch.zeros(0, 3, 32, 32)],
)
def test_several_images_or_none_are_refused(images):
    with pytest.raises(ConfigError, match=f"{len(images)} images"):
        visualize_attention(shaken(VIT), images, 0)


@pytest.mark.parametrize(
    "image",
    [noise(60, 90, 3), noise(32, 32, 3), "bee.png", torch.zeros(3, 32, 32, dtype=torch.uint8), torch.zeros(32, 32)],
)
def test_a_backbone_refuses_what_needs_preprocessing(image):
    with pytest.raises(ConfigError, match="has no preprocessing"):
        visualize_attention(shaken(VIT).backbone, image, 0)


def test_what_is_no_picture_is_a_data_error(tmp_path):
    model = shaken(VIT)
    with pytest.raises(DataError, match=r"none\.png cannot be read"):
        visualize_attention(model, tmp_path / "none.png", 0)
    for nothing, reason in [
        (b"GIF", "not a JPEG"),
        (object(), "it is a object"),
        (noise(60, 90, 3) * 2.0, "run from 0 to"),
    ]:
        with pytest.raises(DataError, match=reason):
            visualize_attention(model, nothing, 0)
    with pytest.raises(DataError, match="not finite"):
        visualize_attention(model, torch.full((1, 3, 32, 32), float("nan")), 0)


@pytest.mark.parametrize("name", ["map", "map.bmp", "map.eps"])
def test_an_ending_that_is_no_format_is_told_before_the_model_runs(tmp_path, name):
    with pytest.raises(ConfigError, match=r"hint: use a file name that ends in \.png, \.jpg"):
        visualize_attention(None, None, path=tmp_path / name)


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_a_disk_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="cannot be written"):
        visualize_attention(shaken(VIT), noise(60, 90, 3), 0, path=tmp_path / "file" / "map.png")
    with pytest.raises(DiskError):
        visualize_attention(shaken(VIT), noise(60, 90, 3), 0, path=tmp_path / "no" / "map.png")


def test_without_matplotlib_the_error_names_the_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "vitrail.analysis.figure", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"needs matplotlib\n.*pip install 'vitrail\[figure\]'"):
        visualize_attention(shaken(VIT), noise(60, 90, 3), 1)
