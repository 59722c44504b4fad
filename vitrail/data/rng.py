"""Stateless random numbers: every draw is a function of (seed, stream, epoch, sample, view, position).

The first five keys are hashed into the state of a splitmix64 generator (Steele, Lea & Flood 2014), and the draws are the
first outputs of that generator. So the draws of a sample do not depend on the batch, the order or the worker. Words,
uniforms, integers and permutations have the same bits on every machine; normals and betas use the logarithm of the
platform and agree up to rounding.

Axes: ``...`` is the broadcast shape of ``ids``: epoch, sample and view, each an integer or an array of integers.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: the increment of splitmix64
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the multipliers of its finaliser


def keys(seed: int, stream: str, *ids: ArrayLike) -> NDArray[np.uint64]:
    """The generator state of each (seed, stream, epoch, sample, view).  # -> (...)

    A stream is the name of one use of random numbers ("flip", "mask"), so that two uses never share their numbers.
    """
    name = int.from_bytes(blake2b(stream.encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):  # integer overflow is intended
        state = np.zeros((), np.uint64)
        for part in (seed % 2**64, name, *ids):
            is_one = isinstance(part, int)
            whole = np.uint64(part % 2**64) if is_one else np.asarray(part).astype(np.int64).view(np.uint64)
            state = _finalise((state ^ whole) + np.uint64(GOLDEN))
    return np.asarray(state)


def words(seed: int, stream: str, *ids: ArrayLike, count: int) -> NDArray[np.uint64]:
    """``count`` words of 64 random bits per key.  # -> (..., count)"""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)  # (count,)
    with np.errstate(over="ignore"):
        return _finalise(keys(seed, stream, *ids)[..., None] + steps)


def uniforms(seed: int, stream: str, *ids: ArrayLike, count: int) -> NDArray[np.float64]:
    """``count`` numbers in [0, 1), multiples of 2**-53, per key; the first do not depend on ``count``.  # -> (..., count)"""
    return (words(seed, stream, *ids, count=count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(seed: int, stream: str, *ids: ArrayLike, count: int, below: int) -> NDArray[np.int64]:
    """``count`` integers in [0, below) per key; ``below`` is at most 2**31.  # -> (..., count)"""
    assert 0 < below <= 2**31, below
    return (uniforms(seed, stream, *ids, count=count) * below).astype(np.int64)


def normals(seed: int, stream: str, *ids: ArrayLike, count: int) -> NDArray[np.float64]:
    """``count`` standard normal numbers per key, by Box and Muller (1958).  # -> (..., count)"""
    pairs = uniforms(seed, stream, *ids, count=2 * count)
    radius = np.sqrt(-2 * np.log1p(-pairs[..., 0::2]))
    return radius * np.cos(2 * np.pi * pairs[..., 1::2])


def betas(seed: int, stream: str, *ids: ArrayLike, count: int, alpha: float, beta: float) -> NDArray[np.float64]:
    """``count`` numbers of the Beta(alpha, beta) distribution per key, by its inverse CDF.  # -> (..., count)"""
    assert alpha > 0 and beta > 0, (alpha, beta)
    from scipy.special import betaincinv  # a dependency of scikit-learn; imported here because that is slow

    return betaincinv(alpha, beta, uniforms(seed, stream, *ids, count=count))


def permutation(seed: int, epoch: int, n: int, *, stream: str = "order") -> NDArray[np.int64]:
    """The order of the ``n`` samples in an epoch, or of what else ``stream`` names.  # -> (n,)

    The index of each sample is the low bits of its random word, and the words are sorted, so there are no ties.
    """
    below = np.uint64(max(n - 1, 0).bit_length())
    random = words(seed, stream, epoch, 0, 0, count=n) >> below << below
    return (np.sort(random | np.arange(n, dtype=np.uint64)) & ((np.uint64(1) << below) - np.uint64(1))).astype(np.int64)


def permute(places: NDArray[np.int64], seed: int, epoch: int, n: int, *, stream: str) -> NDArray[np.int64]:
    """Where a random permutation of ``n`` takes these places, without computing that of all: any shape -> the same.

    A Feistel network (Luby & Rackoff 1988) of eight rounds permutes the numbers below the next power of two; a number that
    is taken to n or above is taken on until it is below (Black & Rogaway 2002), twice on average at most.
    """
    low = max(n - 1, 1).bit_length() // 2
    high = max(n - 1, 1).bit_length() - low
    rounds = words(seed, stream, epoch, 0, 0, count=8)
    found, left = places.astype(np.uint64), np.ones(places.shape, bool)
    while left.any():
        found[left] = _feistel(found[left], rounds, high, low)
        left[left] = found[left] >= n
    return found.astype(np.int64)


def _feistel(numbers: NDArray[np.uint64], rounds: NDArray[np.uint64], high: int, low: int) -> NDArray[np.uint64]:
    """One to one below 2**(high + low); the halves swap their widths in every round."""
    with np.errstate(over="ignore"):
        for key in rounds:
            first, second = numbers >> np.uint64(low), numbers & np.uint64(2**low - 1)
            mixed = first ^ (_finalise((second ^ key) + np.uint64(GOLDEN)) & np.uint64(2**high - 1))
            numbers, high, low = second << np.uint64(high) | mixed, low, high
    return numbers


def _finalise(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: each bit of the result depends on all bits of the word, one to one."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(SECOND)
    return word ^ (word >> np.uint64(31))
