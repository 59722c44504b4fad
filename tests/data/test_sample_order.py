"""The order of a training: every sample once an epoch, whatever the batch, and any step by itself."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.rng import permutation
from vitrail.data.sample_order import TrainStream


def all_ids(stream, steps):
    return np.concatenate(list(stream.steps(0, steps)))


@pytest.mark.parametrize("batch", [1, 4, 10, 23])
def test_an_epoch_sees_every_sample_once_and_the_next_follows_in_the_same_batch(batch):
    ids = all_ids(TrainStream(images=10, batch=batch, seed=7), steps=-(-30 // batch))[:30]
    for epoch, part in enumerate(np.split(ids, 3)):
        assert part[:, 0].tolist() == [epoch] * 10
        assert part[:, 1].tolist() == permutation(7, epoch, 10).tolist()
        assert not part[:, 2].any()


def test_the_steps_of_a_resumed_run_are_those_of_the_run_that_never_stopped():
    stream = TrainStream(images=11, batch=4, seed=1, repeats=2)
    resumed = np.concatenate(list(TrainStream(images=11, batch=4, seed=1, repeats=2).steps(5, 9)))
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


def test_where_repeats_do_not_divide_an_epoch_the_last_sample_has_fewer_views():
    ids = all_ids(TrainStream(images=7, batch=7, seed=3, repeats=3), 2)
    assert ids[:, 2].tolist() == [0, 1, 2, 0, 1, 2, 0] * 2
    assert ids[:, 0].tolist() == [0] * 7 + [1] * 7


def test_a_number_of_epochs_is_rounded_to_the_nearest_step():
    stream = TrainStream(images=100, batch=32, seed=0)
    assert stream.steps_for(8) == 25
    assert stream.steps_for(0.001) == 1
