"""The figures, against scikit-learn and against numbers worked out by hand."""

from __future__ import annotations

import importlib
import math
from types import ModuleType

import numpy as np
import pytest
import torch

from vitrail.tasks.classification import metric as metrics
from vitrail.tasks.metric import confusion

CLASSES = tuple("abcdefg")


@pytest.fixture(scope="module")
def sklearn_metrics() -> ModuleType:
    return importlib.import_module("sklearn.metrics")


@pytest.fixture(scope="module")
def answers() -> tuple[np.ndarray, np.ndarray]:
    """(500, 7) logits that know something, and their targets; class "g" is never there."""
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 6, 500)
    logits = generator.normal(size=(500, 7)) * 2 + 2 * np.eye(7)[targets]
    return logits.astype(np.float32), targets


@pytest.fixture(scope="module")
def labels() -> tuple[np.ndarray, np.ndarray]:
    """(400, 7) logits and 0-or-1 targets, with many equal scores; label "g" is never there."""
    generator = np.random.default_rng(1)
    targets = (generator.random((400, 7)) < 0.3).astype(np.float32)
    targets[:, 6] = 0
    logits = generator.normal(size=(400, 7)) + 2 * targets - 1
    return logits.round(1).astype(np.float32), targets


def test_the_summary_is_what_scikit_learn_says(answers, sklearn_metrics):
    logits, targets = answers
    found = metrics.summarize_grades(metrics.grade(logits, targets, temperature=1.5))
    p = torch.from_numpy(logits).double().div(1.5).softmax(1).numpy()
    labels = range(7)
    assert found["top1"] == sklearn_metrics.accuracy_score(targets, p.argmax(1))
    assert found["top5"] == pytest.approx(sklearn_metrics.top_k_accuracy_score(targets, p, k=5, labels=labels))
    assert found["nll"] == pytest.approx(sklearn_metrics.log_loss(targets, p, labels=labels), abs=1e-12)
    assert found["brier"] == pytest.approx(np.square(p - np.eye(7)[targets]).sum(1).mean(), abs=1e-12)
    assert next(iter(found)) == "top1"


def test_the_multi_label_summary_is_what_scikit_learn_says(labels, sklearn_metrics):
    logits, targets = labels
    found = metrics.summarize_labels(logits, targets, 2)
    there, named = targets[:, :6], (logits >= 0).astype(int)
    assert found["map"] == pytest.approx(sklearn_metrics.average_precision_score(there, logits[:, :6]), abs=1e-12)
    assert found["f1_micro"] == pytest.approx(sklearn_metrics.f1_score(targets, named, average="micro"), abs=1e-12)
    assert found["f1_macro"] == pytest.approx(
        sklearn_metrics.f1_score(targets, named, average="macro", zero_division=np.nan)
    )
    binary = torch.nn.functional.binary_cross_entropy_with_logits
    expected = binary(torch.from_numpy(logits).double() / 2, torch.from_numpy(targets).double())
    assert found["nll"] == pytest.approx(float(expected), abs=1e-12)
    assert next(iter(found)) == "map"


def test_the_figures_do_not_depend_on_how_many_rows_are_graded_at_a_time(answers, monkeypatch):
    whole = metrics.summarize_grades(metrics.grade(*answers))
    monkeypatch.setattr(metrics, "ROWS", 7)
    assert metrics.summarize_grades(metrics.grade(*answers)) == whole


def test_tensors_of_any_precision_give_the_figures_of_arrays(answers):
    logits, targets = answers
    halves = torch.from_numpy(logits).bfloat16().requires_grad_()
    found = metrics.summarize_grades(metrics.grade(halves, torch.from_numpy(targets)))
    assert found == metrics.summarize_grades(metrics.grade(halves.detach().float().numpy(), targets))


