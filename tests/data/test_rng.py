"""Stateless draws: the published generator, the same numbers alone and together, and the distributions they claim."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from tests.slow import few_or_nightly
from vitrail.data import rng
from vitrail.data.rng import betas, integers, keys, normals, permutation, uniforms, words

SURE = 1e-3  # a test of fixed numbers: a smaller p-value would be no accident


def test_a_state_walks_through_the_published_outputs_of_splitmix64(monkeypatch):
    monkeypatch.setattr(rng, "keys", lambda *_: np.asarray(np.uint64(1234567)))
    assert words(0, "", 0, 0, 0, count=5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_numbers_are_these_on_every_machine():
    assert keys(7, "flip", 3, 12345, 1).tolist() == 4120111167595353643
    assert uniforms(7, "flip", 3, 12345, 1, count=3).tolist() == [
        0.6547676741138598,
        0.6955769617694811,
        0.32797967993774857,
    ]
    assert integers(7, "flip", 3, 12345, 1, count=5, below=10).tolist() == [6, 6, 3, 4, 9]
    assert permutation(7, 3, 10).tolist() == [4, 1, 0, 8, 9, 6, 7, 3, 5, 2]


def test_a_sample_draws_alone_what_it_draws_in_any_batch():
    samples = np.array([[5, 0, 2**40], [9, 5, 1]])
    together = uniforms(1, "crop", 4, samples, 2, count=6)  # (2, 3, 6)
    assert together.shape == (2, 3, 6)
    for place in np.ndindex(samples.shape):
        assert np.array_equal(together[place], uniforms(1, "crop", 4, int(samples[place]), 2, count=6))
    assert np.array_equal(together[..., :2], uniforms(1, "crop", 4, samples, 2, count=2))


def test_keys_broadcast():
    epochs, views = np.arange(2)[:, None], np.arange(3)
    table = uniforms(0, "crop", epochs, 8, views, count=1)
    assert table.shape == (2, 3, 1)
    assert table[1, 2] == uniforms(0, "crop", 1, 8, 2, count=1)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_the_kind_of_integer_changes_nothing(kind):
    assert np.array_equal(
        uniforms(0, "crop", kind(3), np.arange(9, dtype=kind), 0, count=2), uniforms(0, "crop", 3, range(9), 0, count=2)
    )


ALONG = {  # one draw for each number, which is one of the keys
    "seed": lambda i: uniforms(i, "a", 0, 0, 0, count=1)[0],
    "stream": lambda i: uniforms(0, f"stream {i}", 0, 0, 0, count=1)[0],
    "epoch": lambda i: uniforms(0, "a", i, 0, 0, count=1)[0],
    "sample": lambda i: uniforms(0, "a", 0, i, 0, count=1)[0],
    "view": lambda i: uniforms(0, "a", 0, 0, i, count=1)[0],
    "position": lambda i: uniforms(0, "a", 0, 0, 0, count=i + 1)[i],
}


@pytest.mark.parametrize("count", few_or_nightly(1024, 16_384))
def test_neighbours_in_any_key_are_uniform_and_independent(count):
    for key, draw in ALONG.items():
        drawn = np.array([draw(i) for i in range(count)])
        assert scipy.stats.kstest(drawn, "uniform").pvalue > SURE, key
        # pairs (i, i + 1) fall evenly into 8 x 8 boxes
        boxes = np.histogram2d(drawn[0::2], drawn[1::2], bins=8, range=[[0, 1], [0, 1]])[0]
        assert scipy.stats.chisquare(boxes.ravel()).pvalue > SURE, key


def test_swapped_keys_are_other_keys():
    drawn = {keys(a, "s", b, c, d).item() for a in range(6) for b in range(6) for c in range(6) for d in range(6)}
    assert len(drawn) == 6**4


def test_every_bit_is_even():
    bits = np.unpackbits(words(3, "bits", 0, np.arange(20_000), 0, count=1).view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / 20_000**0.5


def test_uniforms_lie_in_the_half_open_interval(monkeypatch):
    monkeypatch.setattr(rng, "words", lambda *_, count: np.array([0, 2**64 - 1], dtype=np.uint64))
    assert uniforms(0, "", 0, 0, 0, count=2).tolist() == [0.0, 1 - 2**-53]


def test_integers_are_even():
    drawn = integers(0, "die", 0, np.arange(6000), 0, count=2, below=6)
    assert set(np.unique(drawn)) == set(range(6))
    assert scipy.stats.chisquare(np.bincount(drawn.ravel())).pvalue > SURE


def test_normals_are_normal():
    drawn = normals(0, "noise", 0, np.arange(10_000), 0, count=2)
    assert scipy.stats.kstest(drawn.ravel(), "norm").pvalue > SURE
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.04


def test_betas_have_their_distribution():
    for alpha, beta in ((0.2, 0.2), (0.8, 0.8), (1.0, 1.0), (2.0, 5.0)):
        drawn = betas(0, "weight", np.arange(5000), 0, 0, count=1, alpha=alpha, beta=beta)[:, 0]
        assert scipy.stats.kstest(drawn, scipy.stats.beta(alpha, beta).cdf).pvalue > SURE, (alpha, beta)


def test_an_order_holds_every_sample_once():
    for n in (0, 1, 2, 3, 64, 65, 1000):
        assert np.array_equal(np.sort(permutation(5, 2, n)), np.arange(n)), n


def test_orders_are_all_equally_likely():
    drawn = [tuple(permutation(0, epoch, 4)) for epoch in range(4800)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts).pvalue > SURE


def test_orders_differ_between_epochs_and_seeds():
    orders = {tuple(permutation(seed, epoch, 100)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_a_permutation_without_a_table_takes_every_place_to_another():
    for n in (1, 2, 3, 7, 64, 65, 1000, 4097):
        places = np.arange(n)
        found = rng.permute(places, 5, 2, n, stream="x")
        assert sorted(found.tolist()) == places.tolist(), n
        assert np.array_equal(rng.permute(places[::-1][: n // 2], 5, 2, n, stream="x"), found[::-1][: n // 2]), n
        if n > 60:
            assert (rng.permute(places, 5, 3, n, stream="x") != found).any(), n
            assert (found != places).sum() > 0.9 * n, n


def test_a_permutation_without_a_table_is_as_good_as_random():
    """Neighbours part, and each place is taken to each eighth equally often (chi-squared, 7 degrees of freedom)."""
    n, keys = 1000, 400
    found = np.stack([rng.permute(np.arange(n), seed, 0, n, stream="x") for seed in range(keys)])
    assert abs(np.corrcoef(found[:, :-1].ravel(), found[:, 1:].ravel())[0, 1]) < 0.01
    eighths = np.stack([np.bincount(column * 8 // n, minlength=8) for column in found.T])  # (n, 8)
    chi = ((eighths - keys / 8) ** 2 / (keys / 8)).sum(1)
    assert abs(chi.mean() - 7) < 0.5 and chi.max() < 40
