"""Weighted differences between the mean accuracies of trainings that were repeated with several seeds.

C cells (a training's settings, each repeated), S seeds of a cell, N images, which all trainings are tested on. A study has many
cells of few seeds each, so the variance between seeds is estimated from all cells of an experiment together. That needs far
fewer seeds than judging each pair of cells alone: with three seeds the intervals are about a third narrower than those of
`vitrail.evaluation.intervals.crossed_bootstrap`, which also counts the noise of seeds within images twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitrail.evaluation.estimates import LEVEL, POWER, Part, Student

Scale = Literal["points", "logit"]
UNEQUAL = 0.01  # the level of Bartlett's test
IMAGE_SPREAD = 0.12  # sd over images of the difference of two cells' chances of being right, as found on CIFAR-10


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """The variance of a training's accuracy between seeds. Cells that share one object have one estimate in common."""

    variance: float
    freedom: int


def pool_spreads(cells: Sequence[np.ndarray]) -> tuple[Spread, ...]:
    """The spread of every cell (S, N) of one experiment and one size of the training set: one for all of them.

    If Bartlett's test rejects equal variances at the level `UNEQUAL`, each cell with two seeds or more has its own; a cell with
    one seed has the pooled one. Without any cell of two seeds the variance is NaN.
    """
    means = [np.asarray(cell, dtype=np.float64).mean(1) for cell in cells]
    freedoms = np.array([len(each) - 1 for each in means])
    variances = np.array([each.var(ddof=1) if len(each) > 1 else 0.0 for each in means])
    if not freedoms.any():
        return (Spread(variance=np.nan, freedom=0),) * len(cells)
    pooled = Spread(variance=float(freedoms @ variances / freedoms.sum()), freedom=int(freedoms.sum()))
    images = min((cell.shape[1] for cell in cells), default=1)
    rounding = 1 / (12 * images**2)  # an accuracy is a multiple of 1 / N
    if not compare_variances(np.maximum(variances, rounding), freedoms) < UNEQUAL:
        return (pooled,) * len(cells)
    return tuple(
        Spread(variance=float(variance), freedom=int(freedom)) if freedom else pooled
        for variance, freedom in zip(variances, freedoms)
    )


def compare_variances(variances: np.ndarray, freedoms: np.ndarray) -> float:
    """The p-value of Bartlett's test (1937) that variances (C,), with their degrees of freedom, are equal; NaN for one."""
    from scipy.stats import chi2

    variances, freedoms = variances[freedoms > 0], freedoms[freedoms > 0]
    if len(variances) < 2:
        return np.nan
    total = freedoms.sum()
    statistic = total * np.log(freedoms @ variances / total) - freedoms @ np.log(variances)
    correction = 1 + ((1 / freedoms).sum() - 1 / total) / (3 * (len(variances) - 1))
    return float(chi2.sf(statistic / correction, len(variances) - 1))


