"""A figure with its uncertainty: from variances with Student's distribution, or from values in resamples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from vitrail.evaluation.intervals import bound_percentiles

LEVEL, POWER = 0.95, 0.8


class Estimate(Protocol):
    """What a verdict needs of a figure: its value, and an interval at any level; wider levels contain narrower ones."""

    @property
    def value(self) -> float: ...

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """(low, high) at this level of confidence; NaN if the uncertainty is unknown."""
        ...


class Part(NamedTuple):
    """An independent part of the variance of a figure, and the degrees of freedom of its estimate."""

    variance: float
    freedom: float


@dataclass(frozen=True, kw_only=True)
class Student:
    """A figure whose variance is a sum of parts: those that fall with more seeds, and one that falls with more images.

    Its interval uses Student's quantile with the degrees of freedom of Satterthwaite (1946).
    """

    value: float
    seeds: tuple[Part, ...]
    images: Part = Part(0.0, np.inf)

    @property
    def error(self) -> float:
        """The standard error."""
        return sum(part.variance for part in (*self.seeds, self.images)) ** 0.5

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom; infinite if the variance is 0, NaN if a part of it is unknown."""
        squares = sum(
            part.variance**2 / (part.freedom or np.nan) for part in (*self.seeds, self.images) if part.variance
        )
        return self.error**4 / squares if squares else np.inf

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """(low, high) at this level of confidence; NaN if the variance is unknown."""
        half = self.quantile((1 + level) / 2) * self.error
        return self.value - half, self.value + half

    def detectable(self, *, level: float = LEVEL, power: float = POWER) -> float:
        """The smallest true difference from 0 whose interval excludes 0 in a share ``power`` of studies of this size."""
        return (self.quantile((1 + level) / 2) + self.quantile(power)) * self.error

    def quantile(self, share: float) -> float:
        """The quantile of Student's distribution with these degrees of freedom."""
        from scipy.special import ndtri, stdtrit  # a dependency of scikit-learn; scipy.stats takes 50 times as long

        return float(ndtri(share) if np.isinf(self.freedom) else stdtrit(self.freedom, share))

    def with_seeds(self, before: int, after: int) -> Student:
        """The same figure as expected from ``after`` seeds, given that this one has ``before`` (2 or more)."""
        return replace(
            self,
            seeds=tuple(
                Part(part.variance * before / after, part.freedom * (after - 1) / (before - 1)) for part in self.seeds
            ),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampled:
    """A figure with its values in resamples, ``draws`` (R,), of which those that are not defined are NaN."""

    value: float
    draws: np.ndarray

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """The percentile interval (low, high) at this level of confidence; NaN if no resample has a value."""
        return bound_percentiles(self.draws, level=level)
