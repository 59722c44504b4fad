"""Detections evaluated in pixels of the pictures, whatever the input showed of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tasks.coco_oracle import evaluate, random_set
from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.tasks.detection.matching import Detected, Truth
from vitrail.tasks.detection.metric import BoxMetric, place_boxes

SIZE = (60, 80)
CLASSES = ("ant", "bee", "cat", "dog", "emu")


def as_batch(found: list[Detected], true: list[Truth], *, areas: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (B, D, 6) and targets (B, M, 7), filled up as the task fills them."""
    most, objects = (max(len(each.labels) for each in side) + 2 for side in (found, true))
    outputs, targets = np.zeros((len(found), most, 6)), np.full((len(true), objects, 7), -1.0)
    for row, (detected, truth) in enumerate(zip(found, true)):
        columns = [detected.boxes, detected.scores[:, None], detected.labels[:, None]]
        outputs[row, : len(detected.labels)] = np.concatenate(columns, 1)
        columns = [truth.labels[:, None], truth.crowd[:, None], truth.boxes, truth.areas[:, None]]
        targets[row, : len(truth.labels)] = np.concatenate(columns, 1)
    return torch.from_numpy(outputs), torch.from_numpy(targets[..., : 7 if areas else 6])


def as_answered(detected: Detected) -> Detected:
    """Within the picture and in float32, as the outputs of a model become answers."""
    boxes = detected.boxes.clip(0, np.array(SIZE[::-1] * 2, np.float32))
    return Detected(detected.labels, detected.scores.astype(np.float32), boxes)


@pytest.fixture
def batches():
    """Three random sets: (found, true)."""
    generator = np.random.default_rng(3)
    sets = [random_set(generator) for _ in range(3)]
    return [(list(map(as_answered, found)), true) for found, true, _ in sets]


def metric_of(batches) -> BoxMetric:
    metric = BoxMetric(CLASSES, SIZE)
    for found, true in batches:
        metric.update(*as_batch(found, true), [f"{len(metric.keys) + row}.png" for row in range(len(found))])
    return metric


def test_batches_are_evaluated_as_pycocotools_evaluates_all_images(batches):
    metric = metric_of(batches)
    found, true = ([image for batch in batches for image in batch[side]] for side in (0, 1))
    stats = evaluate(found, true, len(CLASSES)).stats
    figures = metric.compute()
    assert list(figures.values())[:12] == pytest.approx(np.where(stats == -1, np.nan, stats), abs=1e-12, nan_ok=True)
    assert metric.summarize() == {name: figures[name] for name in ("ap", "ap50")}
    assert len(metric.keys) == metric.matches.images == len(found)


def test_parts_are_merged_as_if_they_had_come_in_one(batches):
    one, other = metric_of(batches[:1]), metric_of(batches[1:])
    one.merge(other)
    assert one.compute() == pytest.approx(metric_of(batches).compute(), nan_ok=True)
    np.testing.assert_array_equal(one.matches.owners, metric_of(batches).matches.owners)


def test_without_areas_an_object_is_as_large_as_its_box(batches):
    found, true = batches[0]
    metric = BoxMetric(CLASSES, SIZE)
    metric.update(*as_batch(found, true, areas=False), [""] * len(found))
    boxes = [each.boxes.astype(float) for each in true]
    sized = [Truth(each.labels, each.crowd, np.prod(box[:, 2:] - box[:, :2], 1), box) for each, box in zip(true, boxes)]
    assert metric.compute() == pytest.approx(metric_of([(found, sized)]).compute(), nan_ok=True)


def test_boxes_of_the_input_are_evaluated_in_the_picture():
    """A picture twice as high as wide, of which the input shows the middle, or all of it and a border."""
    size = (100, 100)
    for preprocessing in (Preprocessing.paper(size), Preprocessing.timm(100)):
        frames = Frames.seen(preprocessing, [(400, 200)])
        true = np.array([[20.0, 150, 60, 250]])
        left, top, right, bottom = frames.crops[0]
        scale = np.array([100 / (right - left), 100 / (bottom - top)] * 2)
        seen = (true - [left, top, left, top]) * scale
        metric = BoxMetric(CLASSES, size)
        outputs = torch.tensor(np.concatenate([seen, [[0.9, 2]]], 1))[None]
        metric.update(outputs, torch.tensor([[[2.0, 0, *true[0]]]]), ["a"], frames)
        assert metric.compute()["ap"] == pytest.approx(1)
    outside = place_boxes(np.array([[[-5.0, 10, 120, 130]]]), Frames.whole(1, (50, 200)), size)
    assert outside.tolist() == [[[0, 5, 200, 50]]]


