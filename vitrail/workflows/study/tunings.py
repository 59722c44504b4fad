"""What the tuning cells of a study say about its learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitrail.workflows.study.effects import finite
from vitrail.workflows.study.rates import Tuned, choose
from vitrail.workflows.study.results import CellResult

Tunings = Mapping[str, Mapping[str, Mapping[float, CellResult]]]  # experiment -> arm -> rate -> its tuning cell


def read_losses(tuned: Mapping[float, CellResult]) -> dict[float, float]:
    """The validation NLL of each rate that was tried, rising; infinite where the training failed."""
    return {rate: tuned[rate].validation.get("nll", math.inf) for rate in sorted(tuned)}


def find_best(tuned: Mapping[float, CellResult]) -> Tuned:
    """The best rate, and whether it has a neighbour on one side only."""
    return choose(read_losses(tuned))


def find_gain(tuned: Mapping[float, CellResult]) -> float:
    """The validation accuracy that a neighbour of the best rate has more than it, at least 0."""
    rates, best = sorted(tuned), find_best(tuned).best
    if best is None:
        return 0.0
    place = rates.index(best)
    accuracies = [tuned[rate].validation.get("accuracy", 0.0) for rate in rates[max(place - 1, 0) : place + 2]]
    return max(accuracies) - tuned[best].validation["accuracy"]


def list_rates(tunings: Tunings) -> list[dict[str, Any]]:
    """The rates that were tried for each arm with their validation NLL and accuracy, the best, and whether it is an edge."""
    return [
        {
            "experiment": experiment,
            "arm": arm,
            "points": [
                {"lr": rate, "nll": finite(loss), "accuracy": tuned[rate].validation.get("accuracy")}
                for rate, loss in read_losses(tuned).items()
            ],
            "best": find_best(tuned).best,
            "edge": find_best(tuned).edge,
        }
        for experiment, arms in tunings.items()
        for arm, tuned in arms.items()
        if tuned
    ]
