"""The order of a training: every sample once an epoch, whatever the batch, and any step by itself."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data import sample_order
from vitrail.data.rng import permutation
from vitrail.data.sample_order import Balance, TrainStream, measure_mixing
from vitrail.data.sources.contents import StoredUnits, Units


def all_ids(stream, steps):
    return np.concatenate(list(map(stream.ids, range(0, steps))))


@pytest.mark.parametrize("batch", [1, 4, 10, 23])
def test_an_epoch_sees_every_sample_once_and_the_next_follows_in_the_same_batch(batch):
    ids = all_ids(TrainStream(images=10, batch=batch, seed=7), steps=-(-30 // batch))[:30]
    for epoch, part in enumerate(np.split(ids, 3)):
        assert part[:, 0].tolist() == [epoch] * 10
        assert part[:, 1].tolist() == permutation(7, epoch, 10).tolist()
        assert not part[:, 2].any()


def test_the_steps_of_a_resumed_run_are_those_of_the_run_that_never_stopped():
    stream = TrainStream(images=11, batch=4, seed=1, repeats=2)
    resumed = np.concatenate(list(map(TrainStream(images=11, batch=4, seed=1, repeats=2).ids, range(5, 9))))
    assert np.array_equal(resumed, all_ids(stream, 9)[20:])


def test_another_seed_is_another_order():
    first, second = (all_ids(TrainStream(images=50, batch=50, seed=seed), 1) for seed in (0, 1))
    assert (first[:, 1] != second[:, 1]).any()


def test_with_three_repeats_an_epoch_sees_a_third_of_the_samples_in_three_views_side_by_side():
    ids = all_ids(TrainStream(images=12, batch=6, seed=3, repeats=3), 2)
    samples = ids[:, 1].reshape(4, 3)
    assert (samples == samples[:, :1]).all()
    assert len(set(samples[:, 0].tolist())) == 4
    assert ids[:, 2].tolist() == [0, 1, 2] * 4
    assert not ids[:, 0].any()


def test_the_last_sample_has_fewer_views_if_repeats_do_not_divide_an_epoch():
    ids = all_ids(TrainStream(images=7, batch=7, seed=3, repeats=3), 2)
    assert ids[:, 2].tolist() == [0, 1, 2, 0, 1, 2, 0] * 2
    assert ids[:, 0].tolist() == [0] * 7 + [1] * 7


def test_a_number_of_epochs_is_rounded_to_the_nearest_step():
    stream = TrainStream(images=100, batch=32, seed=0)
    assert stream.steps_for(8) == 25
    assert stream.steps_for(0.001) == 1


UNITS = Units(np.repeat(np.arange(10), [3, 7, 5, 5, 5, 5, 5, 5, 5, 5]), 10, 3)  # 50 samples in 10 units


def test_units_are_read_in_windows_and_every_sample_is_still_seen_once_an_epoch():
    stream = TrainStream(images=50, batch=8, seed=4, units=UNITS)
    first, second = np.split(all_ids(stream, 13)[:100, 1], 2)
    for order in (first, second):
        assert sorted(order.tolist()) == list(range(50))
        units = UNITS.of[order]
        seen = [units[np.sort(np.unique(units, return_index=True)[1])][start : start + 3] for start in (0, 3, 6, 9)]
        left = units
        for window in seen:  # all samples of three units come before any of the others
            count = int(np.isin(UNITS.of, window).sum())
            assert set(left[:count].tolist()) == set(window.tolist())
            left = left[count:]
        assert not len(left)
    assert (first != second).any() and set(UNITS.of[first[:15]].tolist()) != set(UNITS.of[second[:15]].tolist())
    assert (np.diff(UNITS.of[first[:15]]) != 0).sum() > 4  # a window is shuffled as a whole


def test_a_single_window_is_the_order_without_units():
    whole = TrainStream(images=50, batch=8, seed=4, units=Units(UNITS.of, 10, 10))
    assert np.array_equal(all_ids(whole, 13), all_ids(TrainStream(images=50, batch=8, seed=4), 13))


def test_units_that_are_sorted_by_class_mix_badly_and_random_ones_well():
    units = Units(np.repeat(np.arange(20), 50), 20, 2)
    by_class = np.repeat(np.arange(10), 100)
    assert measure_mixing(by_class, units, seed=0) == pytest.approx(np.log(2) / np.log(10), rel=0.25)
    shuffled = np.random.default_rng(0).permutation(by_class)
    assert measure_mixing(shuffled, units, seed=0) == pytest.approx(1, abs=0.02)
    assert measure_mixing(np.zeros(1000, np.int64), units, seed=0) == 1


STORED = np.array([7, 3, 5, 5, 5, 5, 5, 5, 5, 5])  # items in ten files
FIRST = STORED.cumsum() - STORED


def stored_units(window):
    return StoredUnits(STORED, window, lambda unit: np.arange(FIRST[unit], FIRST[unit] + STORED[unit])[::-1])


def test_files_are_shuffled_in_windows_and_every_sample_is_still_seen_once_an_epoch():
    stream = TrainStream(images=50, batch=8, seed=4, units=stored_units(3))
    first, second = np.split(all_ids(stream, 13)[:100, 1], 2)
    for order in (first, second):
        assert sorted(order.tolist()) == list(range(50))
        files = np.searchsorted(FIRST, order, side="right") - 1
        for count in (3, 3, 2, 2):  # all samples of these files come before any of the others
            window = next(end for end in range(1, 51) if end == len(files) or len(np.unique(files[: end + 1])) > count)
            assert STORED[np.unique(files[:window])].sum() == window
            assert (np.diff(files[:window]) != 0).sum() > window // 4  # they are shuffled as a whole
            files = files[window:]
        assert not len(files)
    assert (first != second).any()
    resumed = TrainStream(images=50, batch=8, seed=4, units=stored_units(3))
    assert np.array_equal(np.concatenate(list(map(resumed.ids, range(5, 9)))), all_ids(stream, 9)[40:])


def test_many_samples_are_permuted_without_a_table(monkeypatch):
    monkeypatch.setattr(sample_order, "MAX_SORTED", 49)
    ids = all_ids(TrainStream(images=50, batch=8, seed=7), 13)[:100]
    first, second = np.split(ids[:, 1], 2)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert (first != second).any() and (first != permutation(7, 0, 50)).any()
    whole = TrainStream(images=10**11, batch=1000, seed=1)
    batch = whole.ids(10**6)
    assert len(set(batch[:, 1].tolist())) == 1000 and batch[:, 1].max() < 10**11
    assert abs(batch[:, 1].mean() / 10**11 - 0.5) < 0.05
    assert np.array_equal(batch, whole.ids(10**6))


def test_files_that_are_sorted_by_class_mix_badly():
    units = StoredUnits(np.full(20, 50), 2, lambda unit: np.arange(50 * unit, 50 * unit + 50))
    by_class = np.repeat(np.arange(10), 100)
    assert measure_mixing(by_class, units, seed=0) == pytest.approx(np.log(2) / np.log(10), rel=0.3)
    assert measure_mixing(np.random.default_rng(0).permutation(by_class), units, seed=0) == pytest.approx(1, abs=0.03)


# Square-root sampling.

LABELS = np.repeat([3, 0, 1], [4, 100, 16])[np.random.default_rng(0).permutation(120)]  # no image of class 2


def balanced_ids(steps=8, batch=75, **changes):
    return all_ids(TrainStream(images=120, batch=batch, seed=5, balance=Balance(LABELS), **changes), steps)


def test_classes_are_drawn_by_the_square_root_of_their_samples_and_an_epoch_keeps_its_length():
    ids = balanced_ids()  # five epochs of 120
    assert ids[:, 0].tolist() == np.repeat(np.arange(5), 120).tolist()
    drawn = np.array([np.bincount(LABELS[samples], minlength=4) for samples in np.split(ids[:, 1], 5)])
    assert np.abs(drawn - np.array([75, 30, 0, 15])).max() <= 1  # 10 : 4 : 0 : 2 of 120
    assert drawn.sum(0).tolist() == [375, 150, 0, 75]


def test_samples_of_a_class_are_drawn_equally_often_at_any_end_of_an_epoch():
    ids = balanced_ids()
    for epochs in range(1, 6):
        often = np.bincount(ids[: 120 * epochs, 1], minlength=120)
        for label in (0, 1, 3):
            assert np.ptp(often[LABELS == label]) <= 1
    twice = np.bincount(ids[:240, 1], minlength=120)[LABELS == 0] == 2  # 50 of 100, in the order of the second pass
    assert twice.sum() == 50 and 10 < twice[:50].sum() < 40


def test_no_two_draws_of_an_epoch_have_the_same_random_numbers():
    for changes in ({}, {"repeats": 3}):
        ids = balanced_ids(**changes)
        assert len(np.unique(ids, axis=0)) == len(ids)


def test_a_balanced_step_is_the_same_by_itself_and_in_another_batch_and_the_order_is_mixed():
    ids = balanced_ids()
    for step in (7, 2):
        lone = TrainStream(images=120, batch=75, seed=5, balance=Balance(LABELS)).ids(step)
        assert np.array_equal(lone, ids[75 * step : 75 * step + 75])
    assert np.array_equal(balanced_ids(steps=100, batch=6), ids)
    assert (balanced_ids(steps=1)[:, 1] != ids[120:195, 1]).any()
    assert len(set(LABELS[ids[:12, 1]].tolist())) > 1
