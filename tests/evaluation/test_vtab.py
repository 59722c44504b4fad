"""The table of VTAB-1k: its tasks, and the figures of the ViT paper against those that the paper gives elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest

from vitrail.evaluation.vtab import PUBLISHED, TASKS


def test_there_are_seven_natural_four_specialized_and_eight_structured_tasks() -> None:
    assert Counter(task.group for task in TASKS.values()) == {"natural": 7, "specialized": 4, "structured": 8}


def test_the_tasks_without_flips_and_crops_are_those_of_bit() -> None:
    assert {task.name for task in TASKS.values() if not task.flips} == {"dsprites-ori", "dsprites-loc", "snorb-azim"}
    still = {"clevr-count", "clevr-dist", "dmlab", "kitti-dist", "dsprites-loc"}
    assert {task.name for task in TASKS.values() if not task.crops} == still


@pytest.mark.parametrize(
    ("model", "mean", "std"),
    [("ViT-H/14, JFT", 77.63, 0.23), ("ViT-L/16, JFT", 76.28, 0.46), ("ViT-L/16, ImageNet-21k", 72.72, 0.21)],
)
def test_the_means_of_table_9_are_those_of_table_2(model: str, mean: float, std: float) -> None:
    assert PUBLISHED[model].mean(list(TASKS)) == pytest.approx(mean, abs=0.0106)  # table 9 is rounded to 0.1
    assert PUBLISHED[model].std == std


def test_the_mean_of_a_group_is_that_computed_by_hand() -> None:
    specialized = [task.name for task in TASKS.values() if task.group == "specialized"]
    assert PUBLISHED["ViT-H/14, JFT"].mean(specialized) == pytest.approx((83.3 + 96.7 + 91.4 + 76.6) / 4)
