"""The policy: what it refuses, its plain form, and where its crops lie."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest
import scipy

from vitrail.data.augment.crops import crop_box, crop_boxes
from vitrail.data.augment.policy import POLICIES, Augment
from vitrail.errors import ConfigError

SAMPLES = np.arange(4000)


def test_the_recipes_of_two_views_have_the_papers_values():
    moco, simclr, small = (POLICIES[name] for name in ("moco", "simclr", "simclr32"))
    assert {each.crop_area for each in (moco, simclr, small)} == {(0.08, 1.0)}
    assert {(each.jitter_probability, each.grey) for each in (moco, simclr, small)} == {(0.8, 0.2)}
    assert (*moco.jitter, moco.hue) == (0.4, 0.4, 0.2, 0.1)
    assert (moco.blur_views, moco.blur, moco.solarise_views) == ((1.0, 0.1), (0.1, 2.0), (0.0, 0.2))
    assert (*simclr.jitter, simclr.hue) == (0.8, 0.8, 0.8, 0.2)
    assert (simclr.blur_views, simclr.solarise_views) == ((0.5, 0.5), (0, 0))
    assert (*small.jitter, small.hue) == (0.4, 0.4, 0.4, 0.1)
    assert small.blur_views == small.solarise_views == (0, 0)
    assert POLICIES["mae"] == Augment(crop_area=(0.2, 1.0), flip=0.5)
    assert POLICIES["dino"] == replace(moco, crop_area=(0.3, 1.0), local_crop_area=(0.05, 0.3), local_blur=0.5)


REFUSED = [
    {"crop": "random"},
    {"crop_rule": "log"},
    {"pad_mode": "wrap"},
    {"erase_fill": "pixel"},
    {"mix_each": "pair"},
    {"flip": 1.5},
    {"erase": -0.1},
    {"switch": float("nan")},
    {"crop_area": (0.5, 0.2)},
    {"crop_area": (0.5, 1.2)},
    {"crop_aspect": (0.0, 1.0)},
    {"blur": (2.0, 0.1)},
    {"magnitude": -1.0},
    {"mixup": float("inf")},
    {"jitter": (0.1, 1.2, 0.0)},
    {"hue": 0.6},
    {"jitter_probability": -0.5},
    {"grey": 1.1},
    {"blur_views": (0.5, 1.5)},
    {"local_blur": 1.5},
    {"local_crop_area": (0.3, 1.2)},
    {"solarise_views": (0.1,)},
    {"pad": 0.6},
    {"fill": 256},
    {"smoothing": 1.0},
    {"layers": -1},
    {"operations": ()},
    {"operations": ("rotat",)},
]


def test_invalid_options_are_refused_by_name():
    for wrong in REFUSED:
        with pytest.raises(ConfigError, match=next(iter(wrong))) as error:
            Augment(**wrong)
        assert error.value.remedy, wrong


def test_every_field_is_described():
    for name, hint in get_type_hints(Augment, include_extras=True).items():
        assert getattr(hint, "__metadata__", None), name


def test_a_policy_knows_whether_it_mixes():
    assert not Augment().mixes
    assert Augment(mixup=0.2).mixes and Augment(cutmix=1.0).mixes
    assert not Augment(mixup=0.2, mix_probability=0.0).mixes


def test_a_squashed_crop_has_the_aspect_ratio_of_the_picture():
    boxes = crop_boxes(Augment(crop="squash", crop_area=(0.25, 0.25)), 0, 0, SAMPLES, 0, 100, 400)
    assert (boxes[:, 2:] == [200, 50]).all()
    assert (boxes[:, 0].min(), boxes[:, 0].max(), boxes[:, 1].min(), boxes[:, 1].max()) == (0, 200, 0, 50)
    assert crop_box(Augment(crop="squash", crop_area=(1.0, 1.0)), 0, 0, 0, 0, 100, 400) == (0, 0, 400, 100)
    wide = crop_boxes(Augment(crop="squash", crop_area=(0.04, 1.0)), 0, 0, SAMPLES, 0, 100, 400)[:, 2]
    assert wide.min() == pytest.approx(80, abs=2)
    assert wide.max() == pytest.approx(400, abs=2)


def test_a_crop_lies_in_the_picture_and_within_its_ranges():
    for rule, (height, width) in itertools.product(
        ("area", "height"), ((375, 500), (60, 40), (8, 8), (1, 1), (1000, 20))
    ):
        policy = Augment(crop_rule=rule, crop_area=(0.1, 0.9))
        left, top, wide, tall = crop_boxes(policy, 0, 0, SAMPLES, 0, height, width).T
        case = (rule, height, width)
        assert ((left >= 0) & (top >= 0) & (wide >= 1) & (tall >= 1)).all(), case
        assert ((left + wide <= width) & (top + tall <= height)).all(), case
        if min(height, width) >= 40:  # else whole pixels are coarser than the ranges
            area, aspect = wide * tall / (height * width), wide / tall
            assert area.min() > 0.095 and area.max() < 0.92, case
            assert aspect.min() > 0.75 * 0.9 and aspect.max() < 4 / 3 * 1.1, case


def test_the_area_rule_draws_areas_and_log_aspects_evenly():
    policy = Augment(crop_area=(0.1, 0.4))  # parts so small that every one fits
    _, _, wide, tall = crop_boxes(policy, 0, 0, SAMPLES, 0, 2000, 2000).T
    area = (wide * tall / 2000**2 - 0.1) / 0.3
    aspect = np.log(wide / tall) / (2 * np.log(4 / 3)) + 0.5
    assert scipy.stats.kstest(area, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(aspect, "uniform").pvalue > 1e-3


def test_the_height_rule_draws_aspects_and_heights_evenly():
    policy = Augment(crop_rule="height", crop_area=(0.1, 0.4))
    _, _, wide, tall = crop_boxes(policy, 0, 0, SAMPLES, 0, 2000, 2000).T
    aspect = wide / tall
    height = (tall * aspect**0.5 / 2000 - 0.1**0.5) / (0.4**0.5 - 0.1**0.5)
    assert scipy.stats.kstest((aspect - 3 / 4) / (4 / 3 - 3 / 4), "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(height, "uniform").pvalue > 1e-3
    by_area = crop_boxes(Augment(crop_area=(0.1, 0.4)), 0, 0, SAMPLES, 0, 2000, 2000)
    assert (wide * tall).mean() < by_area[:, 2:].prod(-1).mean()


def test_crops_are_everywhere():
    left, top, wide, tall = crop_boxes(Augment(crop_area=(0.1, 0.4)), 0, 0, SAMPLES, 0, 1000, 1500).T
    assert scipy.stats.kstest(left / (1500 - wide), "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(top / (1000 - tall), "uniform").pvalue > 1e-3


def test_one_crop_is_that_of_the_batch():
    policy = Augment(crop_rule="height")
    boxes = crop_boxes(policy, 3, 1, SAMPLES[:20], 2, 90, 120)
    assert [crop_box(policy, 3, 1, sample, 2, 90, 120) for sample in range(20)] == [
        tuple(box) for box in boxes.tolist()
    ]


def test_views_epochs_and_seeds_crop_differently():
    boxes = {
        crop_box(Augment(), seed, epoch, 7, view, 900, 900) for seed in (0, 1) for epoch in (0, 1) for view in (0, 1)
    }
    assert len(boxes) == 8


def test_a_part_that_never_fits_becomes_the_largest_within_the_aspects():
    policy = Augment(crop_area=(0.9, 1.0))
    assert crop_box(policy, 0, 0, 0, 0, 100, 1000)[2:] == (133, 100)
    assert crop_box(policy, 0, 0, 0, 0, 1000, 100)[2:] == (100, 133)
    assert crop_box(replace(policy, crop_rule="height"), 0, 0, 0, 0, 100, 1000) == (0, 0, 1000, 100)


def test_without_a_random_crop_it_is_the_largest_centred_part():
    for size, aspect, box in (
        ((100, 151), 1.0, (25, 0, 100, 100)),
        ((151, 100), 1.0, (0, 25, 100, 100)),
        ((100, 150), 1.5, (0, 0, 150, 100)),
        ((100, 100), 2.0, (0, 25, 100, 50)),
    ):
        assert crop_box(Augment(crop="none"), 0, 0, 0, 0, *size, aspect=aspect) == box


def test_the_part_to_be_shifted_slides_along_the_longer_side():
    left, top, wide, tall = crop_boxes(Augment(crop="pad"), 0, 0, SAMPLES, 0, 100, 110).T
    assert set(left) == set(range(11))
    assert set(top) == {0}
    assert set(wide) == set(tall) == {100}
