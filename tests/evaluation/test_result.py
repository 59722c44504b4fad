"""Intervals of figures that are no means over images, and of the difference of two models."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import ConfigError
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.evaluation.intervals import bound_percentiles, draw_weights, estimate_interval, paired_difference
from vitrail.tasks import Metric


class Ratio(Metric):
    """The sum of one value an image by the sum of another."""

    resamples = 2000

    def __init__(self, tops, bottoms, keys=None):
        self.tops, self.bottoms = np.asarray(tops, float), np.asarray(bottoms, float)
        self.keys = keys or [str(row) for row in range(len(tops))]

    def update(self, outputs, targets, keys, frames=None): ...

    def merge(self, other): ...

    def compute(self):
        return {"ratio": self.tops.sum() / self.bottoms.sum(), "images_seen": len(self.keys)}

    def resample(self, weights):
        return {"ratio": weights @ self.tops / (weights @ self.bottoms)}


class Mean(Ratio):
    """The same where all bottoms are 1: a mean over images."""

    def samples(self):
        return self.tops


def result(metric: Metric, seed: int = 0) -> EvaluationResult:
    return EvaluationResult("test", (), metric, seed)


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).gamma(2, size=200)


def test_a_ratio_has_the_interval_of_its_resamples(values):
    figures = result(Ratio(values, np.ones(200))).figures
    assert list(figures) == ["ratio", "images_seen", "ratio_low", "ratio_high", "images"]
    assert (figures["ratio_low"], figures["ratio_high"]) == pytest.approx(estimate_interval(values), rel=0.02)
    half = 1.96 * values.std() / 200**0.5
    assert figures["ratio_high"] - figures["ratio"] == pytest.approx(half, rel=0.1)


@pytest.mark.slow
def test_a_mean_over_images_keeps_its_own_interval(values):
    figures = result(Mean(values, np.ones(200))).figures
    assert (figures["ratio_low"], figures["ratio_high"]) == estimate_interval(values)


def test_two_models_are_resampled_together(values):
    """Their values differ by little and vary by much, so only paired samples show the difference."""
    better = values + np.random.default_rng(1).normal(0.1, 0.05, 200)
    one, other = result(Ratio(better, np.ones(200))), result(Ratio(values, np.ones(200)), seed=5)
    found = one.difference(other)
    assert list(found) == ["ratio", "ratio_low", "ratio_high"]
    assert 0.08 < found["ratio_low"] < found["ratio"] < found["ratio_high"] < 0.12
    mean, low, high = paired_difference(better, values)
    assert list(found.values()) == pytest.approx([mean, low, high], abs=2e-3)
    of_means = result(Mean(better, np.ones(200))).difference(result(Mean(values, np.ones(200))))
    assert list(of_means.values()) == [mean, low, high]


def test_models_evaluated_on_other_images_are_not_compared(values):
    with pytest.raises(ConfigError, match="not evaluated on the same images"):
        result(Ratio(values, values)).difference(result(Ratio(values[1:], values[1:])))


def test_weights_are_samples_with_replacement_in_parts_that_fit(monkeypatch):
    whole = np.concatenate(list(draw_weights(7, seed=1, resamples=50)))
    monkeypatch.setattr("vitrail.evaluation.intervals.CELLS", 40)
    parts = list(draw_weights(7, seed=1, resamples=50))
    assert len(parts) == 10
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (whole.sum(1) == 7).all()
    assert whole.var() == pytest.approx(6 / 7, rel=0.2)


def test_undefined_resamples_are_left_out():
    assert bound_percentiles(np.array([np.nan, 1, 1, np.nan])) == (1, 1)
    assert np.isnan(bound_percentiles(np.array([np.nan]))).all()
