"""The results of a study by experiment, arm and levels, as judging reads them.

S seeds, N test images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.evaluation.contrasts import Scale, Spread, contrast, draw_accuracies, pool_spreads
from vitrail.evaluation.estimates import Student
from vitrail.workflows.study.results import CellResult, Place
from vitrail.workflows.study.study import Experiment, Study

OVERFIT = 0.10  # train - test accuracy from which data limits a network
FITTED = 0.95  # training accuracy from which compute does not
RESAMPLES = 2000
Levels = Mapping[str, Any]


class NotAskedError(Exception):
    """The study has no cells for a contrast."""


class UnsureError(Exception):
    """The cells that a contrast needs failed, or were not trained yet."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The trainings of one arm at one level of each factor, which differ in their seed; ``values`` (S, N) of 0 and 1."""

    arm: str
    levels: Levels
    results: tuple[CellResult, ...]
    values: np.ndarray
    error: str = ""  # of a training that failed

    @property
    def accuracy(self) -> float:
        """On test images."""
        return float(self.values.mean())

    @property
    def limit(self) -> int:
        """Training images."""
        return max(result.limit for result in self.results)

    @property
    def macs6(self) -> float:
        """6 x the multiply-adds of a forward pass x images seen."""
        return max(result.macs6 for result in self.results)

    def mean(self, name: str, key: str = "") -> float:
        """The mean over seeds of a field of the results, or of one of its values; NaN where none has it."""
        fields = [getattr(result, name) for result in self.results]
        values = [field.get(key) if key else field for field in fields]
        known = [value for value in values if value is not None and math.isfinite(value)]
        return float(np.mean(known)) if known else math.nan

    @property
    def regime(self) -> str:
        """What limits the accuracy: ``data-limited`` if the network fits its own images much better than others,
        ``compute-limited`` if it has not fitted its own either, else ``neither``; empty where that was not measured.
        """
        train = self.mean("train", "accuracy")
        if math.isnan(train):
            return ""
        if train - self.accuracy >= OVERFIT:
            return "data-limited"
        return "compute-limited" if train < FITTED else "neither"

    def __str__(self) -> str:
        words = ", ".join(f"{path} {level}" for path, level in self.levels.items())
        return f"{self.arm} at {words}" if words else self.arm


