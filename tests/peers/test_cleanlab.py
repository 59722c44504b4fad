"""Suspected labels here and in cleanlab, on the same probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.evaluation.label_errors import rank_suspects

filters = pytest.importorskip("cleanlab.filter")
pytestmark = pytest.mark.peers


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_cleanlab_suspects_the_same_labels_in_the_same_order(classes) -> None:
    generator = np.random.default_rng(classes)
    truth = generator.integers(0, classes, 1_000)
    logits = generator.normal(size=(1_000, classes)) + 3 * np.eye(classes)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    given = np.where(generator.random(1_000) < 0.1, generator.integers(0, classes, 1_000), truth)
    how = {"filter_by": "low_self_confidence", "return_indices_ranked_by": "self_confidence"}
    expected = filters.find_label_issues(given, probabilities, n_jobs=1, **how)
    assert len(expected) > 20
    assert rank_suspects(probabilities, given).tolist() == expected.tolist()
