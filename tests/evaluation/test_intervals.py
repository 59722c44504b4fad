"""Intervals, against exact coverage, the normal approximation and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from tests.slow import few_or_nightly
from vitrail.evaluation.intervals import (
    bootstrap,
    bound_proportion,
    estimate_interval,
    paired_difference,
    resample_means,
    two_way_interval,
)


@pytest.mark.parametrize("count", [10, 100, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_the_interval_of_a_proportion_contains_it_as_often_as_it_says(share, count):
    outcome = scipy.stats.binom(count, share)
    likely = range(int(outcome.ppf(1e-9)), int(outcome.ppf(1 - 1e-9)) + 1)
    held = sum(
        outcome.pmf(hits) for hits in likely for low, high in [bound_proportion(hits, count)] if low <= share <= high
    )
    # with few expected hits, or few misses, the possible results are too coarse for less than 99 %
    assert 0.95 <= held <= (0.99 if count * min(share, 1 - share) >= 5 else 1 + 1e-9)


def test_the_interval_of_a_proportion_is_that_of_scipy():
    for hits, count in [(0, 10), (3, 10), (126, 126), (267, 269), (5000, 10_000)]:
        expected = scipy.stats.binomtest(hits, count).proportion_ci(0.95, method="exact")
        np.testing.assert_allclose(bound_proportion(hits, count), tuple(expected), rtol=1e-9)


def test_all_images_right_is_not_never_wrong():
    low, high = estimate_interval(np.ones(126))
    assert (round(low, 3), high) == (0.971, 1.0)
    assert paired_difference(np.ones(126), np.ones(126))[1:] == (pytest.approx(low - 1), pytest.approx(1 - low))


def test_the_interval_of_an_accuracy_is_that_of_the_binomial():
    right = np.repeat([1.0, 0.0], [800, 200])
    low, high = bootstrap(right)
    exact = scipy.stats.binom(1000, 0.8).ppf([0.025, 0.975]) / 1000
    np.testing.assert_allclose((low, high), exact, atol=0.002)


def test_the_interval_of_a_loss_is_that_of_scipy():
    loss = np.random.default_rng(0).exponential(size=400)
    found = bootstrap(loss, seed=1)
    expected = scipy.stats.bootstrap(
        (loss,), np.mean, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    np.testing.assert_allclose(found, tuple(expected), atol=0.006)


def test_a_wider_level_gives_a_wider_interval():
    values = np.random.default_rng(0).normal(size=100)
    (low, high), (lower, higher) = bootstrap(values, level=0.8), bootstrap(values, level=0.99)
    assert lower < low < high < higher


def test_the_interval_is_a_function_of_values_and_seed_whatever_their_order():
    values = np.random.default_rng(0).normal(size=50)
    assert bootstrap(values, seed=3) == bootstrap(values[::-1], seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_resampling_in_parts_is_resampling_at_once(monkeypatch):
    values = np.random.default_rng(0).normal(size=50)
    whole = resample_means(values, seed=0, resamples=100)
    monkeypatch.setattr("vitrail.evaluation.intervals.CELLS", 350)
    np.testing.assert_allclose(resample_means(values, seed=0, resamples=100), whole, rtol=1e-12)
    assert whole.shape == (100,)


def test_paired_differences_separate_models_whose_own_intervals_overlap():
    generator = np.random.default_rng(0)
    second = generator.random(400) < 0.80
    first = second | (generator.random(400) < 0.10)  # right wherever the second is, and sometimes beyond
    difference, low, high = paired_difference(first, second)
    assert difference == pytest.approx(first.mean() - second.mean())
    assert 0 < low < difference < high
    assert bootstrap(first)[0] < bootstrap(second)[1]


def test_no_values_have_no_interval():
    assert np.isnan(bootstrap(np.array([]))).all()
    assert np.isnan(paired_difference(np.array([]), np.array([]))).all()


def two_way(seed: int, draws: int, images: int) -> np.ndarray:
    """Values (S, N) with mean 0.7 that vary from draw to draw, from image to image, and by themselves."""
    generator = np.random.default_rng(seed)
    of_draws, of_images = generator.normal(size=(draws, 1)) * 0.05, generator.normal(size=(1, images)) * 0.4
    return 0.7 + of_draws + of_images + generator.normal(size=(draws, images)) * 0.1


@pytest.mark.parametrize("studies", few_or_nightly(100, 600))
def test_the_interval_over_draws_and_images_holds_the_true_mean_about_as_often_as_it_says(studies):
    held = np.mean(
        [low <= 0.7 <= high for low, high in (two_way_interval(two_way(seed, 5, 60)) for seed in range(studies))]
    )
    low, high = scipy.stats.binom(studies, 0.95).ppf([0.001, 0.999])  # 552 to 585 of 600
    assert low <= held * studies <= high


def test_draws_that_agree_leave_the_interval_of_the_images():
    images = np.random.default_rng(0).normal(size=400)
    np.testing.assert_allclose(two_way_interval(np.tile(images, (5, 1))), bootstrap(images), atol=0.01)


def test_one_draw_and_draws_without_any_difference_have_the_interval_of_the_images():
    right = np.random.default_rng(0).random(50) < 0.8
    assert two_way_interval(right[None]) == estimate_interval(right) == bound_proportion(right.sum(), 50)
    assert two_way_interval(np.ones((3, 50))) == bound_proportion(50, 50)
    assert np.isnan(two_way_interval(np.zeros((2, 0)))).all()