def contrast(
    cells: Sequence[np.ndarray],
    weights: Sequence[float],
    spreads: Sequence[Spread] | None = None,
    *,
    scale: Scale = "points",
) -> Student:
    """The sum of ``weights`` times the accuracies of ``cells``, with the variance that seeds and images give it.

    The part of the seeds is the sum of w^2 s^2 / S over cells, where s^2 comes from ``spreads``. The part of the images is the
    variance over images of the weighted sum of the cells' means, of which the noise that the seeds leave in those means is
    taken off, divided by N. Seeds are counted as independent between cells, which is safe if they share data or order.

    Args:
        cells: (S, N) each, 0 or 1 for an image that is wrong or right (or chances in between); S may differ.
        weights: one for each cell, which add up to 0 for a difference.
        spreads: of the same cells, from `pool_spreads` over all cells of the experiment; by default of these cells.
        scale: ``logit`` takes the logit of each accuracy, its variance by the delta method.
    """
    cells = [np.asarray(cell, dtype=np.float64) for cell in cells]
    spreads = pool_spreads(cells) if spreads is None else spreads
    images = cells[0].shape[1]
    accuracies = np.array([cell.mean() for cell in cells])
    values, slopes = (accuracies, np.ones(len(cells))) if scale == "points" else _logit(accuracies, images)
    steep = np.asarray(weights, dtype=np.float64) * slopes  # weights of accuracies: the derivatives of the sum
    counts = np.array([len(cell) for cell in cells])
    parts: dict[Spread, float] = {}
    for spread, variance in zip(spreads, steep**2 / counts):
        parts[spread] = parts.get(spread, 0.0) + float(variance) * spread.variance
    over_images = sum(weight * cell.mean(0) for weight, cell in zip(steep, cells))  # (N,)
    noise = sum(
        weight**2 * float(cell.var(0, ddof=1).mean()) / len(cell) for weight, cell in zip(steep, cells) if len(cell) > 1
    )
    part = max(float(np.var(over_images, ddof=1)) - noise, 0.0) / images
    if part == 0 and not any(parts.values()):  # identical predictions: as if they differed on one image
        part = float(np.abs(steep).max() / images) ** 2
    return Student(
        value=float(np.asarray(weights) @ values),
        seeds=tuple(Part(variance, spread.freedom) for spread, variance in parts.items()),
        images=Part(part, images - 1),
    )


def draw_accuracies(
    cells: Sequence[np.ndarray], spreads: Sequence[Spread], *, seed: int = 0, resamples: int = 1000
) -> np.ndarray:
    """Accuracies (R, C) of ``cells`` as other seeds and other images might have given them, with the variance of `contrast`.

    The images are common to all cells, so that their part is a covariance between cells.
    """
    cells = [np.asarray(cell, dtype=np.float64) for cell in cells]
    images, counts = cells[0].shape[1], np.array([len(cell) for cell in cells])
    means = np.stack([cell.mean(0) for cell in cells])  # (C, N)
    noise = [float(cell.var(0, ddof=1).mean()) / len(cell) if len(cell) > 1 else 0.0 for cell in cells]
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(means)) - np.diag(noise))
    generator = np.random.default_rng(seed)
    draws = (
        means.mean(1)
        + generator.normal(size=(resamples, len(cells))) @ (vectors * np.sqrt(np.maximum(values, 0) / images)).T
    )  # (R, C)
    for spread in dict.fromkeys(spreads):
        own = np.array([each is spread for each in spreads])
        scale = np.sqrt(spread.variance * spread.freedom / generator.chisquare(max(spread.freedom, 1), (resamples, 1)))
        draws[:, own] += scale * generator.normal(size=(resamples, int(own.sum()))) / np.sqrt(counts[own])
    return np.clip(draws, 0.5 / images, 1 - 0.5 / images)


def expect_difference(sd: float, *, seeds: int, images: int, cells: int, spread: float = IMAGE_SPREAD) -> Student:
    """The difference of two cells as a study that is being planned would estimate it; its value is 0.

    Args:
        sd: the standard deviation of a training's accuracy between seeds.
        cells: of the experiment; their spreads are pooled.
        spread: the standard deviation over images of the difference of two cells' chances of being right.
    """
    return Student(
        value=0.0,
        seeds=(Part(2 * sd**2 / seeds, max(cells * (seeds - 1), 1)),),
        images=Part(spread**2 / images, images - 1),
    )


def smallest_detectable(sd: float, *, seeds: int, images: int, cells: int, power: float = POWER) -> float:
    """The smallest difference of two cells that a share ``power`` of such studies would see; see `expect_difference`."""
    return expect_difference(sd, seeds=seeds, images=images, cells=cells).detectable(level=LEVEL, power=power)


def _logit(accuracies: np.ndarray, images: int) -> tuple[np.ndarray, np.ndarray]:
    """The logits of accuracies (C,) of ``images`` images and their derivatives, half an image away from 0 and 1."""
    shares = np.clip(accuracies, 0.5 / images, 1 - 0.5 / images)
    return np.log(shares / (1 - shares)), 1 / (shares * (1 - shares))
