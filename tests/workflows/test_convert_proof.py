"""The proof of a copy: one that computes or tells something else is refused with the figure, and nothing is left of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.each_row import each_row
from tests.weights.kinds import a_model
from vitrail.checksums import seal
from vitrail.errors import CheckpointError
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert
from vitrail.weights import encode
from vitrail.weights.encode import EncodedModel
from vitrail.weights.native import save_model


def corrupted(tensor: str, by: float) -> Callable[[Classifier, Path], EncodedModel]:
    """A writer with a fault in one number."""

    def write(classifier: Classifier, path: Path) -> EncodedModel:
        faulty = a_model()
        with torch.no_grad():
            faulty.backbone.get_parameter(tensor).view(-1)[0] += by
        return encode.encode_native(faulty, path)

    return write


@each_row(
    "tensor, by",
    [("head.bias", 1.0), ("blocks.1.mlp.fc1.weight", 0.5), ("norm.bias", float("nan")), ("norm.bias", 1e-7)],
)
def test_a_copy_that_is_not_the_source_is_refused_with_the_figure_and_leaves_nothing(tmp_path, monkeypatch, tensor, by):
    monkeypatch.setitem(encode.ENCODERS, "native", corrupted(tensor, by))
    with pytest.raises(
        CheckpointError, match=r"outputs differ by (nan|[\d.e-]+) of the largest, 1e-05 is allowed"
    ) as caught:
        convert(save_model(tmp_path / "source", a_model()), tmp_path / "copy", "native")
    assert caught.value.value == f"1 of its parts differ: {tensor}"
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_a_copy_whose_description_lies_is_refused_too(tmp_path, saved, monkeypatch):
    def write(classifier: Classifier, path: Path) -> EncodedModel:
        classifier.preprocessing = replace(classifier.preprocessing, interpolation="nearest")
        written = encode.encode_native(classifier, path)
        classifier.preprocessing = replace(classifier.preprocessing, interpolation="bilinear")
        return written

    monkeypatch.setitem(encode.ENCODERS, "native", write)
    with pytest.raises(CheckpointError, match="differ by 0 ") as caught:
        convert(saved(), tmp_path / "copy", "native")
    assert "preprocessing.interpolation" in caught.value.value


def test_a_config_that_tells_timm_something_else_is_refused(tmp_path, saved, monkeypatch):
    """Read with our description the copy is right; timm would make another model of it."""

    def write(classifier: Classifier, path: Path) -> EncodedModel:
        written = encode.encode_timm(classifier, path)
        told = json.loads(written.files["config.json"])
        told["model_args"]["act_layer"] = "gelu"
        return EncodedModel({**written.files, "config.json": json.dumps(seal(told)).encode()})

    monkeypatch.setitem(encode.ENCODERS, "timm", write)
    with pytest.raises(CheckpointError) as caught:
        convert(saved(), tmp_path / "copy", "timm")
    assert caught.value.value == "gelu tanh, read as exact"


def test_a_model_of_no_numbers_is_refused(tmp_path):
    model = a_model()
    with torch.no_grad():
        model.backbone.get_parameter("head.bias")[0] = torch.nan
    with pytest.raises(CheckpointError, match="not finite"):
        convert(save_model(tmp_path / "source", model), tmp_path / "copy.npz", "google")
