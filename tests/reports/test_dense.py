"""The report of a detector and of a segmenter: a safe page whose pictures and numbers are those of the result."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reports.reading import PAYLOAD, Page
from tests.tasks.dense_models import create
from vitrail.data.sources.annotations import LabelMaps, Objects
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.inference.options import InferenceOptions
from vitrail.reports.evaluated_run import write_documents
from vitrail.reports.facts import EvaluatedRun
from vitrail.reports.samples import draw_samples, mark_wrong
from vitrail.tasks.dense.drawing import class_colours

SIZE = (32, 48)
CLASSES = ("cat", "dog")
TRUE = [(4, 4, 20, 20), (24, 8, 44, 28), (2, 22, 10, 30)]  # a cat, a dog, and a cat that nobody finds
# left, top, right, bottom, score, label: the cat, the dog taken for a cat, nothing, and one below the threshold
FOUND = [(4, 4, 20, 20, 0.9, 0), (24, 8, 44, 28, 0.8, 0), (30, 0, 40, 6, 0.7, 1), (0, 0, 9, 9, 0.1, 1)]


def write_report(folder, task, outputs, targets, names=CLASSES):
    """The report of a model that gives these outputs for each of two grey pictures, and its result."""
    model = create(task, classes=names, size=SIZE)
    model.forward = lambda images: outputs.expand(len(images), *outputs.shape[1:])
    pictures = np.full((2, *SIZE, 3), 120, np.uint8)
    source = Source(contents=Arrays(pictures, Strings(["a.png", PAYLOAD])), targets=targets, classes=names)
    result = evaluate_model(model, source, InferenceOptions(quiet=True), split="val")
    result.metric.resamples = 20
    facts = {"title": PAYLOAD, "records": [{"step": 1, "loss": 2.0}, {"step": 1, "val_ap": 0.5}]}
    run = EvaluatedRun(facts=facts, model=model, splits={"val": source}, source=source, result=result)
    path = write_documents(folder, run)
    assert {each.suffix for each in (folder / "plots").iterdir()} == {".svg"}
    return Page(path.read_text("utf-8")), run


def objects() -> Objects:
    return Objects.join([Objects.of_image(TRUE, [0, 1, 0], size=SIZE)] * 2)


def maps(*arrays: np.ndarray) -> LabelMaps:
    contents = Arrays(np.stack(arrays)[..., None], Strings([f"{n}.png" for n in range(len(arrays))]))
    return LabelMaps(contents, np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))


def shown(page: Page) -> list[np.ndarray]:
    """The photographs of a page."""
    data = (each["src"].removeprefix("data:image/jpeg;base64,") for each in page.all("img"))
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in data]


def test_the_report_of_a_detector_says_what_is_wrong_and_shows_it(tmp_path):
    page, run = write_report(tmp_path, "detection", torch.tensor([FOUND]), objects())
    titles = ["curves", "precision-and-recall", "errors", "sizes", "confusion", "classes", "worst-pictures", "examples"]
    assert page.sections == [*titles, "run-details"]
    assert "Only 2 images were evaluated" in page.said
    assert run.result.metric.threshold == pytest.approx(0.9)
    assert "the threshold with the largest F1, 0.900" in page.said and "--threshold 0.900" in page.said
    alts = [each["alt"] for each in page.all("img")]
    assert alts[0] == "a.png with its annotation: 2 cat, 1 dog"
    assert alts[1] == "a.png with the answer: 1 cat; 2 missed"
    assert len(alts) == 8 and all(alts)


def test_the_boxes_of_a_picture_are_matched_as_they_are_evaluated(tmp_path):
    _, run = write_report(tmp_path, "detection", torch.tensor([FOUND]), objects())
    (sample,) = draw_samples(run.model, run.source, ["a.png"], 0.5)
    assert sample.panes[1].alt == "a.png with the answer: 2 cat, 1 dog; 2 missed, 1 class, 1 background"
    assert sample.classes == {"cat", "dog"}
    # enlarged from 48 pixels with hard edges, so boxes and captions can be read
    times = sample.panes[0].image.width // SIZE[1]
    assert sample.panes[0].image.size == (SIZE[1] * times, SIZE[0] * times) and times > 4
    for box, label in zip(TRUE, ("cat", "dog", "cat")):
        corner = sample.panes[0].image.getpixel((box[2] * times - 2, box[3] * times - 2))
        assert corner == class_colours(CLASSES)[label]


def test_the_sizes_and_the_background_are_rows_of_their_own(tmp_path):
    page, run = write_report(tmp_path, "detection", torch.tensor([FOUND]), objects())
    assert "small below 32 x 32 pixels 6 100 %" in page.said
    assert run.result.metric.confusion.tolist() == [[2, 0, 2], [0, 0, 2], [0, 0, 0]]
    assert "cat background 2 50.0 %" in page.said and "dog background 2 100 %" in page.said


def test_a_detector_that_finds_nothing_has_a_report_without_curves(tmp_path):
    page, _ = write_report(tmp_path, "detection", torch.zeros(1, 4, 6), objects())
    assert "precision-and-recall" not in page.sections and "errors" not in page.sections
    assert any("with the answer: nothing" in each["alt"] for each in page.all("img"))


def test_the_report_of_a_segmenter_marks_the_wrong_pixels(tmp_path):
    true = np.zeros(SIZE, np.uint8)
    true[:, 24:] = 1
    true[:8] = 255
    logits = torch.zeros(1, 2, *SIZE)
    logits[:, 0] = 1.0  # all of it a cat: of the 24 rows with a class half is wrong
    page, _ = write_report(tmp_path, "segmentation", logits, maps(true, true))
    assert page.sections == ["curves", "confusion", "classes", "worst-pictures", "examples", "run-details"]
    assert "50.0 % of the pixels are wrong" in page.said
    assert "dog cat 1,152 100 %" in page.said
    wrong = shown(page)[2].astype(int)
    redness = wrong[..., 0] - wrong[..., 2]
    height, width = redness.shape
    assert redness[height // 2 :, width * 3 // 4 :].min() > 60
    assert max(redness[: height // 5].max(), redness[:, : width * 2 // 5].max()) < 20


def test_wrong_pixels_are_red_on_a_darker_picture():
    image = Image.new("RGB", (4, 4), (200, 200, 200))
    drawn = np.asarray(mark_wrong(image, np.arange(16).reshape(4, 4) < 8)).astype(int)
    assert (drawn[0, :, 0] > drawn[0, :, 2] + 60).all() and (drawn[3] == 90).all()


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_text_from_the_data_is_never_markup(task, tmp_path):
    outputs = torch.tensor([FOUND]) if task == "detection" else torch.randn(1, 2, *SIZE)
    targets = objects() if task == "detection" else maps(*np.zeros((2, *SIZE), np.uint8))
    plain, _ = write_report(tmp_path / "plain", task, outputs, targets)
    page, _ = write_report(tmp_path / "hostile", task, outputs, targets, (PAYLOAD, "dog"))
    assert len(page.scripts) == 1 and page.words.count(PAYLOAD) > 4
    assert len(page.all("img")) == len(plain.all("img"))
    assert not [each for _, each in page.elements if any(key.startswith("on") for key in each)]
    assert all(each["src"].startswith("data:") for each in page.all("img"))


def test_crowds_are_named_as_ignored_and_never_missed(tmp_path):
    crowded = replace(objects(), crowd=np.array([False, False, True] * 2))
    _, run = write_report(tmp_path, "detection", torch.tensor([FOUND]), crowded)
    (sample,) = draw_samples(run.model, run.source, ["a.png"], 0.5)
    assert sample.words == "1 class, 1 background, 1 missed"
