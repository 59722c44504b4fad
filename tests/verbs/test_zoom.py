"""`predict` and `evaluate` with a zoom: every format, broken images, exported graphs, and figures of what was predicted."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.tasks.dense_models import create, draw_images
from vitrail.errors import ConfigError
from vitrail.exports.graph import to_onnx
from vitrail.tasks.user_images import open_image
from vitrail.weights.description import KEY, describe

CLASSES = ("background", "cat", "dog")
SIZES = {"a.png": (40, 60), "b.png": (70, 30)}


def silent(line: str) -> None: ...


def create_fitting(task: str, **arguments):
    model = create(task, classes=CLASSES, **arguments)
    model.preprocessing = replace(model.preprocessing, resize="fit")
    return model


@pytest.fixture(scope="module")
def detector():
    """One with boxes of about six pixels, which windows may answer for."""
    model = create_fitting("detection", most=5, threshold=0.0)
    head = model.own["head"]
    with torch.no_grad():
        head.scales.fill_(1)
        head.distances.weight.mul_(0.1)
        head.distances.bias.fill_(-1.7)
    return model


@pytest.fixture(scope="module")
def segmenter():
    """One that answers with every class on noise."""
    model = create_fitting("segmentation")
    with torch.no_grad():
        model.own["head"].classifier.bias.sub_(model(draw_images(model)).mean((0, 2, 3)))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """``images`` with two pictures of unlike sizes between which one is broken."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "images").mkdir()
    draw = np.random.default_rng(0)
    for name, size in SIZES.items():
        cells = Image.fromarray(draw.integers(0, 255, (12, 12, 3), np.uint8))
        cells.resize(size[::-1], 2).save(folder / "images" / name)
    (folder / "images" / "ab.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


def predict(model, inputs, out=None, **more):
    return vitrail.predict(model, inputs, out=out, quiet=True, log=silent, **more)


def list_contents(model, folder, **more):
    return [json.dumps(answer.to_json()) for answer in predict(model, folder / "images", **more)]


@pytest.mark.parametrize("task", ["detector", "segmenter"])
def test_answers_are_those_of_the_model_for_each_picture(request, folder, task):
    model = request.getfixturevalue(task)
    expected = [json.dumps(model.predict(folder / "images" / name, zoom=1.5)[0].to_json()) for name in SIZES]
    assert list_contents(model, folder, zoom=1.5) == expected
    assert list_contents(model, folder, zoom=1.5, workers=1) == expected
    whole = list_contents(model, folder)
    assert list_contents(model, folder, zoom=1) == whole != expected


def test_every_input_is_accounted_for_and_drawn(detector, segmenter, folder, tmp_path):
    for model, name in ((detector, "boxes.csv"), (segmenter, "masks")):
        out = predict(model, folder / "images", tmp_path / name, zoom=2, overlay=tmp_path / model.name)
        with open(out / "index.csv" if out.is_dir() else out, newline="") as file:
            rows = list(csv.DictReader(file))
        assert [Path(row["path"]).name for row in rows if row["error"]] == ["ab.jpg"]
        assert {Path(row["path"]).name for row in rows} == {*SIZES, "ab.jpg"}
        for picture, (height, width) in SIZES.items():
            drawn = tmp_path / model.name / picture.replace(".png", ".drawn.jpg")
            assert open_image(drawn).size == (width, height)


def test_masks_that_were_predicted_are_evaluated_as_right_at_the_same_zoom(segmenter, folder, tmp_path):
    (tmp_path / "images").mkdir()
    for name in SIZES:
        (tmp_path / "images" / name).symlink_to(folder / "images" / name)
    predict(segmenter, tmp_path / "images", tmp_path / "masks", zoom=1.5)
    how = {"batch": 3, "max_bad": 1.0, "quiet": True, "log": silent}
    same, whole = (vitrail.evaluate(segmenter, tmp_path, zoom=zoom, **how) for zoom in (1.5, 1))
    assert same.figures["pixel_accuracy"] == 1
    assert whole.figures["pixel_accuracy"] < 1
    assert same.keys == whole.keys


def test_boxes_that_were_predicted_are_all_found_at_the_same_zoom(detector, folder, tmp_path):
    (tmp_path / "images").symlink_to(folder / "images")
    predict(detector, [folder / "images" / name for name in SIZES], tmp_path / "labels", zoom=1.5)
    (tmp_path / "labels" / "ab.txt").write_text("")
    (tmp_path / "data.yaml").write_text(json.dumps({"train": "images", "names": CLASSES}))
    how = {"split": "train", "max_bad": 1.0, "quiet": True, "log": silent}
    same, whole = (vitrail.evaluate(detector, tmp_path, zoom=zoom, **how) for zoom in (1.5, 1))
    # boxes beside the picture are no answers, and cost precision only
    assert same.figures["ar_100"] == pytest.approx(1)
    assert whole.figures["ar_100"] < 0.9
    assert same.figures["images"] == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, as it loads its compiler
def test_an_exported_segmenter_answers_as_the_model(segmenter, folder, tmp_path):
    path = tmp_path / "model.onnx"
    to_onnx(segmenter, path, metadata={KEY: json.dumps(describe(segmenter))})
    answers = (predict(each, folder / "images", zoom=1.5) for each in (path, segmenter))
    for one, other in zip(*answers, strict=True):
        assert (one.map == other.map).mean() > 0.999


def test_an_invalid_zoom_is_refused_before_data_are_read(segmenter):
    classifier = vitrail.create_model("vit-ti16", image_size=32, classes=CLASSES, depth=1)
    for ask in (predict, vitrail.evaluate):
        with pytest.raises(ConfigError, match=r"zoom is 2, and a model of the task classification"):
            ask(classifier, "nowhere", zoom=2)
        with pytest.raises(ConfigError, match=r"zoom is 0\.5\n"):
            ask(segmenter, "nowhere", zoom=0.5)
    with pytest.raises(ConfigError, match="zoom is 2, and fast decodes"):
        predict(segmenter, "nowhere", zoom=2, fast=True)
    for more in ({"corruptions": True}, {"out": "report"}):
        with pytest.raises(ConfigError, match=f"zoom is 2, and {next(iter(more))} needs"):
            vitrail.evaluate(segmenter, "nowhere", zoom=2, **more)
