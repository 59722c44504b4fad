"""Temperature scaling, against scipy's minimiser and temperatures that are known."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from vitrail.evaluation.calibration import COLDEST, HOTTEST, fit_temperature
from vitrail.tasks.classification import metric as metrics


def drawn(temperature: float, images: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, 5), and targets that truly follow softmax(logits / temperature)."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(images, 5)) * 3
    p = metrics.probabilities(logits, temperature=temperature)
    return logits, (p.cumsum(1) < generator.random((images, 1))).sum(1).clip(max=4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_the_targets_is_found(temperature):
    logits, targets = drawn(temperature)
    assert fit_temperature(logits, targets) == pytest.approx(temperature, rel=0.03)


def test_it_is_the_minimum_that_scipy_finds():
    logits, targets = drawn(2.0, images=300)

    def nll(temperature: float) -> float:
        return metrics.grade(logits, targets, temperature=temperature).nll.mean()

    expected = scipy.optimize.minimize_scalar(
        nll, bounds=(COLDEST, HOTTEST), method="bounded", options={"xatol": 1e-9}
    ).x
    assert fit_temperature(torch.from_numpy(logits), torch.from_numpy(targets)) == pytest.approx(expected, rel=1e-6)


def test_several_labels_have_a_temperature_too():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(5_000, 4)) * 4
    p = metrics.probabilities(logits, multi_label=True, temperature=2.5)
    targets = (generator.random(p.shape) < p).astype(np.float32)
    assert fit_temperature(logits, targets, multi_label=True) == pytest.approx(2.5, rel=0.05)


def test_calibrating_lowers_the_calibration_error_and_keeps_every_answer():
    logits, targets = drawn(3.0)
    before = metrics.summarize_grades(metrics.grade(logits, targets))
    after = metrics.summarize_grades(metrics.grade(logits, targets, temperature=fit_temperature(logits, targets)))
    assert after["ece"] < 0.02 < 0.1 < before["ece"]
    assert after["nll"] < before["nll"]
    assert after["top1"] == before["top1"]


def test_answers_that_no_finite_temperature_fits_get_the_nearest_bound():
    logits = np.eye(3) * 5
    assert fit_temperature(logits, np.arange(3)) == COLDEST
    assert fit_temperature(logits, np.array([1, 2, 0])) == HOTTEST


def test_logits_that_say_nothing_keep_the_temperature_1():
    assert fit_temperature(np.zeros((4, 3)), np.array([0, 1, 2, 0])) == 1.0
