"""Table 6 of the paper, whose ratios of compute were first found by another program."""

from __future__ import annotations

import pytest

from vitrail.studies.paper import METRICS, RESNETS, VITS, fit_table_6

EXPECTED = {"ImageNet": (2.09, 1.59, 2.77), "mean of five sets": (4.07, 2.95, 5.95), "ImageNet ReaL": (1.2, 0.7, 2.1)}


def test_vits_need_less_compute_in_the_table_of_the_paper():
    assert (VITS.shape, RESNETS.shape, list(METRICS)) == ((6, 7), (7, 7), list(EXPECTED))
    for metric, (ratio, low, high) in EXPECTED.items():
        found = fit_table_6(metric)
        assert found[0] == pytest.approx(ratio, rel=0.005)
        assert found[1:] == (pytest.approx(low, rel=0.04), pytest.approx(high, rel=0.04))
