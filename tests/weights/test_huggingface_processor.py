"""Preprocessing as transformers does it: the same pixels from the same file, in both directions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.each_row import each_row
from vitrail.data.preprocessing import INTERPOLATIONS, Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.weights.huggingface.processor import PROCESSORS, from_processor, to_processor

WHERE = Path("folder")
CONFIG = ViTConfig(image_size=32, patch_size=8, depth=1, width=12)
SQUARE = {"height": 40, "width": 40}
STATED: dict[str, dict[str, Any]] = {
    "squash": {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 40}},
    "an old file": {
        "feature_extractor_type": "ViTFeatureExtractor",
        "size": 24,
        "resample": 3,
        "image_mean": [0.1] * 3,
    },
    "squash and crop": {"image_processor_type": "DeiTImageProcessor", "size": 39, "crop_size": 32},
    "no crop": {"image_processor_type": "DeiTImageProcessor", "size": SQUARE, "do_center_crop": False},
    "shorter side": {"image_processor_type": "BitImageProcessor", "size": 35, "crop_size": {"height": 32, "width": 32}},
    "BEiT's": {"image_processor_type": "BeitImageProcessor", "size": [24, 40], "resample": 0},
    "PVT's": {"image_processor_type": "PvtImageProcessor", "size": SQUARE, "resample": 4, "image_std": [1.5, 2.0, 3.0]},
    "no resize": {"image_processor_type": "BitImageProcessor", "do_resize": False, "crop_size": 31},
    "other numbers": {"image_processor_type": "ViTImageProcessor", "size": SQUARE, "rescale_factor": 1 / 127.5},
    "numbers as they are": {"image_processor_type": "ViTImageProcessor", "do_rescale": False, "image_std": [60.0] * 3},
    "no normalising": {"image_processor_type": "ViTImageProcessor", "do_normalize": False, "resample": 1},
}
OURS = {
    "squash": Preprocessing(size=(24, 40), interpolation="bilinear"),
    "timm's": Preprocessing.timm(32, crop_fraction=0.8, mean=(0.1, 0.2, 0.3), std=(0.2, 0.3, 0.4)),
    "none": Preprocessing(size=(31, 32), resize="none", crop_rounding="floor"),
    "larger squash": Preprocessing(size=(24, 32), resize="squash", resize_to=27, crop_rounding="floor"),
    "short": Preprocessing(size=(32, 32), resize="short", resize_to=35, crop_rounding="floor"),
    **{name: Preprocessing(size=(16, 16), interpolation=name) for name in INTERPOLATIONS},
}


def photographs() -> list[Image.Image]:
    """Noise with some shape to it, tall, wide, and smaller than a crop."""
    generator = np.random.default_rng(0)
    sizes = [(61, 90), (90, 47), (50, 50), (20, 90)]
    coarse = [generator.integers(0, 256, (height // 5, width // 5, 3), dtype=np.uint8) for height, width in sizes]
    return [Image.fromarray(each).resize(size[::-1]) for each, size in zip(coarse, sizes)]


def theirs(stated: dict[str, Any], pictures: list[Image.Image]) -> list[np.ndarray]:
    """What transformers makes of the pictures by itself, each (C, h, w)."""
    transformers = pytest.importorskip("transformers")
    named = stated.get("image_processor_type", "ViTImageProcessor")
    processor = getattr(transformers, f"{named}Pil").from_dict(stated)
    return [processor(picture, return_tensors="np")["pixel_values"][0] for picture in pictures]


def model(preprocessing: Preprocessing) -> Classifier:
    return Classifier(
        create_classifier("vit-ti16", classes=2, depth=1, width=12, mlp_width=12).backbone, ["a", "b"], preprocessing
    )


@each_row("kind", STATED)
def test_pixels_are_those_of_transformers(kind):
    preprocessing, assumed = from_processor(STATED[kind], "ViT", CONFIG, WHERE)
    assert assumed == []
    for picture, other in zip(photographs(), theirs(STATED[kind], photographs())):
        ours = model(preprocessing).preprocess(picture)[0].numpy()
        np.testing.assert_allclose(ours, other, atol=3e-6 * max(1.0, np.abs(other).max()))


@each_row("kind", OURS)
def test_transformers_makes_the_pixels_of_what_is_written(kind):
    stated, notes = to_processor(OURS[kind])
    assert len(notes) == (kind == "timm's")  # whose crop of an odd rest lies elsewhere
    even = 0
    for picture, other in zip(photographs(), theirs(stated, photographs())):
        rest = [length % 2 for length in OURS[kind].resized(picture.height, picture.width)]
        if kind != "timm's" or not any(rest):
            even += 1
            np.testing.assert_allclose(model(OURS[kind]).preprocess(picture)[0].numpy(), other, atol=1e-5)
    assert even >= 2
    again, assumed = from_processor(stated, "ViT", CONFIG, WHERE)
    assert assumed == []
    if not notes:
        assert again.to_dict() | {"crop_rounding": ""} == OURS[kind].to_dict() | {"crop_rounding": ""}


# those of DINOv3 and TIPSv2 need torchvision: tests/peers/test_processors.py
@each_row("kind", [kind for kind in PROCESSORS if kind not in ("DINOv3ViT", "Tipsv2")])
def test_processor_defaults_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    stated = getattr(transformers, f"{kind}ImageProcessorPil")().to_dict()
    silent, _ = from_processor({"image_processor_type": f"{kind}ImageProcessorFast"}, "ViT", CONFIG, WHERE)
    assert silent == from_processor(stated, "ViT", CONFIG, WHERE)[0]


@each_row("kind", PROCESSORS)
def test_without_a_file_it_is_assumed_at_the_size_of_the_model(kind):
    preprocessing, assumed = from_processor({}, kind, CONFIG, WHERE)
    assert preprocessing.size == (32, 32)
    assert preprocessing.resize_to == {"DeiT": 36, "Bit": 32, "CLIP": 32}.get(kind)
    assert [line.split()[0] for line in assumed] == ["mean", "std", "resize", "crop", "interpolation"]
    five = ViTConfig(image_size=(32, 48), in_channels=5)
    other, _ = from_processor({}, kind, five, WHERE)
    mean, std = (0.0, 1.0) if kind == "Tipsv2" else (0.5, 0.5)
    assert (other.size, other.mean, other.std) == ((32, 48), (mean,) * 5, (std,) * 5)
    to_processor(replace(other, size=(32, 32)), kind)


@each_row("changes", [{"size": 40, "do_center_crop": False}, {"do_resize": False, "do_center_crop": False}])
def test_a_crop_that_transformers_would_not_make_is_said_to_be_assumed(changes):
    stated = {"image_processor_type": "BitImageProcessor", **changes}
    preprocessing, assumed = from_processor(stated, "ViT", CONFIG, WHERE)
    side = 40 if "size" in changes else 32
    assert assumed == [f"a centre crop of {side}x{side}"]
    assert preprocessing.size == (side, side)


@each_row(
    "stated, words",
    [
        ({"image_processor_type": "FlavaImageProcessor"}, "unsupported image processor 'FlavaImageProcessor'"),
        ({"image_processor_type": 7}, "unsupported image processor 7"),
        ({"size": {"shortest_edge": 40, "longest_edge": 80}}, "a size of"),
        ({"size": {"height": 40}}, "it has no 'width'"),
        ({"size": 24.5}, "float"),
        ({"size": 0}, "a size of 0"),
        ({"size": True}, "a size of True"),
        ({"size": "24"}, "a size of 24"),
        ({"size": [1, 2, 3]}, "a size of"),
        ({"resample": 5}, "it has no 5"),
        ({"resample": [3]}, "unhashable"),
        ({"image_mean": [0.5]}, "for 3 channels"),
        ({"image_mean": "grey"}, "for 3 channels"),
        ({"image_std": [0.5, 0.5, 0]}, "one mean and one positive std"),
        ({"image_std": [0.5, 0.5, float("nan")]}, "std"),
        ({"rescale_factor": 0}, "division by zero"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 3}}, "crop_size is 3"),
        ({"do_center_crop": True, "crop_size": 32, "size": {"height": 40, "width": 50}}, "another aspect ratio"),
        ({"do_center_crop": True, "crop_size": 32, "size": 24}, "below the 32 pixels"),
        ({"do_center_crop": True, "crop_size": [32, 40], "size": {"shortest_edge": 48}}, "not square"),
    ],
)
def test_unsupported_or_invalid_processors_are_refused(stated, words):
    with pytest.raises(CheckpointError, match=words):
        from_processor(stated, "ViT", CONFIG, WHERE)


def test_a_shorter_side_before_an_oblong_crop_is_not_written():
    with pytest.raises(CheckpointError, match="no counterpart of a shorter side of 40 pixels before a crop of 24x32"):
        to_processor(Preprocessing(size=(24, 32), resize="short", resize_to=40))


def test_rounding_that_transformers_does_otherwise_is_noted():
    notes = to_processor(Preprocessing(size=(24, 24), resize="short", resize_to=40, rounding="round"))[1]
    assert ["longer side" in note for note in notes] == [True, False]
    assert to_processor(Preprocessing(size=(24, 24), rounding="round"))[1] == []
