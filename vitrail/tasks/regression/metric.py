"""The metric of numbers: how far the answers are off, and how much of the variance they explain, in float64.

N images, R resamples of them, K numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.tasks.metric import Figures, Metric, as_array, divide

Array = NDArray[np.float64]


class NumberMetric(Metric):
    """Of numbers with names. The first figure, ``r2``, is the mean over the numbers, as their units may differ."""

    resamples = 10_000
    _parts: list[tuple[Array, Array]]  # answers and targets, (B, K) each

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        self._parts.append((as_array(outputs).astype(np.float64), as_array(targets).astype(np.float64)))
        self.keys.extend(keys)

    @property
    def predicted(self) -> Array:
        """(N, K)"""
        return self._join(0)

    @property
    def targets(self) -> Array:
        """(N, K)"""
        return self._join(1)

    @property
    def errors(self) -> Array:
        """(N, K) answers minus targets."""
        return self.predicted - self.targets

    def compute(self) -> Figures:
        """``r2 mae rmse``; of several numbers the mean ``r2``, then ``NAME_r2``, ``NAME_mae`` and ``NAME_rmse`` of each.

        R2 is 1 for answers without errors, 0 for the mean of these images as the answer to all; NaN where all have one number.
        """
        figures = self.resample(np.ones((1, len(self.keys)), np.int64))
        return {name: float(value[0]) for name, value in figures.items()}

    def resample(self, weights: NDArray[np.int64]) -> dict[str, Array]:
        errors, targets = self.errors, self.targets - self.targets.mean(0)
        shares = weights / weights.sum(1, keepdims=True)  # (R, N)
        squares = shares @ errors**2  # (R, K)
        variance = shares @ targets**2 - (shares @ targets) ** 2
        # of equal numbers rounding leaves a rest
        variance[variance <= 1e-12 * np.square(targets).max(0, initial=0)] = 0
        columns = {"r2": 1 - divide(squares, variance), "mae": shares @ np.abs(errors), "rmse": np.sqrt(squares)}
        if len(self.names) == 1:
            return {name: values[:, 0] for name, values in columns.items()}
        named = {
            f"{name}_{figure}": values[:, k] for k, name in enumerate(self.names) for figure, values in columns.items()
        }
        return {"r2": columns["r2"].mean(1), **named}

    def explain_failure(self, figures: Mapping[str, float]) -> str:
        if figures.get("r2_low", figures["r2"]) > 0:
            return ""
        return (
            "The model is not shown to be better than the mean of these images as the answer to all (R2 0): train for longer, "
            "from pre-trained weights, or on more images."
        )

    def worst(self, most: int) -> NDArray[np.int64]:
        """Indices of the images with the largest errors, worst first; those of several numbers are divided by their std."""
        std = self.targets.std(0)
        scaled = self.errors / np.where(std > 0, std, 1)
        return np.argsort(-np.square(scaled).sum(1), kind="stable")[:most]

    def answers(self) -> list[dict[str, Any]]:
        """A row for each image: ``path``, then ``true_NAME`` and ``predicted_NAME`` of each number."""
        rows = zip(self.keys, self.targets.tolist(), self.predicted.tolist())
        return [
            {"path": key, **{f"{kind}_{name}": each[k] for k, name in enumerate(self.names) for kind, each in pair}}
            for key, true, predicted in rows
            for pair in [(("true", true), ("predicted", predicted))]
        ]
