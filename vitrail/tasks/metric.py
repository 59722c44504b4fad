"""Metrics of a task: they gather what they need of each batch, and turn it into figures. Functions that several of them use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames

Targets = Any  # a task's own: a tensor with the images first, or a tuple of such
Figures = dict[str, float]
Values = np.ndarray | Tensor
Rows = list[tuple[str, ...]]  # of a table


class Metric(ABC):
    """Gathers what an evaluation needs of each batch, and turns it into figures. Parts of a data set can be merged."""

    higher_is_better: ClassVar[bool] = True  # of the first figure
    summary: ClassVar[tuple[str, ...]] = ()  # the figures of an evaluation during training, by default all
    resamples: ClassVar[int] = 0  # how many samples `resample` is asked for; 0 where it gives nothing

    def __init__(self) -> None:
        self.keys: list[str] = []  # of the images that were added
        self._parts: list[Any] = []  # what `update` keeps, in the order of the keys

    @abstractmethod
    def update(self, outputs: Tensor, targets: Targets, keys: Sequence[str], frames: Frames | None = None) -> None:
        """Adds a batch: what the model gave, what is true, the names of the images, and what they show of their pictures."""

    def merge(self, other: Self) -> None:
        """Adds what ``other`` gathered, as if its batches had come after one's own."""
        self.keys.extend(other.keys)
        self._parts += other._parts

    def _join(self, column: int) -> np.ndarray:
        return np.concatenate([part[column] for part in self._parts])

    @abstractmethod
    def compute(self) -> Figures:
        """Every figure of an evaluation, the most important one first."""

    def samples(self) -> NDArray[np.float64] | None:
        """One value an image, of which the first figure is the mean, for its interval; None where it is no such mean."""
        return None

    def resample(self, weights: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Figures (R,) of samples drawn from the images with replacement, for intervals where they are no means over images.

        ``weights`` (R, N) say how often each image is in each sample.
        """
        return {}

    def summarize(self) -> Figures:
        """The few figures of an evaluation during training, the most important one first."""
        figures = self.compute()
        return {name: figures[name] for name in self.summary or figures}

    def explain_failure(self, figures: Figures) -> str:
        """A sentence on a model that has learned nothing, by the ``figures`` with their intervals; else empty."""
        return ""

    def describe(self, index: int) -> tuple[str, str, float] | None:
        """The true and the predicted class of an image, and the score of the latter; None where an answer is no class."""
        return None

    def answers(self) -> list[dict[str, Any]]:
        """A row for each image: ``path``, ``true``, ``label`` and ``score``; empty where an answer is no class."""
        rows = ((key, self.describe(index)) for index, key in enumerate(self.keys))
        return [dict(zip(("path", "true", "label", "score"), (key, *row))) for key, row in rows if row]

    def table(self) -> tuple[list[str], Rows]:
        """A table for people, its head and its rows; empty where the task has none."""
        return [], []


def confusion(predicted: Values, targets: Values, classes: int) -> np.ndarray:
    """The confusion matrix (K, K) from indices (N,), (N,): rows are true classes, columns predictions."""
    places = as_array(targets) * classes + as_array(predicted)
    return np.bincount(places, minlength=classes**2).reshape(classes, classes)


def as_array(values: Values) -> np.ndarray:
    """Convert a tensor of any device and precision to an array; arrays are returned unchanged."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()


def write_percent(share: float) -> str:
    """A share as the cell of a table in percent; a dash where it is not defined."""
    return "–" if np.isnan(share) else f"{100 * share:.1f}"


def divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """The quotient, NaN if the divisor is 0."""
    return np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom != 0)


def mean_of_defined(values: np.ndarray) -> float:
    """Returns the mean without NaN; NaN if there is nothing else."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
