"""How accuracy grows with data or compute: saturating power laws, straight lines in logit, and ratios of compute.

L levels (of training images, or of FLOPs), R draws of the same accuracies, M models. Fits draw curves and give ratios; verdicts
on differences come from `vitrail.evaluation.contrasts` at levels that were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.estimates import Resampled
from vitrail.evaluation.intervals import draw_weights

FEWEST_LEVELS = 5  # for the three parameters of a power law
NEAR_CHANCE = 0.9  # levels with more of the error of chance say nothing about a law
STEEPEST = 2.0  # exponent
FARTHEST = 2.0  # times the largest level: no curve is evaluated beyond
OUTLIER = 0.05  # of the logarithm of the error: larger residuals count less
AT_BOUND = 0.2  # the share of draws with a limit at its bound above which the limit is not known


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """error(x) = limit + scale (x / middle) ** -exponent."""

    limit: float
    scale: float
    exponent: float
    middle: float

    def error(self, x: np.ndarray) -> np.ndarray:
        """The error, a fraction, at levels ``x`` (any shape)."""
        return self.limit + self.scale * (np.asarray(x, dtype=np.float64) / self.middle) ** -self.exponent


@dataclass(frozen=True, kw_only=True)
class LogitLine:
    """logit(1 - error(x)) = height + slope log10(x / middle)."""

    height: float
    slope: float
    middle: float

    def error(self, x: np.ndarray) -> np.ndarray:
        """The error, a fraction, at levels ``x`` (any shape)."""
        return 1 / (1 + np.exp(self.height + self.slope * np.log10(np.asarray(x, dtype=np.float64) / self.middle)))


Law = PowerLaw | LogitLine


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """A law that was fitted to levels, the same law fitted to draws of their accuracies, and why it is of this kind."""

    law: Law
    draws: tuple[Law, ...]
    largest: float
    why: str

    def band(self, x: np.ndarray, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Accuracy, low and high (X,) at ``x`` (X,); NaN beyond `FARTHEST` times the largest level."""
        x = np.asarray(x, dtype=np.float64)
        tail = (1 - level) / 2
        low, high = np.quantile([1 - law.error(x) for law in self.draws], (tail, 1 - tail), axis=0)
        known = np.where(x <= FARTHEST * self.largest, 1.0, np.nan)
        return known * (1 - self.law.error(x)), known * low, known * high


def fit_power_law(x: np.ndarray, error: np.ndarray, *, start: PowerLaw | None = None) -> PowerLaw:
    """The saturating power law through errors (L,) at levels ``x`` (L,), L at least 3.

    The residuals are those of the logarithm of the error, with the loss soft_l1, which limits the weight of an outlier. The
    limit is at least 0 and below the smallest error, the exponent above 0 and at most `STEEPEST`. Of the fits from 16 starts, or
    the one given, the best is kept. The result does not depend on the unit of ``x``.
    """
    from scipy.optimize import least_squares  # a dependency of scikit-learn

    x, error = np.asarray(x, dtype=np.float64), np.asarray(error, dtype=np.float64)
    middle, least = float(np.exp(np.log(x).mean())), float(error.min())
    distance, target = np.log(x / middle), np.log(error)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        limit, log_scale, exponent = parameters
        return np.log(limit + np.exp(log_scale - exponent * distance)) - target

    def slopes(parameters: np.ndarray) -> np.ndarray:
        limit, log_scale, exponent = parameters
        falling = np.exp(log_scale - exponent * distance)  # (L,)
        return np.stack([np.ones_like(falling), falling, -distance * falling], 1) / (limit + falling)[:, None]

    starts = [(share * least, exponent) for share in (0.01, 0.3, 0.6, 0.9) for exponent in (0.1, 0.3, 0.6, 1.2)]
    if start is not None:
        starts = [(min(start.limit, 0.99 * least), start.exponent)]
    bounds = ([0, -np.inf, 1e-6], [least * (1 - 1e-6), np.inf, STEEPEST])
    fits = [
        least_squares(
            residuals,
            (limit, np.log(np.exp(target.mean()) - limit), exponent),
            slopes,
            bounds=bounds,
            loss="soft_l1",
            f_scale=OUTLIER,
            x_scale=(least, 1.0, 1.0),
        )
        for limit, exponent in starts
    ]
    limit, log_scale, exponent = min(fits, key=lambda fit: fit.cost).x
    return PowerLaw(limit=float(limit), scale=float(np.exp(log_scale)), exponent=float(exponent), middle=middle)