def test_equal_logits_rank_by_class_so_a_constant_answer_is_right_for_one_class():
    targets = np.arange(6)
    graded = metrics.grade(np.zeros((6, 6)), targets)
    assert graded.rank.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_row_of_nan_is_never_right():
    assert (metrics.grade(np.full((3, 4), np.nan), np.array([0, 1, 3])).rank >= 3).all()


def test_logits_of_any_size_give_finite_figures():
    found = metrics.summarize_grades(metrics.grade(np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32), np.array([0, 0])))
    assert found["nll"] == pytest.approx(1e4)
    several = metrics.summarize_labels(np.array([[1e4, -1e4]]), np.array([[0.0, 1.0]]))
    assert several["nll"] == pytest.approx(1e4)


def test_calibration_error_by_hand():
    # bins of 1/15: 0.5 and 0.52 share the eighth (7/15, 8/15], 0.95 and 1 the last (14/15, 1]
    confidence, right = np.array([0.5, 0.52, 0.95, 1.0]), np.array([True, False, True, True])
    assert metrics.reliability(confidence, right).error == pytest.approx(0.5 * 0.01 + 0.5 * 0.025)
    bins = metrics.reliability(confidence, right)
    assert np.flatnonzero(bins.counts).tolist() == [7, 14]
    assert bins.accuracy[[7, 14]].tolist() == [0.5, 1.0]
    assert bins.confidence[7] == pytest.approx(0.51)
    assert np.isnan(bins.accuracy[0])


def test_the_edge_of_a_bin_belongs_to_the_bin_below():
    assert metrics.reliability(np.array([0.0, 0.5, 1.0]), np.ones(3, bool), bins=2).counts.tolist() == [2, 1]


def test_probabilities_are_those_of_torch(answers):
    logits = torch.from_numpy(answers[0]).double()
    one = metrics.probabilities(logits, temperature=2)
    many = metrics.probabilities(logits, temperature=2, multi_label=True)
    np.testing.assert_allclose(one, (logits / 2).softmax(1), rtol=1e-12)
    np.testing.assert_allclose(many, (logits / 2).sigmoid(), rtol=1e-12)


def test_confusion_and_per_class_figures_are_those_of_scikit_learn(answers, sklearn_metrics):
    logits, targets = answers
    predicted = logits.argmax(1)
    counts = confusion(predicted, targets, 7)
    assert (counts == sklearn_metrics.confusion_matrix(targets, predicted, labels=range(7))).all()
    each = metrics.per_class(predicted, targets, 7)
    expected = sklearn_metrics.precision_recall_fscore_support(
        targets, predicted, labels=range(7), zero_division=np.nan
    )
    for found, column in zip((each.precision, each.recall, each.f1, each.support), expected):
        np.testing.assert_allclose(found, column, rtol=1e-12)


def test_a_class_that_is_neither_there_nor_named_has_no_f1():
    each = metrics.per_class(predicted=np.array([0, 0, 0, 1]), targets=np.array([0, 0, 1, 1]), classes=3)
    np.testing.assert_array_equal(each.f1, [0.8, 2 / 3, math.nan])
    np.testing.assert_array_equal(each.precision, [2 / 3, 1, math.nan])


def test_per_label_figures_are_those_of_scikit_learn(labels, sklearn_metrics):
    logits, targets = labels
    each = metrics.per_label(logits, targets)
    expected = sklearn_metrics.precision_recall_fscore_support(targets, logits >= 0, zero_division=np.nan)
    for found, column in zip((each.precision, each.recall, each.f1, each.support), expected):
        np.testing.assert_allclose(found, column, rtol=1e-12)


def test_average_precision_by_hand():
    # ranked: right, wrong, right -> (1 + 2/3) / 2; all scores equal -> the part that is right; no label -> undefined
    scores = np.array([[0.9, 0.5, 0.1], [0.8, 0.5, 0.2], [0.7, 0.5, 0.3]])
    targets = np.array([[1, 1, 0], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(metrics.average_precision(scores, targets), [5 / 6, 2 / 3, np.nan])
