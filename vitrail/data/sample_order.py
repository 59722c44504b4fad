"""The order of training samples: a pure function of (seed, step), without torch.

The stream is the infinite concatenation of the permutations of all epochs. Step s takes the positions [s B, (s + 1) B),
so a batch may span two epochs, and every batch is full.

Axes: n samples of the source, B positions of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vitrail.data.rng import permutation


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
    """

    images: int
    batch: int
    seed: int
    repeats: int = 1

    def __post_init__(self) -> None:
        assert min(self.images, self.batch, self.repeats) >= 1, self

    def ids(self, step: int) -> np.ndarray:
        """Epoch, sample and view at each position of a step: (B, 3) int64."""
        positions = step * self.batch + np.arange(self.batch)
        epochs, places = np.divmod(positions, self.images)
        ids = np.stack([epochs, np.empty_like(epochs), places % self.repeats], axis=1)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            ids[here, 1] = _order(self.seed, epoch, self.images)[places[here] // self.repeats]
        return ids

    def steps(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """The ids of the steps from ``start`` to ``stop``, exclusive."""
        return map(self.ids, range(start, stop))

    def steps_for(self, epochs: float) -> int:
        """The number of steps closest to this number of epochs, at least one."""
        return max(round(epochs * self.images / self.batch), 1)


@lru_cache(maxsize=2)  # a batch spans at most two epochs; sorting a million numbers takes 0.1 s
def _order(seed: int, epoch: int, images: int) -> np.ndarray:
    return permutation(seed, epoch, images)