class Trained:
    """The results of a study by experiment, arm and levels.

    Args:
        cells: the final cells that there are, by experiment and place.
        classes: of the data; a training that diverged is right as often as chance.
        images: that every final cell is judged on.
    """

    def __init__(
        self, study: Study, cells: Mapping[str, Mapping[Place, CellResult]], *, classes: int, images: int
    ) -> None:
        self.study, self.classes, self.images = study, classes, images
        self.groups: dict[str, list[Group]] = {
            experiment.name: list(self._gather(experiment, cells.get(experiment.name, {})))
            for experiment in study.experiments
        }
        self._spreads: dict[Group, Spread] = {}
        for groups in self.groups.values():
            for limit in dict.fromkeys(group.limit for group in groups):
                alike = [group for group in groups if group.limit == limit and len(group.values)]
                self._spreads |= zip(alike, pool_spreads([group.values for group in alike]))

    def _gather(self, experiment: Experiment, cells: Mapping[Place, CellResult]) -> list[Group]:
        groups = []
        for arm in experiment.arms:
            for levels in experiment.levels():
                own = {
                    place.seed: result
                    for place, result in cells.items()
                    if place.arm == arm
                    and all(_same(dict(place.levels)[path], level) for path, level in levels.items())
                }
                if own:
                    groups.append(self._group(arm, levels, [own[seed] for seed in sorted(own)]))
        return groups

    def _group(self, arm: str, levels: Levels, results: Sequence[CellResult]) -> Group:
        failed = [result.error or "no reason was kept" for result in results if result.state == "failed"]
        chance = np.full(self.images, 1 / self.classes)
        kept = [result for result in results if result.state != "failed"]
        values = [result.right.astype(np.float64) if result.state == "done" else chance for result in kept]
        return Group(
            arm=arm,
            levels=levels,
            results=tuple(kept or results),
            values=np.stack(values) if values else np.zeros((0, self.images)),
            error=failed[0] if failed else "",
        )

    def spread(self, group: Group) -> Spread:
        """The variance of a group's accuracy between seeds, of all groups of its experiment with as many images."""
        return self._spreads[group]

    def pick(self, experiment: str, arm: str, at: Levels) -> tuple[Group, ...]:
        """The groups of an arm at levels, a factor that is not named at its highest.

        Raises `NotAskedError` for an arm or a level that the study does not have, and `UnsureError` for trainings that failed
        or are missing.
        """
        planned = self.experiment(experiment)
        if arm not in planned.arms:
            raise NotAskedError(f"the experiment {experiment} has no arm {arm}")
        if unknown := [path for path in at if path not in planned.factors]:
            raise NotAskedError(f"the experiment {experiment} does not vary {unknown[0]}")
        wanted = {path: _choose(path, levels, at.get(path, "highest")) for path, levels in planned.factors.items()}
        return self._present(
            experiment, arm, lambda levels: all(levels[path] in chosen for path, chosen in wanted.items()),
            count=math.prod(map(len, wanted.values())),
        )  # fmt: skip

    def pick_all(self, experiment: str, arm: str) -> tuple[Group, ...]:
        """The groups of an arm at all levels; see `pick`."""
        planned = self.experiment(experiment)
        return self._present(experiment, arm, lambda levels: True, count=len(list(planned.levels())))

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name. Raises `NotAskedError` if the study has none."""
        if name not in self.groups:
            raise NotAskedError(f"the study has no experiment {name}")
        return self.study.experiment(name)

    def _present(self, experiment: str, arm: str, wanted: Callable[[Levels], bool], *, count: int) -> tuple[Group, ...]:
        found = tuple(group for group in self.groups[experiment] if group.arm == arm and wanted(group.levels))
        for group in found:
            if group.error:
                raise UnsureError(f"{group} failed: {group.error}")
        if len(found) < count:
            raise UnsureError(f"{count - len(found)} of {count} groups of {arm} in {experiment} were not trained yet")
        return found

    def combine(self, groups: Sequence[Group], weights: Sequence[float], scale: Scale) -> Student:
        """The weighted sum of the groups' accuracies."""
        return contrast([g.values for g in groups], weights, [self.spread(g) for g in groups], scale=scale)

    def subtract(self, plus: Sequence[Group], minus: Sequence[Group], scale: Scale) -> Student:
        """The mean accuracy of some groups less that of others."""
        weights = [1 / len(plus)] * len(plus) + [-1 / len(minus)] * len(minus)
        return self.combine([*plus, *minus], weights, scale)

    def draw(self, groups: Sequence[Group], *, resamples: int = RESAMPLES) -> np.ndarray:
        """Accuracies (R, groups) as other seeds and images might have given them; see `draw_accuracies`."""
        return draw_accuracies([g.values for g in groups], [self.spread(g) for g in groups], resamples=resamples)


def fewest_seeds(groups: Iterable[Group]) -> int | None:
    """The fewest trainings that any of the groups has; None for no groups."""
    return min((len(group.values) for group in groups), default=None)


def _same(one: Any, other: Any) -> bool:
    """Whether two levels are equal, lists as tuples."""
    return one == (tuple(other) if isinstance(other, list) else other)


def _choose(path: str, levels: Sequence[Any], wanted: Any) -> Sequence[Any]:
    """The levels that are meant; numbers by size, others in their order."""
    numbers = all(isinstance(level, (int, float)) for level in levels)
    ranked = sorted(levels) if numbers else list(levels)
    match wanted:
        case "all":
            return ranked
        case "highest":
            return ranked[-1:]
        case "lowest":
            return ranked[:1]
        case "lowest third":
            return ranked[: math.ceil(len(ranked) / 3)]
    if wanted not in levels:
        raise NotAskedError(f"{path} has no level {wanted}")
    return [wanted]
