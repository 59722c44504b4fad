"""What chance decides: strengths by hand, even choices, and draws that belong to the picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy

from vitrail.data.augment.apply import draw_erasing, draw_flips, draw_layers, draw_shifts
from vitrail.data.augment.policy import OPERATIONS, POLICIES, Augment

IDS = np.stack([np.zeros(3200), np.arange(3200), np.zeros(3200)], 1).astype(np.int64)
NONE = Augment(crop="none", flip=0.0)
JITTERED = {"jitter": (0.4, 0.4, 0.2), "hue": 0.1, "jitter_probability": 0.8}


def values_of(layer, name):
    return set(np.round(layer.values[layer.names == name], 6))


def only(policy, *names, layers=1):
    return replace(policy, operations=names or OPERATIONS, layers=layers, probability=1.0)


# by hand, from the published mappings of a magnitude
GOOGLE = {
    10: {
        "rotate": {-30, 30},
        "shear_x": {-0.3, 0.3},
        "translate_y": {-0.45, 0.45},
        "posterise": {4},
        "solarise": {256},
        "solarise_add": {110},
        "colour": {1.9},
        "sharpness": {1.9},
        "cutout": {0.178571},
        "equalise": {0},
    },
    15: {"rotate": {-45, 45}, "posterise": {6}, "solarise": {384}, "contrast": {2.8}},
    0: {"rotate": {0}, "posterise": {1}, "solarise": {0}, "brightness": {0.1}},
}
TIMM = {
    9: {
        "rotate": {-27, 27},
        "shear_y": {-0.27, 0.27},
        "translate_x": {-0.405, 0.405},
        "posterise": {1},
        "solarise": {26},
        "solarise_add": {99},
        "colour": {0.19, 1.81},
        "contrast": {0.19, 1.81},
        "brightness": {0.19, 1.81},
        "sharpness": {0.19, 1.81},
    },
    0: {"posterise": {4}, "solarise": {256}, "colour": {1.0}, "rotate": {0}},
}


def test_magnitudes_mean_what_the_papers_mean():
    wrong = []
    for increasing, table in ((False, GOOGLE), (True, TIMM)):
        for magnitude, row in table.items():
            for name, values in row.items():
                policy = only(replace(NONE, magnitude=float(magnitude), increasing=increasing), name)
                (layer,) = draw_layers(policy, IDS, 0)
                if (found := values_of(layer, name)) != values:
                    wrong.append((increasing, magnitude, name, found))
    assert not wrong


def test_both_signs_are_as_likely():
    (layer,) = draw_layers(only(NONE, "rotate"), IDS, 0)
    assert scipy.stats.binomtest(int((layer.values > 0).sum()), len(IDS)).pvalue > 1e-3


def test_every_operation_is_as_likely_in_every_layer():
    for layer in draw_layers(only(NONE, layers=2), IDS, 0):
        counts = np.unique(layer.names, return_counts=True)[1]
        assert len(counts) == len(OPERATIONS)
        assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_layers_are_drawn_apart():
    first, second = draw_layers(only(NONE, layers=2), IDS, 0)
    same = int((first.names == second.names).sum())
    assert scipy.stats.binomtest(same, len(IDS), 1 / len(OPERATIONS)).pvalue > 1e-3


def test_a_layer_may_do_nothing():
    layer = draw_layers(POLICIES["deit"], IDS, 0)[0]
    assert scipy.stats.binomtest(int((layer.names == "").sum()), len(IDS), 0.5).pvalue > 1e-3


def test_the_magnitude_varies_and_is_kept_within_ten():
    (layer,) = draw_layers(replace(only(NONE, "rotate"), magnitude=9.0, magnitude_std=0.5), IDS, 0)
    magnitudes = np.abs(layer.values) / 3
    assert magnitudes.max() == 10
    below = magnitudes[magnitudes < 9]
    assert scipy.stats.kstest((9 - below) / 0.5, "halfnorm").pvalue > 1e-3


def test_three_augment_is_one_of_three_and_then_jitter_in_any_order():
    three, *jitter = draw_layers(POLICIES["three_augment"], IDS, 0)
    counts = {name: int((three.names == name).sum()) for name in ("grey", "solarise", "blur")}
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3
    assert sum(counts.values()) == len(IDS)
    assert values_of(three, "solarise") == {128}
    assert scipy.stats.kstest((three.values[three.names == "blur"] - 0.1) / 1.9, "uniform").pvalue > 1e-3
    orders, counted = np.unique(np.stack([layer.names for layer in jitter]), axis=1, return_counts=True)
    assert orders.shape == (3, 6)
    assert scipy.stats.chisquare(counted).pvalue > 1e-3
    for layer in jitter:
        assert scipy.stats.kstest((layer.values - 0.7) / 0.6, "uniform").pvalue > 1e-3


def test_a_jitter_of_nothing_is_left_out():
    layers = draw_layers(replace(NONE, jitter=(0.2, 0.0, 0.0)), IDS[:50], 0)
    assert {name for layer in layers for name in layer.names} == {"brightness", ""}
    assert (np.stack([layer.names for layer in layers]) == "brightness").sum(0).tolist() == [1] * 50


def test_hue_joins_the_jitter_anywhere_and_leaves_the_others_as_they_were():
    plain, coloured = replace(NONE, jitter=(0.4, 0.4, 0.2)), replace(NONE, jitter=(0.4, 0.4, 0.2), hue=0.1)
    three, four = draw_layers(plain, IDS, 0), draw_layers(coloured, IDS, 0)
    orders, counted = np.unique(np.stack([layer.names for layer in four]), axis=1, return_counts=True)
    assert orders.shape == (4, 24)
    assert scipy.stats.chisquare(counted).pvalue > 1e-3
    names, values = (np.stack([getattr(layer, part) for layer in four], 1) for part in ("names", "values"))
    turns = values[names == "hue"]
    assert scipy.stats.kstest((turns + 0.1) / 0.2, "uniform").pvalue > 1e-3
    assert np.array_equal(names[names != "hue"].reshape(-1, 3), np.stack([layer.names for layer in three], 1))
    assert np.array_equal(values[names != "hue"].reshape(-1, 3), np.stack([layer.values for layer in three], 1))


def test_hue_alone_is_a_jitter():
    layers = draw_layers(replace(NONE, hue=0.5), IDS[:50], 0)
    assert (np.stack([layer.names for layer in layers]) == "hue").sum(0).tolist() == [1] * 50


def test_a_picture_is_jittered_whole_or_not_at_all():
    names = np.stack([layer.names for layer in draw_layers(replace(NONE, **JITTERED), IDS, 0)])
    count = (names != "").sum(0)
    assert set(count) == {0, 4}
    assert scipy.stats.binomtest(int((count == 4).sum()), len(IDS), 0.8).pvalue > 1e-3


def test_views_are_greyed_alike_and_blurred_and_solarised_at_rates_of_their_own():
    policy = replace(POLICIES["moco"], blur_views=(0.7, 0.1), solarise_views=(0.05, 0.2))
    for view, rates in enumerate([(0.2, 0.7, 0.05), (0.2, 0.1, 0.2), (0.2, 0.7, 0.05)]):
        ids = IDS + np.array([0, 0, view])
        *_, grey, blur, solarise = draw_layers(policy, ids, 0)
        for layer, name, rate in zip((grey, blur, solarise), ("grey", "blur", "solarise"), rates):
            assert set(layer.names) == {name, ""}
            assert scipy.stats.binomtest(int((layer.names == name).sum()), len(ids), rate).pvalue > 1e-3
        assert scipy.stats.kstest((blur.values[blur.names == "blur"] - 0.1) / 1.9, "uniform").pvalue > 1e-3
        assert values_of(solarise, "solarise") == {128}


def test_mocos_first_view_is_always_blurred_and_never_solarised():
    *_, grey, blur, solarise = draw_layers(POLICIES["moco"], IDS, 0)
    assert set(blur.names) == {"blur"}
    assert set(solarise.names) == {""}
    assert set(grey.names) == {"grey", ""}
    assert len(draw_layers(POLICIES["simclr32"], IDS, 0)) == 5  # no layer for what never comes


def test_flips_come_at_their_rate():
    assert not draw_flips(NONE, IDS, 0).any()
    assert draw_flips(replace(NONE, flip=1.0), IDS, 0).all()
    assert scipy.stats.binomtest(int(draw_flips(replace(NONE, flip=0.3), IDS, 0).sum()), len(IDS), 0.3).pvalue > 1e-3


def test_shifts_are_all_as_likely():
    shifts = draw_shifts(Augment(crop="pad", pad=0.125), IDS, 0, (16, 32))
    assert scipy.stats.chisquare(np.unique(shifts[:, 0], return_counts=True)[1]).pvalue > 1e-3
    assert set(shifts[:, 0]) == set(range(-4, 5))
    assert set(shifts[:, 1]) == set(range(-2, 3))


def test_erased_boxes_lie_within_their_ranges():
    policy = replace(NONE, erase=0.25)
    rows, boxes, states = draw_erasing(policy, IDS, 0, (200, 300))
    assert scipy.stats.binomtest(len(rows), len(IDS), 0.25).pvalue > 1e-3
    assert len(set(states.tolist())) == len(rows)
    left, top, wide, tall = boxes.T
    assert ((left >= 0) & (left + wide <= 300) & (top >= 0) & (top + tall <= 200)).all()
    area, aspect = wide * tall / 60_000, tall / wide
    assert area.min() >= 0.019
    assert area.max() <= 0.34
    assert aspect.min() >= 0.28
    assert aspect.max() <= 3.5


def test_a_box_that_fits_nowhere_erases_nothing():
    policy = replace(NONE, erase=1.0, erase_area=(1.0, 1.0))
    assert len(draw_erasing(policy, IDS, 0, (10, 10))[0]) == 0


def test_what_is_drawn_belongs_to_the_picture():
    some = np.array([7, 3, 1200])
    for name, policy in POLICIES.items():
        whole, part = draw_layers(policy, IDS, 0), draw_layers(policy, IDS[some], 0)
        for layer, alone in zip(whole, part, strict=True):
            for drawn in ("names", "values", "places"):
                values = getattr(layer, drawn)
                assert values is None or np.array_equal(values[some], getattr(alone, drawn)), (name, drawn)
        assert np.array_equal(draw_flips(policy, IDS, 0)[some], draw_flips(policy, IDS[some], 0)), name
