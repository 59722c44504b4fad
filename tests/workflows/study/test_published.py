"""The paper's own table, fitted again: ratios of compute that were first found by another program."""

from __future__ import annotations

import pytest

from vitrail.evaluation.verdicts import Ratio, judge
from vitrail.workflows.study.published import METRICS, SETS, TABLE_6, compare_published


@pytest.mark.parametrize(
    ("metric", "ratio", "low", "high", "kind"),
    [
        ("imagenet", 2.09, 1.59, 2.77, "held"),
        ("mean of five", 4.07, 2.95, 5.95, "held"),
        ("real", 1.2, 0.7, 2.1, "cannot tell"),
    ],
)
def test_vits_need_less_compute_in_the_table_of_the_paper(metric, ratio, low, high, kind):
    found = compare_published(metric)
    assert found.ratio.value == pytest.approx(ratio, rel=0.005)
    assert found.ratio.bounds() == (pytest.approx(low, rel=0.04), pytest.approx(high, rel=0.04))
    verdict = judge(Ratio(low=2, high=4), [found.ratio], unit="ratio")
    assert verdict.kind == kind


def test_resnets_grow_faster_with_compute_on_imagenet_but_within_the_noise():
    found = compare_published("imagenet")
    assert found.slopes == (pytest.approx(0.127, abs=5e-4), pytest.approx(0.155, abs=5e-4))
    assert 0.05 < found.same_slope < 0.5


def test_the_table_is_whole():
    assert [sum(model.family == family for model in TABLE_6) for family in ("vit", "resnet", "hybrid")] == [6, 7, 5]
    assert all(len(model.accuracies) == len(SETS) for model in TABLE_6)
    assert {name for sets in METRICS.values() for name in sets} == set(SETS)
