"""Contrasts between cells, by hand, in simulated studies and against the crossed interval."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from tests.slow import few_or_nightly
from vitrail.evaluation.intervals import two_way_interval
from vitrail.studies.statistics import (
    Student,
    VariancePart,
    contrast,
    expect_difference,
    pool_variance,
)

FIRST = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
SECOND = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])


def difference(plus, minus, **options):
    return contrast([plus, minus], [1, -1], [pool_variance([plus, minus])] * 2, **options)


def simulate(rng, *, seeds, cells=8, images=1000, gap=0.0, easy=0.8):
    """Cells (S, N) whose images differ in difficulty, in ways that are partly a cell's own; the last differs by ``gap``."""
    base = rng.normal(np.log(easy / (1 - easy)), 1.5, images)
    own = rng.normal(0, 0.5, (cells, images))
    chances = 1 / (1 + np.exp(-(base + own)))  # (C, N)
    chances[-1] = np.clip(chances[-1] + gap, 0, 1)
    shift = rng.normal(0, 0.004, (cells, seeds, 1))
    return (rng.random((cells, seeds, images)) < chances[:, None] + shift).astype(float)


def covers(seed, *, seeds, studies, scale="points", **settings):
    """The share of studies whose interval of last - first contains the truth, and the widths against the crossed interval's."""
    rng = np.random.default_rng(seed)
    hits, widths, crossed = 0, [], []
    for _ in range(studies):
        cells = simulate(rng, seeds=seeds, **settings)
        found = contrast([cells[-1], cells[0]], [1, -1], [pool_variance(cells)] * 2, scale)
        low, high = found.bounds()
        hits += low <= 0 <= high  # the cells' mean chances are equal in expectation
        widths.append(high - low)
        if scale == "points":
            low, high = two_way_interval(cells[-1] - cells[0])
            crossed.append(high - low)
    return hits / studies, np.mean(widths) / np.mean(crossed) if crossed else np.nan


def test_a_small_contrast_by_hand():
    found = difference(SECOND, FIRST)
    # accuracies of the seeds: 3/4, 1 and 1/2, 1/4: variances 1/32 each, so pooled 1/32 with 2 degrees of freedom
    assert found.value == pytest.approx(7 / 8 - 3 / 8)
    assert found.seeds == (VariancePart(pytest.approx((1 + 1) * (1 / 32) / 2), 2),)
    # means over seeds: (1, 1, 1, 1/2) - (1, 1/2, 0, 0): differences 0, 1/2, 1, 1/2 with variance 1/6;
    # variances between seeds: (0, 0, 0, 1/2) and (0, 1/2, 0, 0), means 1/8, and 2 seeds: noise 1/16 + 1/16
    assert found.images == VariancePart(pytest.approx((1 / 6 - 1 / 8) / 4), 3)
    error = (1 / 32 + 1 / 96) ** 0.5
    freedom = (1 / 32 + 1 / 96) ** 2 / ((1 / 32) ** 2 / 2 + (1 / 96) ** 2 / 3)
    assert (found.error, found.freedom) == (pytest.approx(error), pytest.approx(freedom))
    half = scipy.stats.t.ppf(0.975, freedom) * error
    np.testing.assert_allclose(found.bounds(), (0.5 - half, 0.5 + half))


def test_a_contrast_of_logits_by_the_delta_method():
    found = difference(SECOND, FIRST, scale="logit")
    assert found.value == pytest.approx(np.log(7) - np.log(3 / 5))
    slopes = np.array([64 / 7, 64 / 15])
    assert found.seeds[0].variance == pytest.approx((slopes**2).sum() / 32 / 2)


def test_accuracies_of_0_and_1_have_finite_logits():
    found = difference(np.ones((2, 50)), np.zeros((2, 50)), scale="logit")
    assert np.isfinite(found.value) and found.error > 0


def test_identical_predictions_are_known_to_an_image_only():
    low, high = difference(np.ones((3, 100)), np.ones((3, 100))).bounds()
    assert low < 0 < high and 0.01 < high < 0.03


@pytest.mark.parametrize("studies", few_or_nightly(100, 1000))
@pytest.mark.parametrize(
    ("seeds", "scale", "easy"),
    [
        (2, "points", 0.5),
        (2, "logit", 0.9),
        (3, "points", 0.9),
        (3, "logit", 0.5),
        (5, "points", 0.5),
        (5, "logit", 0.9),
    ],
)
def test_intervals_contain_the_truth_in_95_percent_of_studies_and_are_narrower_than_crossed_ones(
    seeds, scale, easy, studies
):
    share, narrower = covers(10 + seeds, seeds=seeds, studies=studies, scale=scale, easy=easy)
    low, high = scipy.stats.binom(studies, 0.95).ppf([0.002, 0.998])  # 929 to 969 of 1000
    assert low <= share * studies <= high
    assert scale == "logit" or narrower < 0.8


def test_a_cell_with_one_seed_has_the_spread_of_the_others():
    rng = np.random.default_rng(0)
    cells = [(rng.random((seeds, 400)) < 0.7).astype(float) for seeds in (3, 1)]
    pooled = pool_variance(cells)
    assert pooled.freedom == 2
    assert difference(*cells).seeds[0].variance == pytest.approx(pooled.variance * (1 / 3 + 1))


def test_one_seed_per_arm_decides_nothing():
    assert np.isnan(difference(FIRST[:1], SECOND[:1]).bounds()).all()


def test_four_fifths_of_studies_see_the_detectable_difference():
    rng = np.random.default_rng(1)
    planned = expect_difference(seeds=3, images=10_000, groups=8)
    effect = planned.detectable()
    freedom = 16
    errors = np.sqrt(planned.seeds[0].variance * rng.chisquare(freedom, 20_000) / freedom + planned.images.variance)
    found = rng.normal(effect, planned.error, 20_000)
    assert (found > scipy.stats.t.ppf(0.975, planned.freedom) * errors).mean() == pytest.approx(0.8, abs=0.02)


def test_the_detectable_differences_are_those_of_the_design():
    planned = {seeds: expect_difference(seeds=seeds, images=10_000, groups=8).detectable() for seeds in (3, 5, 8)}
    assert {seeds: round(100 * value, 1) for seeds, value in planned.items()} == {3: 1.5, 5: 1.1, 8: 0.9}


def test_more_seeds_narrow_the_part_of_the_seeds_alone():
    found = Student(value=0.01, seeds=(VariancePart(4e-5, 8),), images=VariancePart(1e-6, 999))
    more = found.with_seeds(2, 4)
    assert more.seeds == (VariancePart(2e-5, 24),) and more.images == found.images and more.value == found.value


def test_equal_variances_of_two_pools_are_two_estimates() -> None:
    groups = [np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])]
    shared, other = pool_variance(groups), pool_variance(groups)
    assert shared == other and shared is not other
    assert len(contrast(groups, [1, -1], [shared, shared]).seeds) == 1
    assert len(contrast(groups, [1, -1], [shared, other]).seeds) == 2
