"""Label maps evaluated at the size of the picture, against scikit-learn, a slow twin and what can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError
from vitrail.tasks.dense.pixels import sample_pixels
from vitrail.tasks.segmentation.metric import IGNORED, MapMetric, count_boundaries, find_classes

CLASSES = ("road", "tree", "car", "pole")


def as_logits(labels: np.ndarray) -> torch.Tensor:
    """Logits (1, K, H, W) of a map."""
    return F.one_hot(torch.from_numpy(labels).long(), len(CLASSES)).permute(2, 0, 1)[None].float()


def evaluate(pairs, classes=CLASSES) -> MapMetric:
    """Of pairs of a predicted and a true map."""
    metric = MapMetric(classes)
    for number, (predicted, true) in enumerate(pairs):
        metric.update(as_logits(np.array(predicted)), [np.array(true, np.uint8)], [f"{number}.png"])
    return metric


def random_pairs(count: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    for _ in range(count):
        size = generator.integers(9, 40, 2)
        true = generator.integers(0, 3, size).repeat(3, 0).repeat(3, 1).astype(np.uint8)  # the fourth class is absent
        predicted = np.where(generator.random(true.shape) < 0.8, true, generator.integers(0, 3, true.shape))
        true[generator.random(true.shape) < 0.1] = IGNORED
        yield predicted, true


def test_the_confusion_is_scikit_learns_and_figures_follow_from_it():
    from sklearn.metrics import confusion_matrix, f1_score, jaccard_score, recall_score

    pairs = list(random_pairs(5))
    metric = evaluate(pairs)
    kept = [(predicted[true != IGNORED], true[true != IGNORED]) for predicted, true in pairs]
    predicted, true = (np.concatenate(each) for each in zip(*kept))
    np.testing.assert_array_equal(metric.confusion, confusion_matrix(true, predicted, labels=range(4)))
    figures = metric.compute()
    expected = {
        "miou": jaccard_score(true, predicted, average="macro"),
        "pixel_accuracy": (true == predicted).mean(),
        "mean_accuracy": recall_score(true, predicted, average="macro"),
        "frequency_weighted_iou": jaccard_score(true, predicted, average="weighted"),
        "dice": f1_score(true, predicted, average="macro"),
    }
    assert list(figures) == [*expected, "boundary_f"]
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert metric.summarize() == {name: figures[name] for name in ("miou", "pixel_accuracy")}


def test_iou_is_the_sum_of_intersections_by_the_sum_of_unions_not_a_mean_over_images():
    metric = evaluate([([[0, 0, 0, 0]], [[0, 0, 0, 1]]), ([[1, 1]], [[1, 0]])])
    figures = metric.compute()
    assert figures["miou"] == pytest.approx((3 / 5 + 1 / 3) / 2)
    assert figures["pixel_accuracy"] == pytest.approx(4 / 6)
    assert figures["mean_accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert figures["frequency_weighted_iou"] == pytest.approx((3 / 5 * 4 + 1 / 3 * 2) / 6)
    assert figures["dice"] == pytest.approx((6 / 8 + 2 / 4) / 2)
    assert metric.worst(5).tolist() == [1, 0]


def test_a_class_that_is_named_but_absent_counts_and_one_that_is_neither_does_not():
    assert evaluate([([[0, 0, 2]], [[0, 0, 0]])]).compute()["miou"] == pytest.approx((2 / 3 + 0) / 2)
    head, rows = evaluate([([[0, 0, 2]], [[0, 0, 0]])]).table()
    assert head[0] == "class" and len(head) == len(rows[0])
    assert [row[1] for row in rows] == ["66.7", "–", "0.0", "–"]
    assert [row[-1] for row in rows] == ["1", "0", "0", "0"]


def test_ignored_pixels_count_nowhere():
    metric = evaluate([([[0, 1, 2, 3]], [[0, IGNORED, IGNORED, 3]])])
    assert metric.counts[0, :3].tolist() == [[1, 0, 0, 1]] * 3
    assert metric.compute()["miou"] == 1
    nothing = evaluate([([[0, 1]], [[IGNORED, IGNORED]])])
    assert all(np.isnan(value) for value in nothing.compute().values())
    assert nothing.worst(1).tolist() == [0]


def count_near(one: np.ndarray, other: np.ndarray, radius: float) -> int:
    """How many points of a mask have one of the other within the radius."""
    points, others = np.argwhere(one), np.argwhere(other)
    return sum(bool(len(others)) and (np.hypot(*(others - point).T) <= radius).any() for point in points)


@pytest.mark.parametrize(("tolerance", "reach"), [(0.0075, 1), (0.07, 0.07 * np.hypot(24, 30))])
def test_boundaries_are_compared_as_a_loop_over_pixels_does(tolerance, reach, monkeypatch):
    monkeypatch.setattr("vitrail.tasks.segmentation.metric.TOLERANCE", tolerance)
    for predicted, true in random_pairs(3, seed=1):
        predicted, true = predicted[:24, :30].copy(), true[:24, :30].copy()
        predicted[true == IGNORED] = IGNORED
        edges = []
        for labels in (predicted, true):
            edge = np.zeros(labels.shape, bool)
            for y, x in np.ndindex(labels.shape):
                around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
                around = [labels[place] for place in around if min(place) >= 0 and place[0] < 24 and place[1] < 30]
                edge[y, x] = any(labels[y, x] != other != IGNORED for other in around) and labels[y, x] != IGNORED
            edges.append(edge)
        found = count_boundaries(predicted.astype(np.uint8), true, 4)
        for label in range(4):
            one, other = (edge & (labels == label) for edge, labels in zip(edges, (predicted, true)))
            near = count_near(one, other, reach), count_near(other, one, reach)
            assert found[:, label].tolist() == [one.sum(), near[0], other.sum(), near[1]]


def test_the_tolerance_of_boundaries_is_a_share_of_the_diagonal():
    true = np.zeros((300, 400), np.uint8)
    true[:, 200:] = 1
    scores = []
    for offset in (0, 3, 4):  # 0.75 % of 500 pixels are 3.75
        scores.append(evaluate([(np.roll(true, offset, 1) * (np.arange(400) > 50), true)]).compute()["boundary_f"])
    assert scores == [1, 1, 0]


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(2, 4, 9, 12, generator=torch.Generator().manual_seed(0))


def test_logits_become_maps_of_the_pictures_own_sizes(logits, monkeypatch):
    frames = Frames(np.array([[0, 0, 31, 17], [0, 0, 7, 5.0]]), np.array([[17, 31], [5, 7.0]]))
    for part in (10**6, 4 * 31 * 2):  # whole, and in pieces of two rows
        monkeypatch.setattr("vitrail.tasks.dense.pixels.CELLS", part)
        for found, row, size in zip(sample_pixels(logits, frames, find_classes), logits, frames.pictures.astype(int)):
            resized = F.interpolate(row[None], tuple(size), mode="bilinear", align_corners=False)[0]
            assert found.dtype == torch.uint8
            assert torch.equal(found, resized.argmax(0))


def test_padding_is_cut_off_and_what_lies_outside_of_a_crop_takes_the_border(logits):
    padded = Frames(np.array([[0, 0, 24, 18.0]]), np.array([[12, 24.0]]))
    (found,) = sample_pixels(logits[:1], padded, find_classes)
    resized = F.interpolate(logits[:1], (18, 24), mode="bilinear", align_corners=False)[0]
    assert torch.equal(found, resized[:, :12].argmax(0))
    cut = Frames(np.array([[10, 5, 22, 14.0]]), np.array([[20, 30.0]]))
    (found,) = sample_pixels(logits[:1], cut, find_classes)
    assert torch.equal(found[5:14, 10:22], logits[0].argmax(0))
    assert torch.equal(found[5:14, :10], logits[0].argmax(0)[:, :1].expand(9, 10))


def test_only_visible_pixels_are_evaluated(logits):
    preprocessing = Preprocessing.paper((9, 12))
    frames = Frames.seen(preprocessing, [(18, 24), (18, 24)])
    metric = MapMetric(CLASSES)
    true = [F.interpolate(row[None], (18, 24), mode="bilinear")[0].argmax(0).numpy().astype(np.uint8) for row in logits]
    metric.update(logits, true, ["a", "b"], frames)
    assert metric.compute()["miou"] == 1


def test_parts_are_merged_as_if_they_had_come_in_one():
    pairs = list(random_pairs(4))
    one, other, whole = evaluate(pairs[:1]), evaluate(pairs[1:]), evaluate(pairs)
    one.merge(other)
    assert one.compute() == whole.compute()
    np.testing.assert_array_equal(one.counts, whole.counts)
    np.testing.assert_array_equal(one.confusion, whole.confusion)
    assert len(one.keys) == 4


def test_resamples_evaluate_the_images_that_were_drawn():
    pairs = list(random_pairs(4))
    weights = np.array([[1, 1, 1, 1], [0, 3, 1, 0]])
    found = evaluate(pairs).resample(weights)
    for row, times in enumerate(weights):
        drawn = evaluate([pairs[image] for image in np.repeat(np.arange(4), times)]).compute()
        assert {name: values[row] for name, values in found.items()} == pytest.approx(drawn)


def test_a_mask_of_another_size_or_with_an_unknown_class_is_refused_by_its_key():
    with pytest.raises(DataError, match=r"the mask of 0\.png has the class 4, the model has 4 classes"):
        evaluate([([[0, 1]], [[0, 4]])])
    metric = MapMetric(CLASSES)
    frames = Frames.whole(1, (2, 4))
    with pytest.raises(DataError, match=r"the mask of a\.png has 4x2 pixels, the picture 2x4"):
        metric.update(torch.zeros(1, 4, 2, 4), [np.zeros((4, 2), np.uint8)], ["a.png"], frames)
    assert metric.keys == []
