"""The report: one safe page for any run, its numbers those of scikit-learn and of a pencil."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.each_row import each_row
from tests.reports.reading import PAYLOAD, Page, read_report
from vitrail.errors import DiskError
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.reports.classification import Mistake, describe, plot_curves, warn
from vitrail.reports.data_uris import data_uri
from vitrail.reports.facts import EvaluatedRun, RunFacts
from vitrail.reports.supervised import confused_pairs, explain_precision, write_supervised
from vitrail.tasks.classification.metric import ClassMetric, LabelMetric, reliability

RECORDS = [
    *(
        {"step": step, "loss": 2.0 / step, "lr": 1e-3, "images_per_second": 90.0, "data_wait": 0.25}
        for step in (1, 2, 3)
    ),
    {"step": 3, "val_loss": 0.5, "val_top1": 0.75},
]


def evaluated(
    probabilities: np.ndarray, targets: np.ndarray, classes: Sequence[str] = "abcdef"
) -> ClassMetric | LabelMetric:
    """What evaluating would have kept of these answers."""
    probabilities = probabilities.clip(1e-9, 1 - 1e-9)
    several = targets.ndim == 2
    metric = (LabelMetric if several else ClassMetric)(classes[: probabilities.shape[1]])
    logits = np.log(probabilities / (1 - probabilities)) if several else np.log(probabilities)
    metric.update(logits, targets, [f"{row}.jpg" for row in range(len(targets))])
    return metric


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def answers(count: int = 60, classes: Sequence[str] = ("ant", "bee", "cat")) -> ClassMetric | LabelMetric:
    """``count`` random answers."""
    draw = np.random.default_rng(0)
    targets = draw.integers(0, len(classes), count)
    logits = draw.normal(size=(count, len(classes)))
    logits[np.arange(count), targets] += 1.5
    return evaluated(softmax(logits), targets, classes)


def mistakes() -> tuple[Mistake, Mistake]:
    """One with and one without a map of attention."""
    draw = np.random.default_rng(0)
    picture = draw.integers(0, 256, (90, 80, 3), dtype=np.uint8)
    mistake = Mistake(key="a/1.jpg", true="ant", predicted="bee", confidence=0.9, picture=picture)
    return mistake, replace(mistake, attention=draw.random((3, 4)), picture=picture[:8, :8, :1])


FIGURES = {"top1": 0.7, "top1_low": 0.6, "top1_high": 0.8, "ece": 0.1}


def run(
    metric: ClassMetric | LabelMetric | None = None,
    figures: Mapping[str, float] = FIGURES,
    split: str = "val",
    **more: object,
) -> EvaluatedRun:
    """A run with everything in it, and the ``figures`` in place of its own."""
    metric = metric or answers()
    facts = {
        "title": "bees", "command": "vitrail train bees", "config": {"optim": {"lr": 0.001}}, "records": RECORDS,
        "images": {"train": 9, "val": len(metric.keys)}, "notes": ["one image was bad"],
    }  # fmt: skip
    splits: Any = {"train": SimpleNamespace(counts=lambda: [3] * len(metric.classes))}
    result = EvaluationResult(split, metric.classes, metric, further=figures)
    return EvaluatedRun(facts={**facts, **more}, model=splits, splits=splits, source=splits, result=result)


def write(folder: Path, given: EvaluatedRun, shown: Sequence[Mistake] = mistakes()) -> Path:
    facts, metric = RunFacts(**given.facts), given.result.metric
    assert isinstance(metric, ClassMetric | LabelMetric)
    return write_supervised(folder, facts, given.result.figures, **describe(given, metric, facts.records, shown))


def written(*given: Any) -> Page:
    return read_report(write(*given))


def test_a_full_report_has_every_section_and_every_drawing(tmp_path):
    page = written(tmp_path, run())
    assert page.sections == ["curves", "confusion", "classes", "mistakes", "calibration", "run-details"]
    assert [each["href"] for each in page.all("a")] == [f"#{name}" for name in page.sections]
    drawn = {path.stem for path in (tmp_path / "plots").iterdir()}
    assert drawn == {"loss", "accuracy", "learning-rate", "speed", "confusion", "reliability"}


def test_few_images_and_probabilities_that_are_far_off_are_warned_of_above_all_else(tmp_path):
    assert warn(run(answers(100)).result) == []
    few, far = warn(run(figures={"top1": 1.0, "top1_low": 0.9, "top1_high": 1.0, "ece": 0.58}).result)
    assert few.startswith("Only 60 images were evaluated")
    assert "error is 58" in far and "--calibrate" in far
    page = written(tmp_path, run())
    assert page.said.index("Only 60 images") < page.said.index("Training curves")


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several labels"])
def test_text_from_the_data_is_never_markup(tmp_path, several):
    names = (PAYLOAD, "bee", PAYLOAD + "2")
    plain, hostile = answers(), answers(classes=names)
    if several:
        targets = np.eye(3)[plain.targets]
        plain, hostile = (evaluated(np.full((60, 3), 0.3), targets, each.classes) for each in (plain, hostile))
    facts: dict[str, Any] = {
        "title": PAYLOAD, "command": PAYLOAD, "config": {PAYLOAD: PAYLOAD}, "notes": [PAYLOAD], "machine": PAYLOAD,
        "data": PAYLOAD, "layout": PAYLOAD, "recipe": PAYLOAD, "model": PAYLOAD, "versions": {PAYLOAD: PAYLOAD},
        "images": {PAYLOAD: 1}, "date": PAYLOAD,
    }  # fmt: skip
    wrong, lit = mistakes()
    shown = replace(wrong, key=PAYLOAD, true=PAYLOAD, predicted=PAYLOAD), lit
    before = written(tmp_path / "plain", run(plain))
    after = written(tmp_path / "hostile", run(hostile, split=PAYLOAD, **facts), shown)
    assert len(after.scripts) == 1
    assert len(after.all("img")) == len(before.all("img"))
    assert not [each for _, each in after.elements if any(key.startswith("on") for key in each)]
    assert after.words.count(PAYLOAD) > 12
    for drawing in (tmp_path / "hostile/plots").iterdir():
        assert b"<script" not in drawing.read_bytes()


def test_names_that_no_file_can_hold_are_written_with_a_mark(tmp_path):
    page = written(tmp_path, run(answers(classes=("\udcff\x00", "bee", "été"))))
    assert "\ufffd\ufffd" in page.words
    assert "été" in page.words


def test_the_headline_says_the_figure_its_interval_and_the_count_of_mistakes(tmp_path):
    targets = np.array([0] * 30 + [1] * 10)
    predicted = np.where(np.arange(40) < 4, 1 - targets, targets)
    page = written(tmp_path, run(evaluated(np.eye(2)[predicted] * 0.8 + 0.1, targets)))
    words = " ".join(page.words.replace("\u202f", "").split())
    assert "70.0% top-1 accuracy" in words
    assert (
        "Of 40 validation images in 2 classes, the model classifies 36 correctly and 4 incorrectly (1 in 10)." in words
    )
    assert "confidence interval for images of the same distribution: 60.0% to 80.0%." in words
    assert "most frequent class: 75.0%" in words


def test_figures_of_the_training_images_come_with_a_warning(tmp_path):
    assert "trained on these images; expect lower accuracy" in written(tmp_path, run(split="train")).words


def test_an_accuracy_that_is_undefined_is_a_dash(tmp_path):
    labels = evaluated(np.full((60, 3), 0.3), np.zeros((60, 3)))
    words = written(tmp_path, run(labels, {})).words
    assert "– mean average precision" in " ".join(words.split())


def test_a_run_without_records_and_without_mistakes_leaves_those_sections_out(tmp_path):
    targets = answers().targets
    page = written(tmp_path, run(evaluated(np.eye(3)[targets], targets), records=()), ())
    assert page.sections == ["confusion", "classes", "calibration", "run-details"]
    assert "and none incorrectly" in page.said
    assert "No image was misclassified" in page.words


@pytest.mark.parametrize("count", [1, 2, 32, 33, 1000])
def test_any_number_of_classes_has_a_row_each_and_a_matrix_while_it_can_be_read(tmp_path, count):
    page = written(tmp_path, run(answers(3 * count, [f"class {index}" for index in range(count)])))
    rows = [each for each in page.all("th") if each.get("scope") == "row"]
    assert len(rows) == count
    assert (tmp_path / "plots/confusion.svg").exists() == (2 <= count <= 32)
    assert ("confusion" in page.sections) == (count > 1)
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


@pytest.mark.parametrize("known", ["split", "model", "no"])
def test_classes_with_the_fewest_training_images_come_first_and_where_these_are_unknown_those_evaluated(
    tmp_path, known
):
    targets = np.array([0, 1, 1, 1, 2, 2])
    given = run(evaluated(np.eye(3)[targets], targets))
    splits: Any = {"train": SimpleNamespace(counts=lambda: [500, 20, 1000])} if known == "split" else {}
    model: Any = SimpleNamespace(provenance={"class_images": [500, 20, 1000]} if known == "model" else {})
    page = written(tmp_path, replace(given, splits=splits, model=model))
    rows = [each["data-value"] for each in page.all("th") if each.get("scope") == "row"]
    assert rows == (list("acb") if known == "no" else list("bac"))
    assert ("training images" in page.words) == (known != "no")
    assert ("1,000" in page.words) == (known != "no")


def test_classes_of_as_many_images_come_weakest_first_and_what_is_undefined_last(tmp_path):
    targets, predicted = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([0, 0, 1, 1, 0, 0, 0])
    page = written(tmp_path, run(evaluated(np.eye(4)[predicted], targets)))
    rows = [each["data-value"] for each in page.all("th") if each.get("scope") == "row"]
    assert rows == ["c", "a", "b", "d"]  # F1: 0, 4/7, 4/5, undefined
    assert [each["data-value"] for each in page.all("td") if "data-value" in each][-5:-2] == ["", "", ""]


def test_several_labels_an_image_are_told_by_average_precision(tmp_path):
    draw = np.random.default_rng(1)
    targets = (draw.random((50, 3)) < 0.4).astype(np.float32)
    given = evaluated(draw.random((50, 3)), targets)
    page = written(tmp_path, run(given, {"map": 0.5, "map_low": 0.4, "map_high": 0.6}))
    assert "confusion" not in page.sections
    assert "mean average precision" in page.words
    assert " AP " in page.words
    assert "; predicted: " in page.words


def test_loss_that_is_not_finite_is_a_gap_and_is_said(tmp_path):
    losses = [3.0, 2.0, float("nan"), float("inf"), 1.0, 0.5, None]
    records = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
    page = written(tmp_path, run(records=records))
    assert "not finite in 3 records" in page.words
    curve = re.search(r'<path d="([^"]*)"', (tmp_path / "plots/loss.svg").read_text())
    assert curve is not None
    assert (curve[1].count("M"), curve[1].count("L")) == (2, 2)


def test_a_perfect_accuracy_is_drawn_on_a_scale_that_ends_at_100_percent(tmp_path):
    written(tmp_path, run(records=[{"step": 5, "val_top1": 1.0}]))
    ticks = re.findall(r">([\d.]+) %</text>", (tmp_path / "plots/accuracy.svg").read_text())
    assert [float(tick) for tick in ticks] == [0, 25, 50, 75, 100]


def test_evaluations_of_training_images_are_drawn_beside_those_of_validation():
    record = {"step": 3, "val_top1": 0.75, "train_top1": 0.95}
    drawn = plot_curves([*RECORDS[:3], record])
    assert "on training images" in drawn["accuracy"]
    assert "on training images" not in plot_curves(RECORDS)["accuracy"]


def test_drawings_of_their_own_know_no_variables(tmp_path):
    written(tmp_path, run())
    assert all("var(" not in drawing.read_text() for drawing in (tmp_path / "plots").iterdir())


def test_calibration_error_is_the_one_worked_out_by_hand():
    bins = reliability(np.array([0.6, 0.8, 0.9, 1.0]), np.array([True, False, True, True]), bins=2)
    assert bins.counts.tolist() == [0, 4]
    assert bins.error == pytest.approx(abs(0.825 - 0.75))
    bins = reliability(np.array([0.5, 0.25, 0.75]), np.array([True, False, False]), bins=2)
    assert bins.counts.tolist() == [2, 1]  # a bin is closed above
    assert bins.error == pytest.approx((2 * abs(0.375 - 0.5) + 0.75) / 3)
    assert bins.lean == pytest.approx((2 * (0.375 - 0.5) + 0.75) / 3)


def test_confused_pairs_come_most_frequent_first_without_the_diagonal():
    counts = np.array([[9, 1, 0], [4, 9, 2], [0, 0, 9]])
    assert confused_pairs(counts) == [(1, 0, 4), (1, 2, 2), (0, 1, 1)]
    assert confused_pairs(counts, most=1) == [(1, 0, 4)]


def test_the_worst_mistakes_are_the_most_confident_ones():
    probabilities = np.array([[0.6, 0.4, 0], [0.1, 0.9, 0], [0.2, 0.7, 0.1], [0.2, 0.1, 0.7], [0.9, 0.1, 0]])
    targets = np.array([1, 0, 0, 1, 0])
    assert evaluated(probabilities, targets).worst(12).tolist() == [1, 3, 2, 0]
    assert evaluated(probabilities, targets).worst(2).tolist() == [1, 3]
    assert evaluated(probabilities[4:], targets[4:]).worst(12).tolist() == []


def test_the_worst_mistakes_of_several_labels_are_by_the_label_furthest_off():
    probabilities = np.array([[0.6, 0.1], [0.9, 0.1], [0.4, 0.95]])
    targets = np.array([[0, 0], [1, 0], [1, 0]])
    assert evaluated(probabilities, targets).worst(12).tolist() == [2, 0]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_small_picture_is_embedded_without_loss(channels):
    picture = np.random.default_rng(5).integers(0, 256, (8, 9, channels), dtype=np.uint8)
    kind, content = data_uri(picture).split(",")
    assert kind == "data:image/png;base64"
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert (shown == (np.repeat(picture, 3, 2) if channels == 1 else picture[..., :3])).all()


def test_a_large_picture_is_embedded_small():
    kind, content = data_uri(np.zeros((600, 900, 3), np.uint8)).split(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (288, 192)


def test_a_folder_that_cannot_be_written_is_a_disk_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="cannot be written"):
        written(tmp_path / "file", run())


@each_row("right, said", [(60, True), (90, False)])
def test_a_model_that_only_knows_the_commonest_class_is_named(right, said):
    """Of 100 images 55 are of one class; 60 right answers may be as many of those that are always answered so."""
    metric = ClassMetric(["ant", "bee"])
    targets = np.arange(100) >= 55
    predicted = np.where(np.arange(100) < right, targets, ~targets)
    metric.update(
        np.eye(2, dtype=np.float32)[predicted.astype(int)], targets.astype(np.int64), [str(row) for row in range(100)]
    )
    result = EvaluationResult(split="val", classes=metric.classes, metric=metric)
    sentence = metric.explain_failure(result.figures)
    assert ("better than the answer 'ant' to everything, which is right for 55.0 %" in sentence) == said
    assert bool(sentence) == said


@each_row("precision, said", [("bf16", True), ("fp32", False), (None, False)])
def test_a_report_says_in_what_precision_its_curves_were_computed(precision, said):
    (found,) = [*explain_precision(RunFacts(title="run", config={"compute": {"precision": precision}})), ""][:1]
    assert ("computed in bf16 during the training" in found) == said
