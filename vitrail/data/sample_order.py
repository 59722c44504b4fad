"""The order of training samples: a pure function of (seed, step), without torch.

The stream is the infinite concatenation of the permutations of all epochs. Step s takes the positions [s B, (s + 1) B),
so a batch may span two epochs, and every batch is full.

Storage that is read in units (row groups of Parquet) is permuted in windows: in every epoch the units are permuted, so many
that follow one another as fit in memory are a window, and the samples of a window are permuted. Otherwise nearly every image
would read a unit anew.

Axes: n samples of the source, B positions of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vitrail.data.rng import permutation
from vitrail.data.sources.contents import Units


@dataclass(frozen=True, kw_only=True)
class TrainStream:
    """The order of the samples of a run.

    Args:
        images: n; an epoch has n positions for any ``repeats``.
        batch: B, of one step.
        seed: of the order.
        repeats: repeated augmentation (Hoffer et al. 2020; DeiT, section 6): an epoch has n / repeats of the samples,
            each in ``repeats`` views that follow one another, so they are in the same batch. With 1 an epoch has every
            sample once.
        units: the units in which the samples are stored, if they are.
    """

    images: int
    batch: int
    seed: int
    repeats: int = 1
    units: Units | None = None

    def __post_init__(self) -> None:
        assert min(self.images, self.batch, self.repeats) >= 1, self

    def ids(self, step: int) -> np.ndarray:
        """Epoch, sample and view at each position of a step: (B, 3) int64."""
        positions = step * self.batch + np.arange(self.batch)
        epochs, places = np.divmod(positions, self.images)
        ids = np.stack([epochs, np.empty_like(epochs), places % self.repeats], axis=1)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            ids[here, 1] = order_of_epoch(self.seed, epoch, self.images, self.units)[places[here] // self.repeats]
        return ids

    def steps(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """The ids of the steps from ``start`` to ``stop``, exclusive."""
        return map(self.ids, range(start, stop))

    def steps_for(self, epochs: float) -> int:
        """The number of steps closest to this number of epochs, at least one."""
        return max(round(epochs * self.images / self.batch), 1)


@lru_cache(maxsize=2)  # a batch spans at most two epochs; sorting a million numbers takes 0.1 s
def order_of_epoch(seed: int, epoch: int, images: int, units: Units | None) -> np.ndarray:
    """The samples of an epoch: (n,) int64."""
    order = permutation(seed, epoch, images)
    if units is None:
        return order
    return order[np.argsort(_window_of(seed, epoch, units)[order], kind="stable")]


def _window_of(seed: int, epoch: int, units: Units) -> np.ndarray:
    """The window of each sample in an epoch: (n,) int64."""
    windows = np.empty(units.count, np.int64)
    windows[permutation(seed, epoch, units.count, stream="units")] = np.arange(units.count) // units.window
    return windows[units.of]


def measure_mixing(labels: np.ndarray, units: Units, seed: int) -> float:
    """How well the windows of an epoch mix the classes, from 0 to 1.

    It is the mean entropy of the labels of a window, as a share of that of as many samples drawn from all. Units that are
    sorted by class give windows, and so batches, of few classes.

    Args:
        labels: (n,) class indices.
        units: as in `TrainStream`.
        seed: of the order.
    """
    order = order_of_epoch(seed, 0, len(labels), units)
    lengths = np.bincount(_window_of(seed, 0, units))
    drawn = labels[permutation(seed, 0, len(labels))]
    found, possible = (_mean_entropy(each, lengths) for each in (labels[order], drawn))
    return found / possible if possible else 1.0


def _mean_entropy(labels: np.ndarray, lengths: np.ndarray) -> float:
    """Of consecutive parts with these lengths, in nats."""
    entropies = []
    for part in np.split(labels, lengths.cumsum()[:-1]):
        counts = np.bincount(part)
        shares = counts[counts > 0] / len(part)
        entropies.append(-float((shares * np.log(shares)).sum()))
    return float(np.mean(entropies))
