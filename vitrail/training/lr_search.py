"""Searches for a learning rate (``--tune-lr``, studies): chooses it from losses at a few rates. Nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FACTOR = 2.0  # between two rates around that of a recipe
MAX_ADDED = 2  # rates beyond the first grid


@dataclass(frozen=True)
class RateChoice:
    """The state of a search for a learning rate."""

    best: float | None  # the rate to take, None if no training has converged yet
    is_at_edge: bool  # the best one tried is the smallest or the largest, so that the optimum may lie beyond
    untried: tuple[float, ...] = ()  # the rates to try next; none if enough were tried


def grid_around(rate: float) -> tuple[float, ...]:
    """Returns three rates, a factor `FACTOR` apart, with ``rate`` in the middle."""
    return rate / FACTOR, rate, rate * FACTOR


def choose_rate(losses: Mapping[float, float], grid: Sequence[float]) -> RateChoice:
    """Chooses the learning rate with the smallest loss, for `vitrail train --tune-lr` and for the arms of a study.

    Between rates it is the vertex of the parabola in the logarithm of the rate through the best one and its neighbours, at most
    half a step away from the best one; it is the best one itself if a neighbour diverged. At an edge the grid gets one more rate
    beyond it, `MAX_ADDED` times at most. Rates have four significant digits, so they are the same on every machine.

    Args:
        losses: by rate, lower is better; infinite or NaN for a training that diverged, which is worse than any other.
        grid: two rates or more, which are tried first; all others in ``losses`` were added.
    """
    if missing := tuple(rate for rate in grid if rate not in losses):
        return RateChoice(None, False, missing)
    rates = sorted(losses)
    values = [losses[rate] if math.isfinite(losses[rate]) else math.inf for rate in rates]
    at = int(np.argmin(values))
    if at in (0, len(rates) - 1):
        beyond = rates[0] ** 2 / rates[1] if at == 0 else rates[-1] ** 2 / rates[-2]
        untried = (_round(beyond),) if len(losses) - len(grid) < MAX_ADDED else ()
        return RateChoice(rates[at] if math.isfinite(values[at]) else None, True, untried)
    near = slice(at - 1, at + 2)
    if not all(map(math.isfinite, values[near])):
        return RateChoice(rates[at], False)
    logs = np.log(rates[near])
    curvature, slope, _ = np.polyfit(logs - logs[1], values[near], 2)
    return RateChoice(_round(rates[at] * math.exp(-slope / (2 * curvature))), False)


def _round(rate: float) -> float:
    return float(f"{rate:.4g}")