def fit_logit_line(x: np.ndarray, error: np.ndarray) -> LogitLine:
    """The straight line of logit accuracy over log10 ``x`` (L,) by least squares, L at least 2."""
    x = np.asarray(x, dtype=np.float64)
    middle = float(np.exp(np.log(x).mean()))
    slope, height = np.polyfit(np.log10(x / middle), logit(1 - np.asarray(error, dtype=np.float64)), 1)
    return LogitLine(height=float(height), slope=float(slope), middle=middle)


def fit_curve(x: np.ndarray, accuracy: np.ndarray, draws: np.ndarray, *, classes: int) -> Curve | None:
    """The law of accuracies (L,) at levels ``x`` (L,), and its uncertainty from ``draws`` (R, L) of the same accuracies.

    A power law where five levels are clearly better than chance and its limit is inside of its bounds in most draws, else a
    straight line in logit. None for fewer than two such levels.
    """
    x, accuracy, draws = (np.asarray(each, dtype=np.float64) for each in (x, accuracy, draws))
    clear = 1 - accuracy < NEAR_CHANCE * (1 - 1 / classes)
    x, error, errors = x[clear], 1 - accuracy[clear], np.clip(1 - draws[:, clear], 1e-6, 1 - 1e-6)
    if len(x) < 2:
        return None
    largest = float(x.max())
    if len(x) >= FEWEST_LEVELS:
        law = fit_power_law(x, error)
        laws = tuple(fit_power_law(x, each, start=law) for each in errors)
        least = errors.min(1)
        limits = np.array([law.limit for law in laws])
        bound = float(((limits < 1e-3 * least) | (limits > (1 - 1e-3) * least)).mean())
        if bound <= AT_BOUND:
            return Curve(law=law, draws=laws, largest=largest, why="")
        why = f"a straight line in logit: the limit of a power law is at its bound in {bound:.0%} of the draws"
    else:
        why = f"a straight line in logit: {len(x)} levels are too few for a power law"
    laws = tuple(fit_logit_line(x, each) for each in errors)
    return Curve(law=fit_logit_line(x, np.clip(error, 1e-6, 1 - 1e-6)), draws=laws, largest=largest, why=why)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputeRatio:
    """How many times less compute the first of two families needs than the second for the same accuracy.

    Attributes:
        ratio: at any accuracy, from lines of one slope.
        slope: the growth of logit accuracy with the natural logarithm of FLOPs, of both.
        slopes: of each family alone.
        same_slope: the p-value of the F test that the slopes are equal.
        frontiers: the ratio at the middle of the accuracies that both reach, interpolated; NaN where they do not overlap.
    """

    ratio: Resampled
    slope: float
    slopes: tuple[float, float]
    same_slope: float
    frontiers: float


def compare_compute(
    flops: np.ndarray,
    logits: np.ndarray,
    first: np.ndarray,
    *,
    draws: np.ndarray | None = None,
    seed: int = 0,
    resamples: int = 10_000,
) -> ComputeRatio:
    """The ratio of FLOPs at equal accuracy from lines logit = height of the family + slope log FLOPs.

    Args:
        flops: of M models.
        logits: of their accuracies, (M,).
        first: whether a model is of the first family, (M,); each family has two models or more.
        draws: (R, M) of the same logits, with the uncertainty of each; by default the models are resampled instead, within
            their families.
    """
    x, first = np.log(np.asarray(flops, dtype=np.float64)), np.asarray(first, dtype=bool)
    logits = np.asarray(logits, dtype=np.float64)
    families = (first, ~first)
    if draws is None:
        weights = np.zeros((resamples, len(x)))
        for number, family in enumerate(families):
            parts = draw_weights(int(family.sum()), seed=seed + number, resamples=resamples)
            weights[:, family] = np.concatenate(list(parts))
        ratios = _ratios(x, np.broadcast_to(logits, weights.shape), weights, families)
    else:
        ratios = _ratios(x, draws, np.ones_like(draws), families)
    one = np.ones((1, len(x)))
    slopes = tuple(float(np.polyfit(x[family], logits[family], 1)[0]) for family in families)
    return ComputeRatio(
        ratio=Resampled(value=float(_ratios(x, logits[None], one, families)[0]), draws=ratios),
        slope=float(_common_slope(x, logits[None], one, families)[0]),
        slopes=(slopes[0], slopes[1]),
        same_slope=_test_equal_slopes(x, logits, families),
        frontiers=compare_frontiers(np.exp(x), logits, first),
    )


