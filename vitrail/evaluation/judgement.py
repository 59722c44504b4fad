"""What a model answered on a split, and how good that was.

N images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vitrail.evaluation.intervals import estimate_interval
from vitrail.rows import Scores
from vitrail.tasks.task import Metric


@dataclass(frozen=True, repr=False)
class Judgement(Scores):
    """A model judged on one split; ``metric`` is what the task kept of its images.

    ``seed`` draws the resamples of the interval; ``further`` figures come from elsewhere.
    """

    split: str
    classes: tuple[str, ...]
    metric: Metric
    seed: int = 0
    further: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def figures(self) -> dict[str, float]:
        """Every figure, the most important one first, with its 95 % interval where it is a mean over images."""
        figures = self.metric.compute()
        samples, first = self.metric.samples(), next(iter(figures))
        if samples is not None:
            figures[f"{first}_low"], figures[f"{first}_high"] = estimate_interval(samples, seed=self.seed)
        return {**figures, "images": len(self.metric.keys), **self.further}

    def to_dict(self) -> dict[str, Any]:
        return {"split": self.split, **self.figures}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the images (N,)."""
        return tuple(self.metric.keys)

    def per_class(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """A table: its head, and a row for each class; empty where the task has none."""
        return self.metric.table()
