"""The results of a study by experiment, arm and levels, and the contrasts between them.

S seeds, N test images. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.config.parse import flatten
from vitrail.studies import design
from vitrail.studies.design import LIMIT, Arms, Contrast, Experiment, Study, as_arms
from vitrail.studies.plan import Place, TrialResult, freeze
from vitrail.studies.statistics import Estimate, Proportion, Scale, Student, VariancePart, contrast, pool_variance

OVERFIT = 0.10  # train - test accuracy from which data limits a network
FITTED = 0.95  # training accuracy from which compute does not
RISING = 0.25  # share of what a network learned that came in the last half of its steps, from which it is undertrained
LEARNED = 0.05  # training accuracy above chance below which a network has learned nothing
Levels = Mapping[str, Any]
Placed = Mapping[str, Mapping[Place, TrialResult]]  # the final results that there are, by experiment and place


class NotAskedError(Exception):
    """The study has no trials for a contrast."""


class UnsureError(Exception):
    """The trials that a contrast needs failed, or were not trained yet."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The trials of one arm at one level of each factor, which differ in their seed; ``values`` (S, N) of 0 and 1."""

    arm: str
    levels: Levels
    results: tuple[TrialResult, ...]
    values: np.ndarray
    error: str = ""  # of a trial that failed

    @property
    def accuracy(self) -> float:
        return float(self.values.mean())

    @property
    def limit(self) -> int:
        return max(result.limit for result in self.results)

    @property
    def macs6(self) -> float:
        return max(result.macs6 for result in self.results)

    def mean(self, split: str, figure: str = "accuracy") -> float:
        """Returns the mean over seeds of a figure on ``train``, ``validation`` or ``test``; NaN where none has it."""
        values = [getattr(result, split).get(figure, math.nan) for result in self.results]
        known = [value for value in values if math.isfinite(value)]
        return float(np.mean(known)) if known else math.nan

    @property
    def regime(self) -> str:
        """What limits the accuracy: ``data-limited`` if the network fits its own images much better than others,
        ``compute-limited`` if it has not fitted its own either, else ``neither``; empty where that was not measured.
        """
        train = self.mean("train")
        if math.isnan(train):
            return ""
        if train - self.accuracy >= OVERFIT:
            return "data-limited"
        return "compute-limited" if train < FITTED else "neither"

    def __str__(self) -> str:
        described = ", ".join(f"{path} {level}" for path, level in self.levels.items())
        return f"{self.arm} at {described}" if described else self.arm


Groups = tuple[Group, ...]
# the figures of a contrast, for all of which its rule must hold, and all groups
Measured = tuple[list[Estimate], Groups]


