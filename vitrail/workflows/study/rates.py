"""The learning rate of an arm, from the tuning cells that there are. Nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vitrail.errors import ConfigError
from vitrail.training.rates import choose_rate


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How the learning rate of an arm is tuned: by the validation NLL of one training for each rate, from a seed of its own.

    Where the best rate is the first or last of the ``grid``, the grid is continued by one rate on that side, at most twice.
    ``length`` is that of a tuning cell relative to the study's own length; all arms are tuned with the same budget.
    """

    grid: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    length: float = 0.5

    def __post_init__(self) -> None:
        rising = len(self.grid) > 1 and list(self.grid) == sorted(set(self.grid)) and self.grid[0] > 0
        if not rising:
            raise ConfigError(
                f"rates.grid is {list(self.grid)}", "give two or more rising rates, e.g. [1e-3, 2e-3, 4e-3]"
            )
        if not 0 < self.length <= 1:
            raise ConfigError(f"rates.length is {self.length}", "give a share of the length, e.g. 0.5")


@dataclass(frozen=True)
class Tuned:
    """The ``best`` rate, None where every rate diverged, and whether it lies at the ``edge`` of all that were tried."""

    best: float | None
    edge: bool


def list_missing(rates: Rates, losses: Mapping[float, float]) -> list[float]:
    """The rates that have to be tried before one can be chosen; none is left where the best one has neighbours on both sides.

    Args:
        losses: the validation NLL at each rate that was tried, infinite where the training diverged.
    """
    return list(choose_rate(losses, rates.grid).untried)


def choose(losses: Mapping[float, float]) -> Tuned:
    """The rate with the lowest loss, of equal ones the lowest rate: one that was tried, so that its neighbours tell what another
    one would have given.
    """
    tried = sorted(losses)
    best = min(tried, key=losses.__getitem__, default=None)
    if best is None or math.isinf(losses[best]):
        return Tuned(None, edge=False)
    return Tuned(best, edge=best in (tried[0], tried[-1]))
