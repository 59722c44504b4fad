"""Which items are used for validation if the data have no validation split, and which for training on a part of the data.
Both are functions of the seed, the keys and the labels: they do not depend on the order of files or on a random generator,
and few items change sides when files are added.

Axes: n items, K classes.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.contents import Contents
from vitrail.data.sources.source import Source

COMPARED = 100_000  # items; larger data sets are not searched for duplicates


def choose_held_out(contents: Contents, targets: np.ndarray | Annotations, *, fraction: float, seed: int) -> np.ndarray:
    """Which items are held out: (n,) bool, True = held out.

    The split is stratified: of the m distinct images of a class round(``fraction`` x m) are held out; if m > 1, each side
    gets at least one. An item with several classes counts for the rarest one. Items of equal content stay on one side,
    if comparing contents is cheap.

    Args:
        targets: (n,) int64; (n, K) float32; annotations; or empty for unlabelled data.
    """
    first = _find_first_duplicates(contents)  # (n,)
    leaders = np.flatnonzero(first == np.arange(len(first)))  # one item per distinct content
    strata = _assign_strata(targets, len(first))[leaders]
    order = np.lexsort((_rank_items(contents, seed)[leaders], strata))
    sizes = np.bincount(strata)
    place = np.empty(len(leaders), np.int64)  # of each leader within its class
    place[order] = np.arange(len(leaders)) - (sizes.cumsum() - sizes)[strata[order]]
    wanted = np.minimum(np.maximum(np.round(fraction * sizes), 1), sizes - 1)
    held = np.zeros(len(first), bool)
    held[leaders] = place < wanted[strata]
    return held[first]


def choose_part(contents: Contents, targets: np.ndarray | Annotations, *, count: int, seed: int) -> np.ndarray:
    """Which ``count`` items a smaller training split has: (n,) bool, True = kept.

    Parts of one seed are nested: a smaller one is contained in a larger one. They are stratified: every class has one item,
    and the others go to the classes in proportion to their sizes, by the method of Sainte-Lague. Of fewer items than
    classes each is of another class, of the largest ones.

    Args:
        targets: as of `choose_held_out`; items without classes are drawn from all alike.
        count: at most n.
    """
    strata = _assign_strata(targets, len(contents.keys))
    ranks = _rank_items(contents, seed)
    sizes = np.bincount(strata)
    place = np.empty(len(strata), np.int64)  # of each item within its class
    place[np.lexsort((ranks, strata))] = np.arange(len(strata)) - (sizes.cumsum() - sizes).repeat(sizes)
    turn = (place + 0.5) / sizes[strata]  # the share of a class at which the item is its next one
    kept = np.zeros(len(strata), bool)
    kept[np.lexsort((ranks, turn, place > 0))[:count]] = True
    return kept


def take_part(source: Source, *, count: int, seed: int) -> Source:
    """The items of a source that `choose_part` keeps."""
    return source.subset(np.flatnonzero(choose_part(source.contents, source.targets, count=count, seed=seed)))


def _find_first_duplicates(contents: Contents) -> np.ndarray:
    """For each item the first item with the same content, possibly itself: (n,) int64."""
    items = len(contents.keys)
    fingerprints = contents.fingerprints() if items <= COMPARED else None
    if fingerprints is None:
        return np.arange(items)
    first: dict = {}
    return np.array([first.setdefault(value, row) for row, value in enumerate(fingerprints)], np.int64)


def _assign_strata(targets: np.ndarray | Annotations, items: int) -> np.ndarray:
    """The class that each item counts for: (n,) int64."""
    if isinstance(targets, Annotations):
        return targets.strata()
    if targets.ndim == 1:
        return targets if len(targets) else np.zeros(items, np.int64)
    by_rarity = np.argsort(targets.sum(0), kind="stable")  # (K,)
    rarest = by_rarity[(targets[:, by_rarity] > 0).argmax(1)]
    return np.where(targets.any(1), rarest, targets.shape[1])  # items without a label form a separate class


def _rank_items(contents: Contents, seed: int) -> np.ndarray:
    """A number per item, a function of its key and the seed: (n,) uint64."""
    digests = (
        blake2b(f"{seed}/{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest() for key in contents.keys
    )
    return np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64, len(contents.keys))
