"""Figures with their uncertainty, and weighted differences of mean accuracies of trials that were repeated with several seeds.

C groups (settings, each repeated), S seeds of a group, N images, which all trials are evaluated on, R resamples. A study has many
groups of few seeds each, so the variance between seeds is estimated from all groups of an experiment together. That needs far
fewer seeds than comparing each pair alone: with three seeds the intervals are about a third narrower than those of
`vitrail.evaluation.intervals.two_way_interval`, which also counts the noise of seeds within images twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from vitrail.evaluation.intervals import bound_percentiles, bound_proportion

LEVEL, POWER = 0.95, 0.8


class Estimate(Protocol):
    """A figure: its value, and an interval at any level; wider levels contain narrower ones."""

    @property
    def value(self) -> float: ...

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """(low, high) at this level of confidence; NaN if the uncertainty is unknown."""
        ...


class VariancePart(NamedTuple):
    """An independent part of the variance of a figure, and the degrees of freedom of its estimate."""

    variance: float
    freedom: float


@dataclass(frozen=True, kw_only=True)
class Student:
    """A figure whose variance is a sum of parts: those that fall with more seeds, and one that falls with more images.

    Its interval uses Student's quantile with the degrees of freedom of Satterthwaite (1946).
    """

    value: float
    seeds: tuple[VariancePart, ...]
    images: VariancePart = VariancePart(0.0, np.inf)

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
        """Returns the smallest true difference from 0 whose interval excludes 0 in a share ``power`` of studies of this size."""
        return (self.quantile((1 + level) / 2) + self.quantile(power)) * self.error

    def quantile(self, share: float) -> float:
        """Returns the quantile of Student's distribution with these degrees of freedom."""
        from scipy.special import ndtri, stdtrit  # a dependency of scikit-learn; scipy.stats takes 50 times as long

        return float(ndtri(share) if np.isinf(self.freedom) else stdtrit(self.freedom, share))

    def with_seeds(self, before: int, after: int) -> Student:
        """Returns the same figure as expected from ``after`` seeds, given that this one has ``before`` (2 or more)."""
        return replace(
            self,
            seeds=tuple(
                VariancePart(part.variance * before / after, part.freedom * (after - 1) / (before - 1))
                for part in self.seeds
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


@dataclass(frozen=True)
class Proportion:
    """A share of trials with the exact interval of a binomial proportion."""

    hits: int
    count: int

    @property
    def value(self) -> float:
        return self.hits / self.count

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        return bound_proportion(self.hits, self.count, level=level)


Scale = Literal["points", "logit"]
UNEQUAL = 0.01  # the level of Bartlett's test
IMAGE_SPREAD = 0.12  # sd over images of the difference of two groups' chances of being right, as found on CIFAR-10


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """The variance of a trial's accuracy between seeds. Groups that share one object have one estimate in common."""

    variance: float
    freedom: int


def pool_spreads(groups: Sequence[np.ndarray]) -> tuple[Spread, ...]:
    """Returns the spread of every group (S, N) of one experiment and one size of the training set: one for all of them.

    If Bartlett's test rejects equal variances at the level `UNEQUAL`, each group with two seeds or more has its own; a group with
    one seed has the pooled one. Without any group of two seeds the variance is NaN.
    """
    means = [np.asarray(group, dtype=np.float64).mean(1) for group in groups]
    freedoms = np.array([len(each) - 1 for each in means])
    variances = np.array([each.var(ddof=1) if len(each) > 1 else 0.0 for each in means])
    if not freedoms.any():
        return (Spread(variance=np.nan, freedom=0),) * len(groups)
    pooled = Spread(variance=float(freedoms @ variances / freedoms.sum()), freedom=int(freedoms.sum()))
    images = min((group.shape[1] for group in groups), default=1)
    rounding = 1 / (12 * images**2)  # an accuracy is a multiple of 1 / N
    if not compare_variances(np.maximum(variances, rounding), freedoms) < UNEQUAL:
        return (pooled,) * len(groups)
    return tuple(
        Spread(variance=float(variance), freedom=int(freedom)) if freedom else pooled
        for variance, freedom in zip(variances, freedoms)
    )


def compare_variances(variances: np.ndarray, freedoms: np.ndarray) -> float:
    """Returns the p-value of Bartlett's test (1937) that variances (C,) of these ``freedoms`` are equal; NaN for one."""
    from scipy.stats import chi2

    variances, freedoms = variances[freedoms > 0], freedoms[freedoms > 0]
    if len(variances) < 2:
        return np.nan
    total = freedoms.sum()
    statistic = total * np.log(freedoms @ variances / total) - freedoms @ np.log(variances)
    correction = 1 + ((1 / freedoms).sum() - 1 / total) / (3 * (len(variances) - 1))
    return float(chi2.sf(statistic / correction, len(variances) - 1))


def contrast(
    groups: Sequence[np.ndarray],
    weights: Sequence[float],
    spreads: Sequence[Spread] | None = None,
    *,
    scale: Scale = "points",
) -> Student:
    """Returns the sum of ``weights`` times the accuracies of ``groups``, with the variance that seeds and images give it.

    The part of the seeds is the sum of w^2 s^2 / S over groups, where s^2 comes from ``spreads``. The part of the images is the
    variance over images of the weighted sum of the groups' means, of which the noise that the seeds leave in those means is
    taken off, divided by N. Seeds are counted as independent between groups, which is safe if they share data or order.

    Args:
        groups: (S, N) each, 0 or 1 for an image that is wrong or right (or chances in between); S may differ.
        weights: one for each group, which add up to 0 for a difference.
        spreads: of the same groups, from `pool_spreads` over all groups of the experiment; by default of these groups.
        scale: ``logit`` takes the logit of each accuracy, its variance by the delta method.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in groups]
    spreads = pool_spreads(groups) if spreads is None else spreads
    images = groups[0].shape[1]
    accuracies = np.array([group.mean() for group in groups])
    values, slopes = accuracies, np.ones(len(groups))
    if scale == "logit":
        shares = np.clip(accuracies, 0.5 / images, 1 - 0.5 / images)  # half an image away from 0 and 1
        values, slopes = np.log(shares / (1 - shares)), 1 / (shares * (1 - shares))
    steep = np.asarray(weights, dtype=np.float64) * slopes  # weights of accuracies: the derivatives of the sum
    counts = np.array([len(group) for group in groups])
    parts: dict[Spread, float] = {}
    for spread, variance in zip(spreads, steep**2 / counts):
        parts[spread] = parts.get(spread, 0.0) + float(variance) * spread.variance
    over_images = sum(weight * group.mean(0) for weight, group in zip(steep, groups))  # (N,)
    noise = sum(
        weight**2 * float(group.var(0, ddof=1).mean()) / len(group)
        for weight, group in zip(steep, groups)
        if len(group) > 1
    )
    part = max(float(np.var(over_images, ddof=1)) - noise, 0.0) / images
    if part == 0 and not any(parts.values()):  # identical predictions: as if they differed on one image
        part = float(np.abs(steep).max() / images) ** 2
    return Student(
        value=float(np.asarray(weights) @ values),
        seeds=tuple(VariancePart(variance, spread.freedom) for spread, variance in parts.items()),
        images=VariancePart(part, images - 1),
    )


def expect_difference(sd: float, *, seeds: int, images: int, groups: int, spread: float = IMAGE_SPREAD) -> Student:
    """Returns the difference of two groups as a study that is being planned would estimate it; its value is 0.

    Args:
        sd: the standard deviation of a trial's accuracy between seeds.
        groups: of the experiment; their spreads are pooled.
        spread: the standard deviation over images of the difference of two groups' chances of being right.
    """
    return Student(
        value=0.0,
        seeds=(VariancePart(2 * sd**2 / seeds, max(groups * (seeds - 1), 1)),),
        images=VariancePart(spread**2 / images, images - 1),
    )
