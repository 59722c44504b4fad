"""The result of an evaluation: the figures of a model on a split, with their intervals.

N images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.errors import ConfigError
from vitrail.evaluation.intervals import bound_percentiles, draw_weights, estimate_interval, paired_difference
from vitrail.rows import Scores
from vitrail.tasks.metric import Metric


@dataclass(frozen=True, repr=False)
class EvaluationResult(Scores):
    """The result of evaluating a model on one split; ``metric`` is what the task kept of its images.

    ``seed`` draws the resamples of the interval; ``further`` figures come from elsewhere.
    """

    split: str
    classes: tuple[str, ...]
    metric: Metric
    seed: int = 0
    further: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def figures(self) -> dict[str, float]:
        """Every figure, the most important one first, and the 95 % intervals of those that have one, as ``ap_low``."""
        figures = self.metric.compute()
        samples, first = self.metric.samples(), next(iter(figures))
        if samples is not None:
            figures |= name_ends(first, estimate_interval(samples, seed=self.seed))
        else:
            for name, values in self.resampled.items():
                figures |= name_ends(name, bound_percentiles(values))
        return {**figures, "images": len(self.metric.keys), **self.further}

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """Figures in samples of the images with replacement, (R,) each; empty where the metric has none."""
        weights = draw_weights(len(self.metric.keys), seed=self.seed, resamples=self.metric.resamples)
        parts = [self.metric.resample(part) for part in weights]
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def difference(self, other: EvaluationResult) -> dict[str, float]:
        """Returns by how much figures with an interval exceed those of ``other``, with the 95 % interval of the difference.

        Both are resampled together, as they were evaluated on the same images. An interval without 0 is a significant
        difference.

        Raises:
            ConfigError: they were evaluated on other images, or in another order.
        """
        if self.keys != other.keys:
            raise ConfigError("the two were not evaluated on the same images", "evaluate both on the same split")
        name = next(iter(self.figures))
        own, theirs = self.metric.samples(), other.metric.samples()
        if own is not None and theirs is not None:
            mean, *ends = paired_difference(own, theirs, seed=self.seed)
            return {name: mean, **name_ends(name, ends)}
        drawn = replace(other, seed=self.seed).resampled  # the same samples of the images
        differences: dict[str, float] = {}
        for name, values in self.resampled.items():
            differences[name] = self.figures[name] - other.figures[name]
            differences |= name_ends(name, bound_percentiles(values - drawn[name]))
        return differences

    def to_dict(self) -> dict[str, Any]:
        """Returns the split and every figure; one that is undefined, as the AP of sizes without objects, is None."""
        defined = {name: None if math.isnan(value) else value for name, value in self.figures.items()}
        return {"split": self.split, **defined}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the images (N,)."""
        return tuple(self.metric.keys)

    def per_class(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Returns a table: its head, and a row for each class; empty where the task has none."""
        return self.metric.table()


def name_ends(name: str, ends: Sequence[float]) -> dict[str, float]:
    """Returns the ends of an interval under the name of its figure."""
    return {f"{name}_low": ends[0], f"{name}_high": ends[1]}
