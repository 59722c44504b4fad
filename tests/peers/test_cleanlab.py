"""Suspected labels here and in cleanlab, on the same probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.evaluation.label_errors import suggest_labels

filters = pytest.importorskip("cleanlab.filter")
rank = pytest.importorskip("cleanlab.rank")
pytestmark = pytest.mark.peers


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_cleanlab_suspects_the_same_labels(classes) -> None:
    generator = np.random.default_rng(classes)
    truth = generator.integers(0, classes, 1_000)
    logits = generator.normal(size=(1_000, classes)) + 3 * np.eye(classes)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    given = np.where(generator.random(1_000) < 0.1, generator.integers(0, classes, 1_000), truth)
    expected = filters.find_label_issues(given, probabilities, filter_by="confident_learning", n_jobs=1)
    assert expected.sum() > 20
    assert np.array_equal(suggest_labels(probabilities, given) != given, expected)
    scores = rank.get_label_quality_scores(given, probabilities, method="self_confidence")
    np.testing.assert_allclose(scores, probabilities[np.arange(1_000), given])
