"""How sure a figure is: bootstrap intervals of a mean over images, and of the difference of two models on them.

N images, R resamples, U distinct values, S draws of whatever else is random.
"""

from __future__ import annotations

import numpy as np

RESAMPLES = 10_000
CELLS = 4_000_000  # counts held in memory at one time


def bootstrap(
    values: np.ndarray, *, seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The percentile interval of the mean of ``values`` (N,) (Efron and Tibshirani 1993, chapter 13).

    Where all values are equal (every image right) it has no width, which says more than the images do.

    Returns:
        (low, high), the same for the same values in any order; NaN for no values.
    """
    assert 0 < level < 1, f"level {level}"
    if not len(values):
        return float("nan"), float("nan")
    tail = (1 - level) / 2
    low, high = np.quantile(resampled_means(values, seed=seed, resamples=resamples), (tail, 1 - tail))
    return float(low), float(high)


def paired_difference(
    first: np.ndarray, second: np.ndarray, *, seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """The mean of ``first - second``, (N,) each on the same images in the same order, and its interval.

    An interval without 0 in it says that the images tell the two apart.

    Returns:
        (difference, low, high).
    """
    assert len(first) == len(second), f"{len(first)} values against {len(second)}"
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    mean = float(difference.mean()) if len(difference) else float("nan")
    return mean, *bootstrap(difference, seed=seed, level=level, resamples=resamples)


def crossed(values: np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """The interval of the mean of ``values`` (S, N), whose rows are random draws and whose columns are images.

    Both are samples: other images and other draws would give another mean. Its variance is that of the mean over images plus
    that of the mean over draws, each estimated from its own means, as in a two-way layout with random effects (with few draws
    resampling them, as in Owen 2007, The pigeonhole bootstrap, would come out narrower), and the quantile is Student's, of
    Satterthwaite's degrees of freedom. It is approximate: simulated with three to five draws, 95 % intervals held the true mean
    in 93 to 94 % of cases. One draw says nothing about others: there the interval is the `bootstrap` over images.

    Returns:
        (low, high); NaN for no values.
    """
    values = np.asarray(values, dtype=np.float64)
    draws, images = values.shape
    if draws == 1 or images < 2:
        return bootstrap(values.mean(0), level=level)
    from scipy.stats import t  # scikit-learn brings scipy

    parts = np.array([values.mean(1).var(ddof=1) / draws, values.mean(0).var(ddof=1) / images])  # (2,)
    mean, variance = float(values.mean()), float(parts.sum())
    if variance == 0:
        return mean, mean
    freedom = variance**2 / (parts**2 / (draws - 1, images - 1)).sum()
    half = float(t.ppf((1 + level) / 2, freedom)) * variance**0.5
    return mean - half, mean + half


def resampled_means(values: np.ndarray, *, seed: int, resamples: int) -> np.ndarray:
    """Means of ``resamples`` draws of N from ``values`` (N,) with replacement: (R,).

    How often each distinct value is drawn is multinomial, so a right-or-wrong figure costs R draws for any N.
    """
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)  # (U,) each
    generator = np.random.default_rng(seed)
    rows = max(CELLS // len(distinct), 1)
    parts = [
        generator.multinomial(len(values), counts / len(values), size=min(rows, resamples - done)) @ distinct
        for done in range(0, resamples, rows)
    ]
    return np.concatenate(parts) / len(values)
