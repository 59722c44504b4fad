"""The order of training samples: a pure function of (seed, step), without torch.

The stream is the infinite concatenation of the permutations of all epochs. Step s takes the positions [s B, (s + 1) B),
so a batch may span two epochs, and every batch is full.

Storage that is read in units (row groups of Parquet) is permuted in windows: in every epoch the units are permuted, so many
that follow one another as fit in memory are a window, and the samples of a window are permuted. Otherwise nearly every image
would read a unit anew. Large files that are fetched as a whole (`StoredUnits`) are permuted likewise, one window in memory at a
time, and more samples than `MAX_SORTED` are permuted without any table.

With `Balance` an epoch has n positions, too, but a class is drawn in proportion to the square root of its samples.

Axes: n samples of the source, K classes, B positions of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from vitrail.data.rng import permutation, permute
from vitrail.data.sources.contents import StoredUnits, Units

MEASURED = 8  # windows of stored units whose labels are looked at
MAX_SORTED = 50_000_000  # samples whose permutation is computed as a whole: 0.4 GB


@dataclass(frozen=True, eq=False)
class Balance:
    """Square-root sampling (Mahajan et al. 2018): a class with m samples is drawn in proportion to sqrt(m).

    The samples of a class are drawn in passes, each a permutation of all of them, which go on from one epoch into the next; so
    after any epoch two samples of a class have been drawn equally often, or one of them once more.
    """

    labels: np.ndarray  # (n,) the class of each sample

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The samples of each class that has some."""
        order, counts = np.argsort(self.labels, kind="stable"), np.bincount(self.labels)
        return np.split(order, counts[counts > 0].cumsum()[:-1])

    def count_drawn(self, epochs: int) -> np.ndarray:
        """The samples of each of these classes that so many epochs draw; in one of them at least one of each."""
        ends = np.sqrt([len(samples) for samples in self.members]).cumsum()
        return np.diff(np.rint(ends / ends[-1] * (epochs * len(self.labels))).astype(np.int64), prepend=0)


@dataclass(frozen=True, kw_only=True)
class TrainStream:
    """The order of the samples of a run.

    With ``repeats`` for repeated augmentation (Hoffer et al. 2020; DeiT, section 6), an epoch has n / repeats of the samples,
    each in ``repeats`` views that follow one another, so they are in the same batch.
    """

    images: int  # n; an epoch has n positions for any ``repeats``
    batch: int  # B, of one step
    seed: int
    repeats: int = 1
    units: Units | StoredUnits | None = None  # in which the samples are stored, if they are
    balance: Balance | None = None  # of samples that are not stored in units

    def __post_init__(self) -> None:
        assert min(self.images, self.batch, self.repeats) >= 1, self

    def ids(self, step: int) -> np.ndarray:
        """Epoch, sample and view at each position of a step: (B, 3) int64.

        With `Balance` the view also counts the passes over the samples of a class, so that no two draws of an epoch are alike.
        """
        positions = step * self.batch + np.arange(self.batch)
        epochs, places = np.divmod(positions, self.images)
        ids = np.stack([epochs, np.empty_like(epochs), places % self.repeats], axis=1)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            if self.balance is not None:
                drawn = _balanced_order(self.seed, epoch, self.balance)[places[here] // self.repeats]
                ids[here, 1] = drawn[:, 0]
                ids[here, 2] += self.repeats * drawn[:, 1]
                continue
            ids[here, 1] = self._samples(epoch, places[here] // self.repeats)
        return ids

    def _samples(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The samples at these places of an epoch."""
        if isinstance(self.units, StoredUnits):
            ends = _window_ends(self.seed, epoch, self.units)
            windows = np.searchsorted(ends, places, side="right")
            samples = np.empty_like(places)
            for window in np.unique(windows).tolist():
                here, start = windows == window, int(ends[window - 1]) if window else 0
                samples[here] = _samples_of_window(self.seed, epoch, window, self.units)[places[here] - start]
            return samples
        if self.units is None and self.images > MAX_SORTED:
            return permute(places, self.seed, epoch, self.images, stream="order of many")
        return order_of_epoch(self.seed, epoch, self.images, self.units)[places]

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


@lru_cache(maxsize=2)
def _balanced_order(seed: int, epoch: int, balance: Balance) -> np.ndarray:
    """Sample and pass of every draw of an epoch: (n, 2) int64."""
    draws, bounds = [], zip(balance.count_drawn(epoch).tolist(), balance.count_drawn(epoch + 1).tolist())
    for samples, (start, stop) in zip(balance.members, bounds):
        passes, places = np.divmod(np.arange(start, stop), len(samples))  # (draws,)
        for each in np.unique(passes).tolist():
            order = permutation(seed, each, len(samples), stream=f"class {balance.labels[samples[0]]}")
            places[passes == each] = order[places[passes == each]]
        draws.append(np.stack([samples[places], passes], 1))
    return np.concatenate(draws)[permutation(seed, epoch, len(balance.labels))]


def _window_of(seed: int, epoch: int, units: Units) -> np.ndarray:
    """The window of each sample in an epoch: (n,) int64."""
    windows = np.empty(units.count, np.int64)
    windows[permutation(seed, epoch, units.count, stream="units")] = np.arange(units.count) // units.window
    return windows[units.of]


@lru_cache(maxsize=2)
def _window_ends(seed: int, epoch: int, units: StoredUnits) -> np.ndarray:
    """The place behind each window of an epoch."""
    return np.cumsum([units.counts[window].sum() for window in _windows(seed, epoch, units)])


@lru_cache(maxsize=2)  # a batch spans at most two windows
def _samples_of_window(seed: int, epoch: int, window: int, units: StoredUnits) -> np.ndarray:
    samples = np.concatenate([units.list_items(unit) for unit in _windows(seed, epoch, units)[window].tolist()])
    return samples[permutation(seed, epoch, len(samples), stream=f"window {window}")]


def _windows(seed: int, epoch: int, units: StoredUnits) -> list[np.ndarray]:
    """The units of each window of an epoch; their numbers differ by one at most, so that the last window is no smaller."""
    order = permutation(seed, epoch, len(units.counts), stream="units")
    return np.array_split(order, -(-len(order) // units.window))


def measure_mixing(labels: np.ndarray, units: Units | StoredUnits, seed: int) -> float:
    """How well the windows of an epoch mix the classes ``labels`` (n,), from 0 to 1.

    It is the mean entropy of the labels of a window, as a share of that of as many samples drawn from all. Units that are
    sorted by class give windows, and so batches, of few classes.
    """
    if isinstance(units, StoredUnits):
        lengths = np.diff(_window_ends(seed, 0, units), prepend=0)[:MEASURED]
        order = np.concatenate([_samples_of_window(seed, 0, window, units) for window in range(len(lengths))])
    else:
        order = order_of_epoch(seed, 0, len(labels), units)
        lengths = np.bincount(_window_of(seed, 0, units))
    drawn = labels[permute(np.arange(len(order)), seed, 0, len(labels), stream="drawn")]
    found, possible = (_mean_entropy(each, lengths) for each in (labels[order], drawn))
    return found / possible if possible else 1.0


def _mean_entropy(labels: np.ndarray, lengths: np.ndarray) -> float:
    """Returns the mean entropy of consecutive labels of these lengths, in nats."""
    counts = map(np.bincount, np.split(labels, lengths.cumsum()[:-1]))
    shares = (each[each > 0] / each.sum() for each in counts)
    return float(np.mean([-(each * np.log(each)).sum() for each in shares]))
