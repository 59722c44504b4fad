"""Test-time augmentation: outputs are means over views, and an evaluation says what it gains."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.looked_at import shaken
from tests.tasks.dense_models import create
from tests.tasks.test_regression import NAMES, draw_ramps
from vitrail.cli import run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import ConfigError
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import run_model
from vitrail.inference.views import average_views, make_views
from vitrail.models import create_backbone
from vitrail.tasks.regression.task import Regressor
from vitrail.weights.native import save_model

MODEL = shaken()
SIZE = MODEL.preprocessing.size


def draw_source(count=20, classes=MODEL.classes) -> Source:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, *SIZE, 3), np.uint8)
    contents = Arrays(images, Strings(f"{n}.png" for n in range(count)))
    return Source(contents=contents, targets=generator.integers(0, len(classes), count), classes=classes)


def evaluate(model, source, **how):
    splits = Splits(val=source, classes=source.classes, layout="noise")
    return vitrail.evaluate(model, splits, quiet=True, batch=8, **how)


def test_views_are_the_mirror_image_and_parts_of_the_picture():
    image = torch.arange(16 * 24, dtype=torch.float32).reshape(1, 1, 16, 24)
    same, mirrored = make_views(image, "flip")
    assert torch.equal(same, image) and mirrored[0, 0, 3].tolist() == image[0, 0, 3].tolist()[::-1]
    crops = list(make_views(image, "5crop"))
    assert len(crops) == 5 and all(crop.shape == image.shape for crop in crops)
    # of 14 x 21 pixels: the corners of the crops are those of the picture, the means are in the middle of the parts
    ends = [(0, 0, 0, 0), (1, 0, 0, -1), (2, 0, -1, 0), (3, 0, -1, -1)]
    assert all(crops[k][0, 0, row, column] == image[0, 0, row, column] for k, _, row, column in ends)
    means = [crop.mean().item() for crop in crops]
    assert means == pytest.approx(
        [24 * top + left + 24 * 6.5 + 10 for top, left in ((0, 0), (0, 3), (2, 0), (2, 3), (1, 1))]
    )


@pytest.mark.parametrize("views", ["flip", "5crop"])
def test_outputs_are_means_of_logits_of_as_many_images_at_a_time(views):
    source, seen = draw_source(5), []

    def model(images):
        seen.append(len(images))
        return MODEL(images)

    batches = run_model(MODEL, source, InferenceOptions(batch=2, tta=views), verb=model)
    outputs = torch.cat([outputs for _, outputs in batches])
    assert max(seen) == 2
    images = MODEL.preprocess(list(source.images))
    with torch.inference_mode():
        expected = torch.stack([MODEL(view) for view in make_views(images, views)]).mean(0)
        torch.testing.assert_close(average_views(MODEL, views)(images), expected)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-4)
    assert (outputs - MODEL(images)).abs().max() > 1e-3


def test_an_evaluation_says_what_it_gains_on_the_same_images(tmp_path):
    source = draw_source()
    plain, result = evaluate(MODEL, source), evaluate(MODEL, source, tta="5crop", out=tmp_path / "out")
    figures = result.figures
    assert figures["without_tta"] == plain.figures["top1"]
    assert figures["tta_gain"] == pytest.approx(figures["top1"] - plain.figures["top1"])
    ends = result.difference(plain)
    assert [figures[f"tta_gain_{end}"] for end in ("low", "high")] == [ends[f"top1_{end}"] for end in ("low", "high")]
    assert "tta_gain" not in plain.figures and "tta_gain" in json.loads((tmp_path / "out/figures.json").read_text())


def test_a_regressor_answers_with_the_mean_for_both_mirror_images(tmp_path):
    source = draw_ramps(12, 0)
    backbone = create_backbone("vit-ti16", classes=2, image_size=(16, 24), patch_size=8, width=32, depth=1, heads=2)
    model = Regressor(backbone, NAMES, Preprocessing.paper((16, 24)), mean=(2e5, 0), std=(2e4, 0.05)).eval()
    torch.nn.init.normal_(model.backbone.head.weight)
    figures = evaluate(model, source, tta="flip").figures
    assert figures["tta_gain"] == pytest.approx(figures["r2"] - figures["without_tta"])
    images = model.preprocess(list(source.images))
    with torch.inference_mode():
        expected = (model(images) + model(images.flip(-1))) / 2
    paths = [tmp_path / f"{n}.png" for n in range(2)]
    for image, path in zip(source.images, paths):
        Image.fromarray(image).save(path)
    answers = list(vitrail.predict(model, paths, tta="flip", quiet=True))
    found = torch.tensor([list(answer.values.values()) for answer in answers])
    torch.testing.assert_close(found, expected[:2], rtol=1e-4, atol=1e-4)


def test_what_has_no_mean_is_refused(tmp_path):
    backbone = create_backbone("vit-ti16", classes=1, image_size=16, patch_size=8, width=32, depth=1, heads=2)
    regressor = Regressor(backbone, ("x",), Preprocessing.paper(16))
    for model, views, said in (
        (create("detection"), "flip", "tta is flip, and the task detection takes one view of a picture"),
        (create("segmentation"), "5crop", "the task segmentation takes one view"),
        (regressor, "5crop", "tta is 5crop, and the task regression takes flip"),
    ):
        with pytest.raises(ConfigError, match=said):
            next(iter(vitrail.predict(model, [tmp_path], tta=views, quiet=True)))
    with pytest.raises(ConfigError, match="calibrate is set with tta=flip"):
        evaluate(MODEL, draw_source(), tta="flip", calibrate=True)


def test_parts_of_other_views_are_those_of_another_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model", MODEL)
    (tmp_path / "images").mkdir()
    Image.fromarray(draw_source().images[0]).save("images/a.png")
    command = ["predict", "model", "images", "--parts", "parts", "--format", "jsonl", "--quiet"]
    assert run([*command, "--tta", "flip"]) == 0
    (row,) = map(json.loads, (tmp_path / "parts/part-0000000.jsonl").read_text().splitlines())
    (answer,) = vitrail.predict("model", ["images"], tta="flip", quiet=True)
    assert row["score"] == pytest.approx(answer.score, abs=1e-5)
    assert run(command) != 0 and run([*command, "--tta", "flip"]) == 0
