"""Figures with their uncertainty, and weighted differences of mean accuracies of trials that were repeated with several seeds.

C groups (settings, each repeated), S seeds of a group, N images, which all trials are evaluated on. The variance
between seeds is estimated from all groups of an experiment together: with three seeds the intervals are about a third narrower
than those of `vitrail.evaluation.intervals.two_way_interval`, which also counts the noise of seeds within images twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from vitrail.evaluation.intervals import bound_proportion

LEVEL, POWER = 0.95, 0.8


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
        return sum(part.variance for part in (*self.seeds, self.images)) ** 0.5

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom; infinite if the variance is 0, NaN if a part of it is unknown."""
        parts = (part for part in (*self.seeds, self.images) if part.variance)
        squares = sum(part.variance**2 / (part.freedom or np.nan) for part in parts)
        return self.error**4 / squares if squares else np.inf

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """Returns the interval (low, high); NaN if the variance is unknown."""
        half = self.quantile((1 + level) / 2) * self.error
        return self.value - half, self.value + half

    def detectable(self, level: float = LEVEL) -> float:
        """Returns the smallest true difference from 0 whose interval excludes 0 in a share `POWER` of studies of this size."""
        return (self.quantile((1 + level) / 2) + self.quantile(POWER)) * self.error

    def quantile(self, share: float) -> float:
        from scipy.special import ndtri, stdtrit  # a dependency of scikit-learn; scipy.stats takes 50 times as long

        return float(ndtri(share) if np.isinf(self.freedom) else stdtrit(self.freedom, share))

    def with_seeds(self, before: int, after: int) -> Student:
        """Returns the same figure as expected from ``after`` seeds, given that this one has ``before`` (2 or more)."""
        more, freer = before / after, (after - 1) / (before - 1)
        return replace(
            self, seeds=tuple(VariancePart(part.variance * more, part.freedom * freer) for part in self.seeds)
        )


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


Estimate = Student | Proportion  # a figure: its value, and an interval at any level
Scale = Literal["points", "logit"]
# what a plan expects until there is a study to take it from: the sd of the accuracy of one short training between seeds, and the
# sd over images of the difference of two groups' chances of being right, as found on CIFAR-10
SEED_SPREAD, IMAGE_SPREAD = 0.006, 0.12


def pool_variance(groups: Sequence[np.ndarray]) -> VariancePart:
    """Returns the variance between seeds of a trial's accuracy, pooled over groups (S, N); NaN without any of two seeds."""
    means = [np.asarray(group, dtype=np.float64).mean(1) for group in groups]
    freedom = sum(len(each) - 1 for each in means)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in means)
    return VariancePart(squares / freedom if freedom else np.nan, freedom)


def contrast(
    groups: Sequence[np.ndarray], weights: Sequence[float], spreads: Sequence[VariancePart], scale: Scale = "points"
) -> Student:
    """Returns the sum of ``weights`` times the accuracies of ``groups``, with the variance that seeds and images give it.

    The part of the seeds is the sum of w^2 s^2 / S over groups, where s^2 comes from ``spreads``. The part of the images is the
    variance over images of the weighted sum of the groups' means, of which the noise that the seeds leave in those means is
    taken off, divided by N. Seeds are counted as independent between groups, which is safe if they share data or order.

    Args:
        groups: (S, N) each, 0 or 1 for an image that is wrong or right (or chances in between); S may differ.
        weights: one for each group, which add up to 0 for a difference.
        spreads: of the same groups, from `pool_variance` over those of the experiment with as many training images.
        scale: ``logit`` takes the logit of each accuracy, its variance by the delta method.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in groups]
    images = groups[0].shape[1]
    accuracies = np.array([group.mean() for group in groups])
    values, slopes = accuracies, np.ones(len(groups))
    if scale == "logit":
        shares = np.clip(accuracies, 0.5 / images, 1 - 0.5 / images)  # half an image away from 0 and 1
        values, slopes = np.log(shares / (1 - shares)), 1 / (shares * (1 - shares))
    steep = np.asarray(weights, dtype=np.float64) * slopes  # weights of accuracies: the derivatives of the sum
    counts = np.array([len(group) for group in groups])
    shared = {id(spread): spread for spread in spreads}  # groups with one object have one estimate in common
    parts = dict.fromkeys(shared, 0.0)
    for spread, variance in zip(spreads, steep**2 / counts):
        parts[id(spread)] += float(variance) * spread.variance
    over_images = sum(weight * group.mean(0) for weight, group in zip(steep, groups))  # (N,)
    repeated = [(weight, group) for weight, group in zip(steep, groups) if len(group) > 1]
    noise = sum(weight**2 * float(group.var(0, ddof=1).mean()) / len(group) for weight, group in repeated)
    part = max(float(np.var(over_images, ddof=1)) - noise, 0.0) / images
    if part == 0 and not any(parts.values()):  # identical predictions: as if they differed on one image
        part = float(np.abs(steep).max() / images) ** 2
    return Student(
        value=float(np.asarray(weights) @ values),
        seeds=tuple(VariancePart(variance, shared[key].freedom) for key, variance in parts.items()),
        images=VariancePart(part, images - 1),
    )


def expect_difference(*, seeds: int, images: int, groups: int) -> Student:
    """Returns the difference of two of the ``groups`` of an experiment as a study that is being planned would estimate it; its
    value is 0.
    """
    return Student(
        value=0.0,
        seeds=(VariancePart(2 * SEED_SPREAD**2 / seeds, max(groups * (seeds - 1), 1)),),
        images=VariancePart(IMAGE_SPREAD**2 / images, images - 1),
    )
