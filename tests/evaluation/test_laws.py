"""Laws recover what they were drawn from, in any unit; ratios of compute against lines and frontiers by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from tests.slow import few_or_nightly
from vitrail.evaluation.laws import (
    FARTHEST,
    LogitLine,
    PowerLaw,
    compare_compute,
    compare_frontiers,
    fit_curve,
    fit_logit_line,
    fit_power_law,
)

LEVELS = np.geomspace(500, 50_000, 8)


def draw_law(rng):
    limit, scale, exponent = rng.uniform(0.05, 0.25), rng.uniform(0.15, 0.4), rng.uniform(0.3, 0.9)
    return PowerLaw(limit=limit, scale=scale, exponent=exponent, middle=5000.0)


@pytest.mark.parametrize("studies", few_or_nightly(12, 500))
def test_a_power_law_is_recovered_from_noisy_errors(studies):
    rng = np.random.default_rng(0)
    recovered = 0
    for _ in range(studies):
        truth = draw_law(rng)
        found = fit_power_law(LEVELS, truth.error(LEVELS) * np.exp(rng.normal(0, 0.01, len(LEVELS))))
        close = abs(found.exponent - truth.exponent) < 0.05 and abs(found.limit - truth.limit) < 0.03
        recovered += close and np.abs(np.log(found.error(LEVELS) / truth.error(LEVELS))).max() < 0.03
    assert recovered >= 0.95 * studies


def test_a_power_law_without_noise_is_exact():
    truth = PowerLaw(limit=0.1, scale=0.3, exponent=0.5, middle=5000.0)
    found = fit_power_law(LEVELS, truth.error(LEVELS))
    assert (found.limit, found.exponent) == (pytest.approx(0.1, rel=1e-4), pytest.approx(0.5, rel=1e-4))


def test_one_outlier_hardly_moves_a_power_law():
    truth = PowerLaw(limit=0.1, scale=0.3, exponent=0.5, middle=5000.0)
    errors = truth.error(LEVELS)
    errors[3] *= 1.3
    found = fit_power_law(LEVELS, errors)
    assert np.abs(np.log(np.delete(found.error(LEVELS) / truth.error(LEVELS), 3))).max() < 0.04


@pytest.mark.parametrize("unit", [1e-3, 7.0, 1e18])
def test_laws_do_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(1)
    truth = PowerLaw(limit=0.1, scale=0.2, exponent=0.4, middle=5000.0)
    errors = truth.error(LEVELS) * np.exp(rng.normal(0, 0.01, len(LEVELS)))
    for fit in (fit_power_law, fit_logit_line):
        np.testing.assert_allclose(
            fit(unit * LEVELS, errors).error(unit * LEVELS), fit(LEVELS, errors).error(LEVELS), rtol=1e-5
        )
    heights = np.array([0.0, 1.0, 2.0, 0.2, 0.9])
    first = np.array([True, True, True, False, False])
    flops = np.array([1.0, 3.0, 8.0, 2.0, 5.0])
    one, other = (compare_compute(scale * flops, heights, first, resamples=50) for scale in (1, unit))
    assert one.ratio.value == pytest.approx(other.ratio.value) and one.frontiers == pytest.approx(other.frontiers)
    np.testing.assert_allclose(one.ratio.draws, other.ratio.draws, rtol=1e-6)


def test_a_line_in_logit_is_that_of_numpy():
    line = LogitLine(height=0.5, slope=0.8, middle=5000.0)
    found = fit_logit_line(LEVELS, line.error(LEVELS))
    assert (found.height, found.slope) == (pytest.approx(0.5), pytest.approx(0.8))
    assert 1 - found.error(50_000) == pytest.approx(1 / (1 + np.exp(-(0.5 + 0.8))))


def draws_around(accuracy, *, sd=0.002, resamples=40):
    return accuracy + np.random.default_rng(0).normal(0, sd, (resamples, len(accuracy)))


def test_five_clear_levels_have_a_power_law_with_a_band_that_ends_at_twice_the_largest():
    truth = PowerLaw(limit=0.2, scale=0.2, exponent=0.5, middle=5000.0)
    accuracy = 1 - truth.error(LEVELS)
    curve = fit_curve(LEVELS, accuracy, draws_around(accuracy), classes=10)
    assert isinstance(curve.law, PowerLaw) and curve.why == ""
    x = np.array([5000.0, FARTHEST * 50_000, FARTHEST * 50_001])
    middle, low, high = curve.band(x)
    assert (low[:2] < middle[:2]).all() and (middle[:2] < high[:2]).all() and high[0] - low[0] < 0.01
    assert np.isnan([middle[2], low[2], high[2]]).all()


def test_few_levels_have_a_straight_line_and_say_why():
    accuracy = np.array([0.3, 0.5, 0.7])
    curve = fit_curve(np.array([500, 4000, 45_000]), accuracy, draws_around(accuracy), classes=10)
    assert isinstance(curve.law, LogitLine) and "3 levels are too few" in curve.why


def test_a_limit_that_cannot_be_told_has_a_straight_line_and_says_why():
    accuracy = 1 - PowerLaw(limit=0.0, scale=0.3, exponent=0.3, middle=5000.0).error(LEVELS)
    curve = fit_curve(LEVELS, accuracy, draws_around(accuracy), classes=10)
    assert isinstance(curve.law, LogitLine) and "at its bound" in curve.why


def test_levels_near_chance_are_left_out_of_laws():
    accuracy = np.array([0.1, 0.11, 0.12, 0.13, 0.3])
    assert fit_curve(np.arange(1, 6), accuracy, draws_around(accuracy), classes=10) is None


def test_two_parallel_lines_have_the_ratio_of_their_distance():
    x = np.array([1.0, 2.0, 3.0, 1.5, 2.5, 4.0])
    first = np.array([True, True, True, False, False, False])
    heights = 0.5 * x + np.where(first, 0.5, 0.0) - 0.2
    found = compare_compute(np.exp(x), heights, first, resamples=100)
    assert found.ratio.value == pytest.approx(np.e)  # half a logit at half a logit for each natural unit of compute
    np.testing.assert_allclose(found.ratio.draws[~np.isnan(found.ratio.draws)], np.e)
    assert (found.slope, *found.slopes) == tuple(pytest.approx(0.5) for _ in range(3))
    assert found.frontiers == pytest.approx(np.e, rel=0.05)


def test_the_test_of_equal_slopes_is_the_f_test_of_nested_models():
    rng = np.random.default_rng(0)
    x, first = rng.uniform(0, 3, 14), np.arange(14) < 6
    y = np.where(first, 0.4, 0.6) * x + rng.normal(0, 0.1, 14)
    common = np.stack([first, ~first, x], 1).astype(float)
    separate = np.stack([first, ~first, first * x, ~first * x], 1).astype(float)
    squares = [np.linalg.lstsq(design, y, rcond=None)[1][0] for design in (common, separate)]
    expected = scipy.stats.f.sf((squares[0] - squares[1]) / (squares[1] / 10), 1, 10)
    assert compare_compute(np.exp(x), y, first, resamples=10).same_slope == pytest.approx(expected)


def test_draws_of_the_accuracies_carry_over_to_the_ratio():
    x, first = np.array([1.0, 2.0, 1.0, 2.0]), np.array([True, True, False, False])
    heights = np.array([1.0, 2.0, 0.5, 1.5])
    draws = heights + np.array([[0.0, 0, 0, 0], [0.5, 0.5, 0, 0]])  # the first family half a logit higher in one draw
    found = compare_compute(np.exp(x), heights, first, draws=draws)
    np.testing.assert_allclose(found.ratio.draws, np.exp([0.5, 1.0]))


def test_frontiers_ignore_what_a_cheaper_model_beats_and_need_a_common_range():
    first = np.array([True, True, True, False, False])
    flops = np.array([1.0, 4.0, 2.0, 2.0, 8.0])
    heights = np.array([0.0, 2.0, -1.0, 0.0, 2.0])
    assert compare_frontiers(flops, heights, first) == pytest.approx(2.0)
    assert np.isnan(compare_frontiers(flops, heights + np.where(first, 5, 0), first))