def compare_frontiers(flops: np.ndarray, logits: np.ndarray, first: np.ndarray) -> float:
    """The ratio of FLOPs of the second to the first family at the middle of the accuracies (M,) that both frontiers reach.

    A frontier is what no cheaper model of the family beats; between its models log FLOPs are interpolated by PCHIP.
    """
    frontiers = [_frontier(np.log(flops[family]), logits[family]) for family in (first, ~first)]
    low = max(float(heights.min()) for _, heights in frontiers)
    high = min(float(heights.max()) for _, heights in frontiers)
    if low >= high:
        return np.nan
    cheap, dear = (_interpolate(heights, costs)((low + high) / 2) for costs, heights in frontiers)
    return float(np.exp(dear - cheap))


def logit(accuracy: np.ndarray) -> np.ndarray:
    """The logarithm of the odds of an accuracy strictly between 0 and 1."""
    return np.log(accuracy / (1 - accuracy))


def _frontier(costs: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The costs and heights of the points that are higher than all that cost less or the same, by cost."""
    order = np.lexsort((-heights, costs))
    costs, heights = costs[order], heights[order]
    best = np.concatenate([[-np.inf], np.maximum.accumulate(heights)[:-1]])
    return costs[heights > best], heights[heights > best]


def _interpolate(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    from scipy.interpolate import PchipInterpolator

    return PchipInterpolator(x, y)


def _centred(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, family: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The means of x and y of a family under weights (R, M), and the sums of products and squares around them: (R,) each."""
    x, y, weights = x[family], y[:, family], weights[:, family]
    total = weights.sum(1)
    mean_x, mean_y = weights @ x / total, (weights * y).sum(1) / total
    from_x, from_y = x - mean_x[:, None], y - mean_y[:, None]
    return mean_x, mean_y, (weights * from_x * from_y).sum(1), (weights * from_x**2).sum(1)


def _common_slope(x: np.ndarray, y: np.ndarray, weights: np.ndarray, families: tuple[np.ndarray, ...]) -> np.ndarray:
    parts = [_centred(x, y, weights, family) for family in families]
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample of one model, many times
        return np.sum([part[2] for part in parts], 0) / np.sum([part[3] for part in parts], 0)


def _ratios(x: np.ndarray, y: np.ndarray, weights: np.ndarray, families: tuple[np.ndarray, ...]) -> np.ndarray:
    """exp of the distance between two lines along log FLOPs, (R,); NaN where the slope is not positive."""
    slope = _common_slope(x, y, weights, families)
    (x1, y1, *_), (x2, y2, *_) = (_centred(x, y, weights, family) for family in families)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(slope > 0, np.exp((y1 - y2) / slope - (x1 - x2)), np.nan)


def _test_equal_slopes(x: np.ndarray, y: np.ndarray, families: tuple[np.ndarray, ...]) -> float:
    """The p-value of the F test of one slope against one for each family; NaN without degrees of freedom."""
    from scipy.special import fdtrc

    one = np.ones((1, len(x)))
    parts = [_centred(x, y[None], one, family) for family in families]
    squares = [float(((y[family] - y[family].mean()) ** 2).sum()) for family in families]
    separate = sum(total - float(part[2][0] ** 2 / part[3][0]) for total, part in zip(squares, parts))
    common = sum(squares) - float(sum(part[2][0] for part in parts) ** 2 / sum(part[3][0] for part in parts))
    freedom = len(x) - 2 * len(families)
    return (
        float(fdtrc(len(families) - 1, freedom, (common - separate) / (separate / freedom))) if freedom > 0 else np.nan
    )
