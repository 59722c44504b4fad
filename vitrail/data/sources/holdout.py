"""The held-out part: which items validate a training whose data name none. A function of the seed, the keys and the
labels alone: no order of a file system and no random generator comes into it, and new files move few old ones.

Axes: n items, K classes.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from vitrail.data.sources.contents import Contents

COMPARED = 100_000  # items; in larger sets duplicates are not looked for


def held_out(contents: Contents, targets: np.ndarray, *, part: float, seed: int) -> np.ndarray:
    """Which items are held out: (n,) bool, True = held out.

    Stratified: of a class's m distinct images round(``part`` x m) are held out, and at least one is on each side where
    m > 1. An item of several classes counts for its rarest. Items of equal content stay on one side, where comparing
    contents is cheap.

    Args:
        targets: (n,) int64; (n, K) float32; or empty, unlabelled.
    """
    first = _first_of_equals(contents)  # (n,)
    leaders = np.flatnonzero(first == np.arange(len(first)))  # one item for each distinct content
    strata = _strata(targets, len(first))[leaders]
    order = np.lexsort((_ranks(contents, seed)[leaders], strata))
    sizes = np.bincount(strata)
    place = np.empty(len(leaders), np.int64)  # of each leader within its class
    place[order] = np.arange(len(leaders)) - (sizes.cumsum() - sizes)[strata[order]]
    wanted = np.minimum(np.maximum(np.round(part * sizes), 1), sizes - 1)
    held = np.zeros(len(first), bool)
    held[leaders] = place < wanted[strata]
    return held[first]


def _first_of_equals(contents: Contents) -> np.ndarray:
    """For each item the first one of the same content, itself where there is no other: (n,) int64."""
    items = len(contents.keys)
    fingerprints = contents.fingerprints() if items <= COMPARED else None
    if fingerprints is None:
        return np.arange(items)
    seen: dict = {}
    return np.array([seen.setdefault(each, row) for row, each in enumerate(fingerprints)], np.int64)


def _strata(targets: np.ndarray, items: int) -> np.ndarray:
    """The class that each item is counted for: (n,) int64."""
    if targets.ndim == 1:
        return targets if len(targets) else np.zeros(items, np.int64)
    by_rarity = np.argsort(targets.sum(0), kind="stable")  # (K,)
    rarest = by_rarity[(targets[:, by_rarity] > 0).argmax(1)]
    return np.where(targets.any(1), rarest, targets.shape[1])  # what has no label is a class of its own


def _ranks(contents: Contents, seed: int) -> np.ndarray:
    """A number for each item that only its key and the seed decide: (n,) uint64."""
    digests = b"".join(
        blake2b(f"{seed}/{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest() for key in contents.keys
    )
    return np.frombuffer(digests, "<u8")
