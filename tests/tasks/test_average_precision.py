"""Average precision against pycocotools, and what it does not have: thresholds, errors, resamples."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.slow import few_or_nightly
from tests.tasks.coco_oracle import evaluate, jitter, random_set
from vitrail.tasks.detection.matching import AREAS, CLASS, ERRORS, Detected, Matches, Truth, match
from vitrail.tasks.detection.metric import (
    average_precision,
    average_recall,
    confuse,
    count_errors,
    summarize_detections,
    trace_curve,
)


def match_all(found: list[Detected], true: list[Truth]) -> Matches:
    return Matches.join([match(*image) for image in zip(found, true)])


def assert_equal(matches: Matches, theirs, classes: int) -> None:
    """All twelve figures and every array behind them."""

    def defined(values):
        return np.where(values == -1, np.nan, values)

    figures = summarize_detections(matches, classes)
    np.testing.assert_allclose(list(figures.values()), defined(theirs.stats), rtol=0, atol=1e-12)
    precision = average_precision(matches, classes, areas=len(AREAS))[0]  # (K, A, T)
    expected = defined(theirs.eval["precision"][..., -1]).mean(1).transpose(1, 2, 0)  # from (T, R, K, A)
    np.testing.assert_allclose(precision, expected, rtol=0, atol=1e-12)
    for place, most in enumerate((1, 10, 100)):
        for area in range(len(AREAS)):
            recall = average_recall(matches, classes, area=area, most=most)
            expected = defined(theirs.eval["recall"][..., area, place]).T
            np.testing.assert_allclose(recall, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", few_or_nightly(8, 100))
def test_every_figure_is_that_of_pycocotools_on_hostile_sets(count):
    generator = np.random.default_rng(count)
    seen = dict.fromkeys(("crowds", "ties", "absent", "many", "empty"), 0)
    for _ in range(count):
        found, true, classes = random_set(generator)
        assert_equal(match_all(found, true), evaluate(found, true, classes), classes)
        scores = np.concatenate([each.scores for each in found])
        seen["crowds"] += any(each.crowd.any() for each in true)
        seen["ties"] += len(np.unique(scores)) < len(scores)
        seen["absent"] += len(np.unique(np.concatenate([each.labels for each in true]))) < classes
        seen["many"] += any(np.bincount(each.labels, minlength=1).max() > 100 for each in found)
        seen["empty"] += any(not len(each.labels) for each in true)
    assert min(seen.values()) > 0, seen


def answer(generator: np.random.Generator, truth: Truth, boxes: np.ndarray, classes: int) -> tuple[np.ndarray, ...]:
    """Jittered boxes twice, some under a wrong name: boxes, labels, scores."""
    moved = jitter(generator, boxes.repeat(2, 0), 6)
    labels = np.where(
        generator.random(len(moved)) < 0.2, generator.integers(0, classes, len(moved)), truth.labels.repeat(2)
    )
    return moved, labels, generator.random(len(moved)).round(2)


def test_blood_cells_with_jittered_boxes_are_evaluated_as_pycocotools_does(real_data):
    generator, names = np.random.default_rng(0), ["Platelets", "RBC", "WBC"]
    folder = real_data / "bccd"
    found, true = [], []
    for stem in (folder / "ImageSets" / "Main" / "test.txt").read_text().split():
        objects = list(ElementTree.parse(folder / "Annotations" / f"{stem}.xml").iter("object"))
        sides = [
            [float(each.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")] for each in objects
        ]
        boxes = np.array(sides, np.float32) - [1, 1, 0, 0]
        labels = np.array([names.index(each.findtext("name")) for each in objects])
        true.append(Truth(labels, labels < 0, (boxes[:, 2:] - boxes[:, :2]).prod(1), boxes.astype(np.float32)))
        moved, labels, scores = answer(generator, true[-1], boxes, 3)
        found.append(Detected(labels, scores, moved))
    assert len(true) == 72
    assert_equal(match_all(found, true), evaluate(found, true, 3), 3)


def test_photographs_with_crowds_are_evaluated_as_pycocotools_does(real_data):
    generator = np.random.default_rng(0)
    content = json.loads((real_data / "coco_mini" / "instances.json").read_text())
    numbers = sorted(category["id"] for category in content["categories"])
    classes, found, true = len(numbers), [], []
    for image in content["images"]:
        entries = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        labels = np.array([numbers.index(entry["category_id"]) for entry in entries], int)
        crowd = np.array([entry["iscrowd"] for entry in entries], bool)
        areas = np.array([entry["area"] for entry in entries], float)
        boxes = np.array([entry["bbox"] for entry in entries], np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        true.append(Truth(labels, crowd, areas, boxes))
        moved, labels, scores = answer(generator, true[-1], boxes, classes)
        found.append(Detected(labels, scores, moved))
    assert any(truth.crowd.any() for truth in true)
    assert_equal(match_all(found, true), evaluate(found, true, classes, (640, 640)), classes)


def test_weights_evaluate_the_images_as_often_as_they_were_drawn():
    generator = np.random.default_rng(1)
    undefined = 0
    for _ in range(10):
        found, true, classes = random_set(generator)
        # where scores are equal, the result depends on the order of images and their copies
        found = [replace(each, scores=generator.random(len(each.scores))) for each in found]
        weights = generator.integers(0, 3, (2, len(true)))
        weights[:, 0] = 1
        weighted = average_precision(match_all(found, true), classes, areas=2, weights=weights)
        for row, times in zip(weighted, weights):
            drawn = np.repeat(np.arange(len(true)), times)
            expected = match_all([found[image] for image in drawn], [true[image] for image in drawn])
            np.testing.assert_allclose(row, average_precision(expected, classes, areas=2)[0], rtol=0, atol=1e-12)
            undefined += np.isnan(row).any()
    assert undefined


def boxes(*corners: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(corners, np.float32).reshape(-1, 4)


@pytest.fixture
def errors() -> Matches:
    """Three objects and one of each error, in the order of `ERRORS`; the fourth object is missed, the fifth a crowd."""
    true = Truth(
        np.array([0, 0, 1, 1, 0]),
        np.array([False, False, False, False, True]),
        np.full(5, 100.0),
        boxes((0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10), (60, 0, 70, 10), (0, 40, 50, 90)),
    )
    found = Detected(
        np.array([0, 1, 0, 0, 0, 1, 0]),
        np.array([0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]),
        boxes(
            (0, 0, 10, 10),  # right
            (20, 0, 30, 11),  # the second object under another name
            (6, 0, 16, 10),  # badly placed on the first
            (45, 5, 55, 15),  # badly placed on one of another class
            (0, 0, 10, 9),  # the first once more
            (90, 90, 99, 99),  # nothing is there
            (10, 50, 20, 60),  # within the crowd
        ),
    )
    return match_all([found], [true])


def test_each_kind_of_error_is_told_from_the_others(errors):
    assert errors.errors.tolist() == [-1, CLASS, 1, 2, 3, 4, -1]
    assert count_errors(errors, 0) == {**dict.fromkeys(ERRORS, 1), "missed": 2}  # the third object, too
    assert count_errors(errors, 0.65) == {**dict.fromkeys(ERRORS, 1), "duplicate": 0, "background": 0, "missed": 2}
    assert count_errors(errors, 0.9) == {**dict.fromkeys(ERRORS, 0), "class": 1, "missed": 2}
    # without its error of class, the second object is missed, too; the first remains found
    assert count_errors(errors, 0.94) == {**dict.fromkeys(ERRORS, 0), "missed": 3}
    assert count_errors(errors, 0.99)["missed"] == 4


def test_the_confusion_has_a_row_and_a_column_for_nothing(errors):
    assert confuse(errors, 2, 0).tolist() == [[1, 1, 0], [0, 0, 2], [3, 1, 0]]
    assert confuse(errors, 2, 0.93).tolist() == [[1, 0, 1], [0, 0, 2], [0, 0, 0]]
    assert confuse(errors, 2, 1).tolist() == [[0, 0, 2], [0, 0, 2], [0, 0, 0]]


def test_an_object_with_a_badly_placed_answer_is_not_missed_but_is_answered_with_nothing():
    one = Truth(np.zeros(1, int), np.zeros(1, bool), np.full(1, 100.0), boxes((0, 0, 10, 10)))
    beside = match_all([Detected(np.zeros(1, int), np.ones(1), boxes((6, 0, 16, 10)))], [one])
    assert count_errors(beside, 0.5) == {**dict.fromkeys(ERRORS, 0), "location": 1}
    assert confuse(beside, 1, 0.5).tolist() == [[0, 1], [1, 0]]


def test_the_best_threshold_is_where_f1_is_largest_and_ties_stay_together(errors):
    curve = trace_curve(errors, 0)
    assert curve.scores.tolist() == [0.95, 0.8, 0.7, 0.6]  # what is in a crowd does not count
    assert curve.precision.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert curve.recall.tolist() == [0.5] * 4
    assert curve.f1.tolist() == pytest.approx([2 / 3, 2 / 4, 2 / 5, 2 / 6])
    assert curve.best == 0
    assert trace_curve(errors).f1.tolist() == pytest.approx([2 / 5, 2 / 6, 2 / 7, 2 / 8, 2 / 9, 2 / 10])
    assert trace_curve(errors, 2).best is None
    true = Truth(np.zeros(2, int), np.zeros(2, bool), np.full(2, 100.0), boxes((0, 0, 10, 10), (20, 0, 30, 10)))
    corners = boxes((0, 0, 10, 10), (50, 0, 60, 10), (20, 0, 30, 10))
    tied = trace_curve(match_all([Detected(np.zeros(3, int), np.array([0.5, 0.5, 0.4]), corners)], [true]), 0)
    assert tied.scores.tolist() == [0.5, 0.4]
    assert tied.f1.tolist() == pytest.approx([2 / 4, 4 / 5])
    assert tied.best == 1


def test_images_without_objects_or_answers_are_evaluated():
    nothing = Truth(np.zeros(0, int), np.zeros(0, bool), np.zeros(0), boxes())
    silent = Detected(np.zeros(0, int), np.zeros(0), boxes())
    empty = match_all([silent], [nothing])
    assert all(np.isnan(value) for value in summarize_detections(empty, 2).values())
    assert trace_curve(empty).best is None
    one = Truth(np.zeros(1, int), np.zeros(1, bool), np.full(1, 100.0), boxes((0, 0, 10, 10)))
    missed = match_all([silent, silent], [one, nothing])
    assert summarize_detections(missed, 2)["ap"] == 0
    assert count_errors(missed, 0.5)["missed"] == 1
    spurious = Detected(np.zeros(1, int), np.ones(1), boxes((0, 0, 10, 10)))
    assert count_errors(match_all([spurious], [nothing]), 0.5) == {**dict.fromkeys(ERRORS, 0), "background": 1}
