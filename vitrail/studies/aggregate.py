"""The results of a study by experiment, arm and levels, and the contrasts between them.

S seeds, N test images. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.studies.design import (
    LIMIT,
    Arms,
    Compute,
    Contrast,
    Difference,
    Finding,
    Pairs,
    Slope,
    Study,
    as_arms,
)
from vitrail.studies.paper import ComputeRatio, fit_compute_ratio, logit
from vitrail.studies.plan import Place, freeze
from vitrail.studies.results import TrialResult
from vitrail.studies.statistics import (
    Estimate,
    Proportion,
    Scale,
    Spread,
    Student,
    VariancePart,
    contrast,
    pool_spreads,
)

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
        """Returns the mean over seeds of a field of the results, or of one of its values; NaN where none has it."""
        values = [getattr(result, name).get(key) if key else getattr(result, name) for result in self.results]
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
        described = ", ".join(f"{path} {level}" for path, level in self.levels.items())
        return f"{self.arm} at {described}" if described else self.arm


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of a contrast, all of which its rule must hold for, and the groups that each compares: plus, minus."""

    figures: tuple[Estimate, ...]
    plus: tuple[tuple[Group, ...], ...]
    minus: tuple[tuple[Group, ...], ...] = ()
    ratio: ComputeRatio | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, each once."""
        return tuple(dict.fromkeys(group for side in (*self.plus, *self.minus) for group in side))


class Aggregate:
    """The results of a study in groups.

    Args:
        trials: the final results that there are.
        classes: of the data; a training that diverged is right as often as chance.
        images: that every final trial is evaluated on.
    """

    def __init__(self, study: Study, trials: Placed, *, classes: int, images: int) -> None:
        self.study, self.classes, self.images = study, classes, images
        self.groups: dict[str, list[Group]] = {}
        self.spreads: dict[Group, Spread] = {}  # of all groups of an experiment with as many images
        for experiment in study.experiments:
            found: dict[tuple[str, Any], dict[int, TrialResult]] = {}
            for place, result in trials.get(experiment.name, {}).items():
                found.setdefault(place[:2], {})[place.seed] = result
            planned = [(arm, levels) for arm in experiment.arms for levels in experiment.levels()]
            groups = [
                self._group(arm, dict(freeze(levels)), [own[seed] for seed in sorted(own)])
                for arm, levels in planned
                if (own := found.get((arm, freeze(levels))))
            ]
            self.groups[experiment.name] = groups
            for limit in dict.fromkeys(group.limit for group in groups):
                alike = [group for group in groups if group.limit == limit and len(group.values)]
                self.spreads |= zip(alike, pool_spreads([group.values for group in alike]))

    def _group(self, arm: str, levels: Levels, results: Sequence[TrialResult]) -> Group:
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

    def pick(self, experiment: str, arm: str, at: Levels) -> tuple[Group, ...]:
        """Returns the groups of an arm at levels, a factor that is not named at its highest.

        Raises `NotAskedError` for an arm or a level that the study does not have, and `UnsureError` for trials that failed or are
        missing.
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
        if missing := math.prod(map(len, wanted.values())) - len(found):
            raise UnsureError(
                f"{missing} of {missing + len(found)} groups of {arm} in {experiment} were not trained yet"
            )
        return found

    def _experiment(self, name: str) -> Any:
        if name not in self.groups:
            raise NotAskedError(f"the study has no experiment {name}")
        return self.study.experiment(name)

    def find_undertrained(self, group: Group) -> str:
        """Returns why a network is undertrained, so that its accuracy says little about it; empty if it is not.

        A network that does not fit its own images is undertrained if what it learned of them, its training accuracy above
        chance, is less than `LEARNED`, less than half of what another network of the experiment learned in as many steps from
        as many images, or came to at least the share `RISING` in the last half of its steps.
        """
        chance, train = 1 / self.classes, group.mean("train", "accuracy")
        if math.isnan(train) or train >= FITTED:
            return ""
        alike = [
            other.mean("train", "accuracy")
            for other in next(groups for groups in self.groups.values() if group in groups)
            if (other.limit, other.results[0].steps) == (group.limit, group.results[0].steps)
        ]
        curves = [[point["train_accuracy"] for point in result.curve] for result in group.results]
        curve = np.mean([each for each in curves if len(each) == len(curves[0])], 0)
        middle = float(curve[(len(curve) - 1) // 2]) if len(curve) else train
        reached = f"{group} is undertrained: its accuracy on its own training images is {100 * train:.0f} %"
        if train - chance < LEARNED:
            return f"{reached}, about chance"
        if train - chance < 0.5 * (np.nanmax(alike) - chance):
            return f"{reached}, and that of another network after as many steps {100 * np.nanmax(alike):.0f} %"
        if len(curve) and curve[-1] - middle >= RISING * (curve[-1] - chance):
            return f"{reached}, and was {100 * middle:.0f} % halfway, so that it is still rising"
        return ""

    def combine(self, groups: Sequence[Group], weights: Sequence[float], scale: Scale) -> Student:
        """Returns the weighted sum of the groups' accuracies."""
        return contrast(
            [group.values for group in groups], weights, [self.spreads[group] for group in groups], scale=scale
        )

    def subtract(self, plus: Sequence[Group], minus: Sequence[Group], scale: Scale) -> Student:
        """Returns the mean accuracy of some groups less that of others."""
        weights = [1 / len(plus)] * len(plus) + [-1 / len(minus)] * len(minus)
        return self.combine([*plus, *minus], weights, scale)

    def measure(self, asked: Contrast, experiment: str, scale: Scale) -> Measured:
        """Returns the figures of a contrast. Raises `NotAskedError` and `UnsureError`."""
        match asked:
            case Difference(plus=plus, minus=minus, at=at):
                first, second = self._best(experiment, plus, at), self._best(experiment, minus, at)
                return Measured(figures=(self.subtract(first, second, scale),), plus=(first,), minus=(second,))
            case Pairs(pairs=pairs, at=at):
                arms = self._experiment(experiment).arms
                sides = [
                    (self.pick(experiment, plus, at), self.pick(experiment, minus, at))
                    for plus, minus in pairs
                    if plus in arms and minus in arms
                ]
                if not sides:
                    raise NotAskedError(f"the experiment {experiment} has no pair of the arms that are compared")
                figures = tuple(self.subtract(plus, minus, scale) for plus, minus in sides)
                return Measured(figures=figures, plus=tuple(p for p, _ in sides), minus=tuple(m for _, m in sides))
            case Slope():
                return self._slope(experiment, asked)
            case Compute(plus=plus, minus=minus):
                first, second = self._family(experiment, plus), self._family(experiment, minus)
                groups, half = (*first, *second), 0.5 / self.images
                accuracy = np.clip([group.accuracy for group in groups], half, 1 - half)
                flops, is_first = np.array([group.macs6 for group in groups]), np.arange(len(groups)) < len(first)
                ratio = fit_compute_ratio(flops, logit(accuracy), is_first)
                return Measured(figures=(ratio.ratio,), plus=(first,), minus=(second,), ratio=ratio)
            case Finding():
                return self._look_inside(experiment, asked)

    def _best(self, experiment: str, arms: Arms, at: Levels) -> tuple[Group, ...]:
        """Returns the groups of an arm; of several, those of the best on validation images."""
        planned, names = self._experiment(experiment).arms, as_arms(arms)
        known = [arm for arm in names if arm in planned] or list(names[:1])
        return max(
            (self.pick(experiment, arm, at) for arm in known),
            key=lambda groups: np.mean([group.mean("validation", "accuracy") for group in groups]),
        )

    def _slope(self, experiment: str, asked: Slope) -> Measured:
        planned, flops = self._experiment(experiment), asked.along == "flops"
        if not flops and len(planned.factors.get(asked.along, ())) < 2:
            raise NotAskedError(f"the experiment {experiment} does not vary {asked.along}")
        asked_pairs = list(zip(as_arms(asked.plus), as_arms(asked.minus)))
        pairs = [pair for pair in asked_pairs if all(arm in planned.arms for arm in pair)]
        if len(pairs) < (2 if flops else 1):
            described = ", ".join(f"{plus} - {minus}" for plus, minus in asked_pairs)
            raise NotAskedError(f"the experiment {experiment} has too few pairs of these arms: {described}")
        at = {} if flops else {asked.along: "all"}
        plus = tuple(group for arm, _ in pairs for group in self.pick(experiment, arm, at))
        minus = tuple(group for _, arm in pairs for group in self.pick(experiment, arm, at))
        x = np.log10(
            [g.macs6 if flops else g.limit if asked.along == LIMIT else float(g.levels[asked.along]) for g in plus]
        )
        slopes = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        figure = self.combine([*plus, *minus], [*slopes, *-slopes], "logit")
        return Measured(figures=(figure,), plus=(plus,), minus=(minus,))

    def _family(self, experiment: str, arms: Sequence[str]) -> tuple[Group, ...]:
        planned = self._experiment(experiment)
        every = dict.fromkeys(planned.factors, "all")
        found = tuple(group for arm in arms if arm in planned.arms for group in self.pick(experiment, arm, every))
        if len(found) < 2:
            raise NotAskedError(f"the experiment {experiment} has fewer than two groups of {', '.join(arms)}")
        return found

    def _look_inside(self, experiment: str, asked: Finding) -> Measured:
        groups, values = self._list_findings(experiment, asked, asked.arm)
        if asked.present:
            return Measured(figures=(Proportion(int((values > 0).sum()), len(values)),), plus=(groups,))
        if not asked.against:
            return Measured(figures=(Student(value=float(values.mean()), seeds=(_variance(values),)),), plus=(groups,))
        others, minus = self._list_findings(experiment, asked, asked.against)
        value = float(values.mean() - minus.mean())
        figure = Student(value=value, seeds=(_variance(values), _variance(minus)))
        return Measured(figures=(figure,), plus=(groups,), minus=(others,))

    def _list_findings(self, experiment: str, asked: Finding, arms: Arms) -> tuple[tuple[Group, ...], np.ndarray]:
        """Returns the groups of the first of ``arms`` that the experiment has, and what was found in each of their models."""
        planned = self._experiment(experiment).arms
        arm = next((arm for arm in as_arms(arms) if arm in planned), None)
        if arm is None:
            raise NotAskedError(f"the experiment {experiment} has no arm {' or '.join(as_arms(arms))}")
        groups = self.pick(experiment, arm, {})
        results = [result for group in groups for result in group.results]
        found = [_look_up(result, asked.figure) for result in results]
        other = [_look_up(result, asked.less) if asked.less else 0.0 for result in results]
        values = np.array([a - b for a, b in zip(found, other) if a is not None and b is not None])
        if not len(values):
            raise NotAskedError(f"no trial of {arm} in {experiment} has the finding {asked.figure}")
        return groups, values


def _choose(path: str, levels: Sequence[Any], wanted: Any) -> Sequence[Any]:
    """Returns the levels that are meant; numbers by size, others in their order."""
    frozen = [tuple(level) if isinstance(level, list) else level for level in levels]
    ranked = sorted(frozen) if all(isinstance(level, (int, float)) for level in frozen) else frozen
    named = {
        "all": ranked,
        "highest": ranked[-1:],
        "lowest": ranked[:1],
        "lowest third": ranked[: math.ceil(len(ranked) / 3)],
    }
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


def _look_up(result: TrialResult, path: str) -> float | None:
    found: Any = result.findings
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return None if found is None else float(found)