def test_outputs_become_detections_by_the_task(batches):
    found, true = batches[0]
    outputs, targets = as_batch(found, true)
    metric = BoxMetric(CLASSES, SIZE, detect=lambda outputs: outputs.flip(-1))
    metric.update(outputs.flip(-1), targets, [""] * len(found))
    assert metric.compute() == pytest.approx(metric_of(batches[:1]).compute(), nan_ok=True)


def test_resamples_evaluate_the_images_that_were_drawn(batches, monkeypatch):
    generator = np.random.default_rng(0)
    found = [Detected(each.labels, generator.random(len(each.labels)), each.boxes) for each in batches[0][0]]
    true = batches[0][1]
    weights = np.random.default_rng(0).multinomial(len(found), np.full(len(found), 1 / len(found)), size=5)
    metric = metric_of([(found, true)])
    resampled = metric.resample(weights)
    for row, times in enumerate(weights):
        drawn = np.repeat(np.arange(len(found)), times)
        expected = metric_of([([found[image] for image in drawn], [true[image] for image in drawn])]).summarize()
        assert {name: values[row] for name, values in resampled.items()} == pytest.approx(expected, nan_ok=True)
    monkeypatch.setattr("vitrail.tasks.detection.metric.CELLS", 10)  # in parts
    for name, values in metric.resample(weights).items():
        np.testing.assert_array_equal(values, resampled[name])


@pytest.fixture
def street() -> BoxMetric:
    """Two images: the first is right, in the second an object is missed and another is found where nothing is."""
    metric = BoxMetric(("car", "bike", "bus"), (100, 100))
    targets = torch.tensor([[[0.0, 0, 10, 10, 30, 30], [-1.0] * 6], [[0, 0, 50, 50, 90, 90], [1, 0, 5, 5, 20, 20]]])
    outputs = torch.zeros(2, 3, 6)
    outputs[0, 0] = torch.tensor([10, 10, 30, 30, 0.9, 0])
    outputs[1, 0] = torch.tensor([5, 5, 20, 20, 0.8, 1])
    outputs[1, 1] = torch.tensor([60, 5, 90, 20, 0.7, 0])
    metric.update(outputs, targets, ["first", "second"])
    return metric


def test_the_threshold_table_and_worst_images_say_where_it_fails(street):
    figures = street.compute()
    assert street.threshold == figures["threshold"] == pytest.approx(0.8)
    assert (figures["precision"], figures["recall"], figures["f1"]) == pytest.approx((1, 2 / 3, 0.8))
    assert street.errors["missed"] == 1 and sum(street.errors.values()) == 1
    assert street.confusion.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert street.worst(5).tolist() == [1]
    head, rows = street.table()
    assert [dict(zip(head, row))["objects"] for row in rows] == ["2", "1", "0"]
    assert dict(zip(head, rows[1])) == {
        **{"class": "bike", "AP %": "100.0", "AP50 %": "100.0", "AR %": "100.0", "best threshold": "0.800"},
        **{"precision %": "100.0", "recall %": "100.0", "objects": "1"},
    }
    assert rows[2][1:] == (*["–"] * 6, "0")


def test_a_model_that_answers_nothing_has_figures():
    metric = BoxMetric(("car",), (100, 100))
    metric.update(torch.zeros(1, 3, 6), torch.tensor([[[0.0, 0, 10, 10, 30, 30]]]), ["a"])
    assert metric.compute()["ap"] == 0
    assert np.isnan(metric.threshold)
    assert metric.worst(3).tolist() == [0]
    assert metric.resample(np.ones((4, 1), int))["ap"].tolist() == [0] * 4