class Aggregate:
    """The final results of a study in groups; a training that diverged is right as often as chance, 1 in ``classes``."""

    def __init__(self, study: Study, trials: Placed, *, classes: int, images: int) -> None:
        self.study, self.classes, self.images = study, classes, images
        self.groups: dict[str, list[Group]] = {}
        self.spreads: dict[Group, VariancePart] = {}  # of all groups of an experiment with as many images
        for experiment in study.experiments:
            found: dict[tuple[str, Any], dict[int, TrialResult]] = {}
            for place, result in trials.get(experiment.name, {}).items():
                found.setdefault(place[:2], {})[place.seed] = result
            planned = [(arm, freeze(levels)) for arm in experiment.arms for levels in experiment.levels()]
            groups = [self._group(*place, found[place]) for place in planned if place in found]
            self.groups[experiment.name] = groups
            for limit in dict.fromkeys(group.limit for group in groups):
                alike = [group for group in groups if group.limit == limit and len(group.values)]
                self.spreads |= dict.fromkeys(alike, pool_variance([group.values for group in alike]))

    def _group(self, arm: str, levels: tuple[tuple[str, Any], ...], by_seed: Mapping[int, TrialResult]) -> Group:
        results = tuple(by_seed[seed] for seed in sorted(by_seed))
        failed = [result.error or "no reason was kept" for result in results if result.state == "failed"]
        chance = np.full(self.images, 1 / self.classes)
        kept = tuple(result for result in results if result.state != "failed")
        values = [result.right.astype(np.float64) if result.state == "done" else chance for result in kept]
        stacked = np.stack(values) if values else np.zeros((0, self.images))
        error = failed[0] if failed else ""
        return Group(arm=arm, levels=dict(levels), results=kept or results, values=stacked, error=error)

    def _experiment(self, name: str) -> Experiment:
        if name not in self.groups:
            raise NotAskedError(f"the study has no experiment {name}")
        return self.study.experiment(name)

    def pick(self, experiment: str, arm: str, at: Levels) -> Groups:
        """Returns the groups of an arm at levels, a factor that is not named at its highest. Raises `NotAskedError` for an arm or
        a level that the study does not have, and `UnsureError` for trials that failed or are missing.
        """
        planned = self._experiment(experiment)
        if arm not in planned.arms:
            raise NotAskedError(f"the experiment {experiment} has no arm {arm}")
        if unknown := [path for path in at if path not in planned.factors]:
            raise NotAskedError(f"the experiment {experiment} does not vary {unknown[0]}")
        wanted = {path: _choose(path, levels, at.get(path, "highest")) for path, levels in planned.factors.items()}
        found = tuple(
            group
            for group in self.groups[experiment]
            if group.arm == arm and all(group.levels[path] in chosen for path, chosen in wanted.items())
        )
        if failed := [group for group in found if group.error]:
            raise UnsureError(f"{failed[0]} failed: {failed[0].error}")
        needed = math.prod(map(len, wanted.values()))
        if missing := needed - len(found):
            raise UnsureError(f"{missing} of {needed} groups of {arm} in {experiment} were not trained yet")
        return found

    def _known(self, experiment: str, arms: Arms) -> list[str]:
        """Returns those of ``arms`` that the experiment has. Raises `NotAskedError` where it has none."""
        planned, names = self._experiment(experiment).arms, as_arms(arms)
        if not (known := [arm for arm in names if arm in planned]):
            raise NotAskedError(f"the experiment {experiment} has no arm {' or '.join(names)}")
        return known

    def find_undertrained(self, group: Group) -> str:
        """Returns why a network is undertrained, so that its accuracy says little about it; empty if it is not.

        A network that does not fit its own images is undertrained if what it learned of them, its training accuracy above
        chance, is less than `LEARNED`, less than half of what another network of the experiment learned in as many steps from
        as many images, or came to at least the share `RISING` in the last half of its steps.
        """
        chance, train = 1 / self.classes, group.mean("train")
        if math.isnan(train) or train >= FITTED:
            return ""
        others = next(groups for groups in self.groups.values() if group in groups)
        like = group.limit, group.results[0].steps
        most = np.nanmax([each.mean("train") for each in others if (each.limit, each.results[0].steps) == like])
        curves = [[point["train_accuracy"] for point in result.curve] for result in group.results]
        curve = np.mean([each for each in curves if len(each) == len(curves[0])], 0)
        middle = float(curve[(len(curve) - 1) // 2]) if len(curve) else train
        reached = f"{group} is undertrained: its accuracy on its own training images is {100 * train:.0f} %"
        if train - chance < LEARNED:
            return f"{reached}, about chance"
        if train - chance < 0.5 * (most - chance):
            return f"{reached}, and that of another network after as many steps {100 * most:.0f} %"
        if len(curve) and curve[-1] - middle >= RISING * (curve[-1] - chance):
            return f"{reached}, and was {100 * middle:.0f} % halfway, so that it is still rising"
        return ""

    def combine(self, groups: Sequence[Group], weights: Sequence[float], scale: Scale) -> Student:
        """Returns the weighted sum of the groups' accuracies."""
        values, spreads = [group.values for group in groups], [self.spreads[group] for group in groups]
        return contrast(values, weights, spreads, scale)

    def measure(self, asked: Contrast, experiment: str, scale: Scale) -> Measured:
        """Returns the figures of a contrast. Raises `NotAskedError` and `UnsureError`."""
        match asked:
            case design.Difference(plus=plus, minus=minus, at=at):
                return self._subtract([(self._best(experiment, plus, at), self._best(experiment, minus, at))], scale)
            case design.Pairs(pairs=pairs):
                known = [pair for pair in pairs if set(pair) <= set(self._experiment(experiment).arms)]
                if not known:
                    raise NotAskedError(f"the experiment {experiment} has no pair of the arms that are compared")
                sides = [(self.pick(experiment, plus, {}), self.pick(experiment, minus, {})) for plus, minus in known]
                return self._subtract(sides, scale)
            case design.Slope():
                return self._slope(experiment, asked)
            case design.Finding():
                return self._look_inside(experiment, asked)

    def _subtract(self, sides: Sequence[tuple[Groups, Groups]], scale: Scale) -> Measured:
        """Returns for each pair the mean accuracy of the first groups less that of the second."""
        figures: list[Estimate] = []
        for plus, minus in sides:
            weights = [1 / len(plus)] * len(plus) + [-1 / len(minus)] * len(minus)
            figures.append(self.combine([*plus, *minus], weights, scale))
        return figures, tuple(dict.fromkeys(group for plus, minus in sides for group in (*plus, *minus)))

    def _best(self, experiment: str, arms: Arms, at: Levels) -> Groups:
        """Returns the groups of an arm; of several, those of the best on validation images."""
        picked = (self.pick(experiment, arm, at) for arm in self._known(experiment, arms))
        return max(picked, key=lambda groups: np.mean([group.mean("validation") for group in groups]))

    def _slope(self, experiment: str, asked: design.Slope) -> Measured:
        planned, flops = self._experiment(experiment), asked.along == "flops"
        if not flops and len(planned.factors.get(asked.along, ())) < 2:
            raise NotAskedError(f"the experiment {experiment} does not vary {asked.along}")
        pairs = [pair for pair in zip(as_arms(asked.plus), as_arms(asked.minus)) if set(pair) <= set(planned.arms)]
        if len(pairs) < (2 if flops else 1):
            raise NotAskedError(f"the experiment {experiment} has too few of the pairs of arms that are compared")
        at = {} if flops else {asked.along: "all"}
        plus, minus = (
            [group for arm in arms for group in self.pick(experiment, arm, at)] for arms in zip(*pairs, strict=True)
        )
        x = [g.macs6 if flops else g.limit if asked.along == LIMIT else float(g.levels[asked.along]) for g in plus]
        centred = np.log10(x) - np.log10(x).mean()
        slopes = centred / (centred**2).sum()
        return [self.combine([*plus, *minus], [*slopes, *-slopes], "logit")], (*plus, *minus)

    def _look_inside(self, experiment: str, asked: design.Finding) -> Measured:
        groups, values = self._list_findings(experiment, asked.arm, asked.figure)
        if asked.present:
            return [Proportion(int((values > 0).sum()), len(values))], groups
        value, parts = float(values.mean()), [_variance(values)]
        if asked.against:
            others, minus = self._list_findings(experiment, asked.against, asked.figure)
            groups, value, parts = (*groups, *others), value - float(minus.mean()), [*parts, _variance(minus)]
        return [Student(value=value, seeds=tuple(parts))], groups

    def _list_findings(self, experiment: str, arms: Arms, figure: str) -> tuple[Groups, np.ndarray]:
        """Returns the groups of the first of ``arms`` that the experiment has, and what was found in each of their models."""
        groups = self.pick(experiment, self._known(experiment, arms)[0], {})
        found = [flatten(result.findings).get(figure) for group in groups for result in group.results]
        values = np.array([value for value in found if value is not None])
        if not len(values):
            raise NotAskedError(f"no trial of {groups[0].arm} in {experiment} has the finding {figure}")
        return groups, values


def _choose(path: str, levels: Sequence[Any], wanted: Any) -> Sequence[Any]:
    """Returns the levels that are meant; numbers by size, others in their order."""
    frozen = [tuple(level) if isinstance(level, list) else level for level in levels]
    ranked = sorted(frozen) if all(isinstance(level, (int, float)) for level in frozen) else frozen
    third = math.ceil(len(ranked) / 3)
    named = {"all": ranked, "highest": ranked[-1:], "lowest": ranked[:1], "lowest third": ranked[:third]}
    if isinstance(wanted, str) and wanted in named:
        return named[wanted]
    wanted = tuple(wanted) if isinstance(wanted, list) else wanted
    if wanted not in frozen:
        raise NotAskedError(f"{path} has no level {wanted}")
    return [wanted]


def _variance(values: np.ndarray) -> VariancePart:
    """Returns the variance of a mean over trials."""
    count = len(values)
    return VariancePart(float(values.var(ddof=1)) / count if count > 1 else math.nan, count - 1)
