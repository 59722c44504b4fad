"""What an evaluation keeps of every image gives the figures of all logits at once, in any batches and in merged parts."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.tasks.classification import metric as metrics
from vitrail.tasks.classification.metric import ClassMetric, LabelMetric

CLASSES = ("ant", "bee", "cat", "dog", "emu", "fox", "gnu")
IMAGES = 60


def answers(kind: type) -> tuple[np.ndarray, np.ndarray, list[str]]:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (IMAGES, len(CLASSES))).astype(np.float32)
    several = (generator.random((IMAGES, len(CLASSES))) < 0.3).astype(np.float32)
    targets = generator.integers(0, len(CLASSES), IMAGES) if kind is ClassMetric else several
    return logits, targets, [f"{number}.jpg" for number in range(IMAGES)]


def gathered(kind: type, pieces: list[slice], **options) -> ClassMetric | LabelMetric:
    logits, targets, keys = answers(kind)
    metric = kind(CLASSES, **options)
    for piece in pieces:
        metric.update(logits[piece], targets[piece], keys[piece])
    return metric


@pytest.mark.parametrize(("kind", "size"), [(ClassMetric, 1), (LabelMetric, 7), (ClassMetric, IMAGES)])
def test_the_figures_are_those_of_all_logits_whatever_the_batches(kind, size):
    logits, targets, keys = answers(kind)
    metric = gathered(kind, [slice(first, first + size) for first in range(0, IMAGES, size)], temperature=1.5)
    if kind is LabelMetric:
        whole = metrics.summarize_labels(logits, targets, 1.5)
    else:
        whole = metrics.summarize_grades(metrics.grade(logits, targets, temperature=1.5))
    assert metric.compute().items() >= whole.items()
    assert metric.summarize().items() <= whole.items()
    assert metric.keys == keys


def test_means_over_classes_are_those_of_scikit_learn_and_leave_out_classes_that_do_not_occur():
    from sklearn.metrics import balanced_accuracy_score, f1_score

    metric = gathered(ClassMetric, [slice(0, 25)])
    true, named = metric.targets, metric.predicted
    figures = metric.compute()
    assert figures["mean_recall"] == pytest.approx(balanced_accuracy_score(true, named), abs=1e-12)
    assert figures["f1_macro"] == pytest.approx(f1_score(true, named, average="macro"), abs=1e-12)
    few = ClassMetric(CLASSES)  # one class is never there but named, four neither
    few.update(np.eye(7)[[0, 0, 1, 2]], np.array([0, 0, 1, 1]), list("abcd"))
    found = few.compute()
    assert (found["mean_recall"], found["f1_macro"]) == pytest.approx((3 / 4, (1 + 2 / 3 + 0) / 3))


@pytest.mark.parametrize("kind", [ClassMetric, LabelMetric])
def test_merged_parts_are_the_whole(kind):
    whole, first, second = (gathered(kind, [piece]) for piece in (slice(None), slice(23), slice(23, None)))
    first.merge(second)
    assert first.compute() == whole.compute()
    assert first.keys == whole.keys
    assert first.worst(9).tolist() == whole.worst(9).tolist()
    assert first.table() == whole.table()


def test_the_worst_mistakes_are_the_most_confident_ones():
    logits, targets, _ = answers(ClassMetric)
    probabilities = metrics.probabilities(logits)
    wrong = [row for row in range(IMAGES) if logits[row].argmax() != targets[row]]
    by_hand = sorted(wrong, key=lambda row: (-probabilities[row].max(), probabilities[row, targets[row]]))
    metric = gathered(ClassMetric, [slice(None)])
    assert metric.worst(12).tolist() == by_hand[:12]
    true, predicted, confidence = metric.describe(by_hand[0])
    assert (true, predicted) == (CLASSES[targets[by_hand[0]]], CLASSES[logits[by_hand[0]].argmax()])
    assert confidence == probabilities[by_hand[0]].max()


def test_memory_per_image_does_not_grow_with_the_classes():
    few, many = (ClassMetric(range(count)) for count in (2, 1000))
    for metric in (few, many):
        metric.update(np.zeros((8, len(metric.classes)), np.float32), np.zeros(8, np.int64), list("abcdefgh"))
    assert few.grades.nll.nbytes == many.grades.nll.nbytes
    assert not hasattr(many, "logits")
