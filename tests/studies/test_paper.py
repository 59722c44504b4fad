"""Ratios of compute: lines by hand, nested models, and table 6 of the paper, whose ratios were first found by another program."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from vitrail.studies.paper import METRICS, SETS, TABLE_6, fit_compute_ratio, fit_table_6, list_published


def test_two_parallel_lines_have_the_ratio_of_their_distance_in_any_unit():
    x = np.array([1.0, 2.0, 3.0, 1.5, 2.5, 4.0])
    first = np.array([True, True, True, False, False, False])
    heights = 0.5 * x + np.where(first, 0.5, 0.0) - 0.2
    for unit in (1.0, 1e18):
        found = fit_compute_ratio(unit * np.exp(x), heights, first, resamples=100)
        assert found.ratio.value == pytest.approx(np.e)  # half a logit at half a logit for each natural unit of compute
        np.testing.assert_allclose(found.ratio.draws[~np.isnan(found.ratio.draws)], np.e)
        assert found.slopes == (pytest.approx(0.5), pytest.approx(0.5))


def test_the_test_of_equal_slopes_is_the_f_test_of_nested_models():
    rng = np.random.default_rng(0)
    x, first = rng.uniform(0, 3, 14), np.arange(14) < 6
    y = np.where(first, 0.4, 0.6) * x + rng.normal(0, 0.1, 14)
    common = np.stack([first, ~first, x], 1).astype(float)
    separate = np.stack([first, ~first, first * x, ~first * x], 1).astype(float)
    squares = [np.linalg.lstsq(design, y, rcond=None)[1][0] for design in (common, separate)]
    expected = scipy.stats.f.sf((squares[0] - squares[1]) / (squares[1] / 10), 1, 10)
    assert fit_compute_ratio(np.exp(x), y, first, resamples=10).same_slope == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "ratio", "low", "high"),
    [("ImageNet", 2.09, 1.59, 2.77), ("mean of five sets", 4.07, 2.95, 5.95), ("ImageNet ReaL", 1.2, 0.7, 2.1)],
)
def test_vits_need_less_compute_in_the_table_of_the_paper(metric, ratio, low, high):
    found = fit_table_6(metric)
    assert found.ratio.value == pytest.approx(ratio, rel=0.005)
    assert found.ratio.bounds() == (pytest.approx(low, rel=0.04), pytest.approx(high, rel=0.04))


def test_resnets_grow_faster_with_compute_on_imagenet_but_within_the_noise():
    row = list_published()[0]
    assert row["slopes"] == [pytest.approx(0.127, abs=5e-4), pytest.approx(0.155, abs=5e-4)]
    assert 0.05 < row["equal_slopes"] < 0.5


def test_the_table_is_whole():
    assert [sum(model.family == family for model in TABLE_6) for family in ("vit", "resnet", "hybrid")] == [6, 7, 5]
    assert all(len(model.accuracies) == len(SETS) for model in TABLE_6)
    assert {name for sets in METRICS.values() for name in sets} == set(SETS)
