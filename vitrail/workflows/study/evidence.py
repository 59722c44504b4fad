"""What the cells of a study say about a contrast: its figures with their uncertainty, and the cells they rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.evaluation.claim import (
    Arms,
    Change,
    Compute,
    Contrast,
    Difference,
    Finding,
    LastDoubling,
    Pairs,
    Published,
    Ranks,
    Slope,
    as_arms,
)
from vitrail.evaluation.contrasts import Scale
from vitrail.evaluation.estimates import LEVEL, Estimate, Part, Resampled, Student
from vitrail.evaluation.intervals import bound_proportion, draw_weights
from vitrail.evaluation.laws import ComputeRatio, compare_compute, logit
from vitrail.workflows.study.groups import RESAMPLES, Group, Levels, NotAskedError, Trained
from vitrail.workflows.study.published import compare_published
from vitrail.workflows.study.results import CellResult
from vitrail.workflows.study.study import LIMIT


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of a contrast, all of which its rule must hold for, and the groups that each compares: plus, minus."""

    figures: tuple[Estimate, ...]
    plus: tuple[tuple[Group, ...], ...]
    minus: tuple[tuple[Group, ...], ...]
    compute: ComputeRatio | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, each once."""
        return tuple(dict.fromkeys(group for side in (*self.plus, *self.minus) for group in side))


@dataclass(frozen=True)
class Proportion:
    """A share of trainings with the exact interval of a binomial proportion."""

    hits: int
    count: int

    @property
    def value(self) -> float:
        return self.hits / self.count

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        return bound_proportion(self.hits, self.count, level=level)


def measure(trained: Trained, asked: Contrast, experiment: str, scale: Scale) -> Measured:
    """The figures of a contrast. Raises `NotAskedError` and `UnsureError`."""
    match asked:
        case Difference(plus=plus, minus=minus, at=at):
            first, second = _best(trained, experiment, plus, at), _best(trained, experiment, minus, at)
            return Measured(figures=(trained.subtract(first, second, scale),), plus=(first,), minus=(second,))
        case Pairs(pairs=pairs, at=at):
            arms = trained.experiment(experiment).arms
            sides = [
                (trained.pick(experiment, plus, at), trained.pick(experiment, minus, at))
                for plus, minus in pairs
                if plus in arms and minus in arms
            ]
            if not sides:
                raise NotAskedError(f"the experiment {experiment} has no pair of the arms that are compared")
            figures = tuple(trained.subtract(plus, minus, scale) for plus, minus in sides)
            return Measured(figures=figures, plus=tuple(p for p, _ in sides), minus=tuple(m for _, m in sides))
        case Change(plus=plus, minus=minus, along=along):
            return _change(trained, experiment, plus, minus, along, scale)
        case Slope():
            return _slope(trained, experiment, asked)
        case LastDoubling(arms=arms):
            return _last_doubling(trained, experiment, arms)
        case Compute(plus=plus, minus=minus):
            return _compute(trained, experiment, plus, minus)
        case Ranks(fewest=fewest):
            return _ranks(trained, experiment, fewest)
        case Finding():
            return _finding(trained, experiment, asked)
        case Published(metric=metric):
            found = compare_published(metric)
            return Measured(figures=(found.ratio,), plus=(), minus=(), compute=found)


def _best(trained: Trained, experiment: str, arms: Arms, at: Levels) -> tuple[Group, ...]:
    """The groups of an arm; of several, those of the best on validation images."""
    planned = trained.experiment(experiment).arms
    names = as_arms(arms)
    known = [arm for arm in names if arm in planned] or list(names[:1])
    return max(
        (trained.pick(experiment, arm, at) for arm in known),
        key=lambda groups: np.mean([group.mean("validation", "accuracy") for group in groups]),
    )


def _change(trained: Trained, experiment: str, plus: Arms, minus: Arms, along: str, scale: Scale) -> Measured:
    levels = trained.experiment(experiment).factors.get(along, ())
    if len(levels) < 2:
        raise NotAskedError(f"the experiment {experiment} does not vary {along}")
    ends = [
        (_best(trained, experiment, plus, {along: end}), _best(trained, experiment, minus, {along: end}))
        for end in ("highest", "lowest")
    ]
    (top_plus, top_minus), (low_plus, low_minus) = ends
    groups = [*top_plus, *top_minus, *low_plus, *low_minus]
    weights = np.repeat([1.0, -1.0, -1.0, 1.0], [len(top_plus), len(top_minus), len(low_plus), len(low_minus)])
    figure = trained.combine(groups, weights.tolist(), scale)
    return Measured(figures=(figure,), plus=((*top_plus, *low_plus),), minus=((*top_minus, *low_minus),))


def _slope(trained: Trained, experiment: str, asked: Slope) -> Measured:
    planned = trained.experiment(experiment)
    flops = asked.along == "flops"
    if not flops and len(planned.factors.get(asked.along, ())) < 2:
        raise NotAskedError(f"the experiment {experiment} does not vary {asked.along}")
    pairs = [
        pair for pair in zip(as_arms(asked.plus), as_arms(asked.minus)) if all(arm in planned.arms for arm in pair)
    ]
    if len(pairs) < (2 if flops else 1):
        words = ", ".join(f"{plus} - {minus}" for plus, minus in zip(as_arms(asked.plus), as_arms(asked.minus)))
        raise NotAskedError(f"the experiment {experiment} has too few pairs of these arms: {words}")
    at = {} if flops else {asked.along: "all"}
    plus = tuple(group for arm, _ in pairs for group in trained.pick(experiment, arm, at))
    minus = tuple(group for _, arm in pairs for group in trained.pick(experiment, arm, at))
    x = np.log10(
        [g.macs6 if flops else g.limit if asked.along == LIMIT else float(g.levels[asked.along]) for g in plus]
    )
    slopes = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    figure = trained.combine([*plus, *minus], [*slopes, *-slopes], "logit")
    return Measured(figures=(figure,), plus=(plus,), minus=(minus,))


def _last_doubling(trained: Trained, experiment: str, arms: Sequence[str]) -> Measured:
    groups = _family(trained, experiment, arms)
    most = max(group.macs6 for group in groups)
    halves = [[g for g in groups if g.macs6 > most / 2], [g for g in groups if g.macs6 <= most / 2]]
    if not halves[1]:
        raise NotAskedError(f"no cell of {experiment} has at most half the FLOPs of the largest")
    top, below = (max(half, key=lambda group: group.mean("validation", "accuracy")) for half in halves)
    doublings = math.log2(top.macs6 / below.macs6)
    figure = trained.combine([top, below], [1 / doublings, -1 / doublings], "logit")
    return Measured(figures=(figure,), plus=((top,),), minus=((below,),))


def _family(trained: Trained, experiment: str, arms: Sequence[str]) -> tuple[Group, ...]:
    planned = trained.experiment(experiment).arms
    found = tuple(group for arm in arms if arm in planned for group in trained.pick_all(experiment, arm))
    if len(found) < 2:
        raise NotAskedError(f"the experiment {experiment} has fewer than two cells of {', '.join(arms)}")
    return found


def _compute(trained: Trained, experiment: str, plus: Sequence[str], minus: Sequence[str]) -> Measured:
    first, second = _family(trained, experiment, plus), _family(trained, experiment, minus)
    groups = [*first, *second]
    draws = trained.draw(groups)
    accuracy = np.clip([group.accuracy for group in groups], 0.5 / trained.images, 1 - 0.5 / trained.images)
    found = compare_compute(
        np.array([group.macs6 for group in groups]),
        logit(accuracy),
        np.arange(len(groups)) < len(first),
        draws=logit(draws),
    )
    return Measured(figures=(found.ratio,), plus=(first,), minus=(second,), compute=found)


def _ranks(trained: Trained, experiment: str, fewest: int) -> Measured:
    arms = trained.experiment(experiment).arms
    if len(arms) < fewest:
        raise NotAskedError(f"the experiment {experiment} has {len(arms)} networks, and ranks need {fewest}")
    groups = tuple(group for arm in arms for group in trained.pick(experiment, arm, {}))
    columns = np.array([[g.accuracy, g.macs6, g.mean("parameters")] for g in groups])  # (G, 3)
    counts = np.concatenate(list(draw_weights(len(groups), seed=0, resamples=RESAMPLES)))  # (R, G)
    chosen = np.stack([np.repeat(np.arange(len(groups)), row) for row in counts])  # (R, G)
    draws = _rank_differences(columns[chosen])
    value = float(_rank_differences(columns[None])[0])
    return Measured(figures=(Resampled(value=value, draws=draws),), plus=(groups,), minus=())


def _finding(trained: Trained, experiment: str, asked: Finding) -> Measured:
    groups, values = _look_inside(trained, experiment, asked, asked.arm)
    if asked.present:
        return Measured(figures=(Proportion(int((values > 0).sum()), len(values)),), plus=(groups,), minus=())
    if not asked.against:
        figure = Student(value=float(values.mean()), seeds=(_part(values),))
        return Measured(figures=(figure,), plus=(groups,), minus=())
    others, minus = _look_inside(trained, experiment, asked, asked.against)
    value = float(values.mean() - minus.mean())
    figure = Student(value=value, seeds=(_part(values), _part(minus)))
    return Measured(figures=(figure,), plus=(groups,), minus=(others,))


def _look_inside(trained: Trained, experiment: str, asked: Finding, arms: Arms) -> tuple[tuple[Group, ...], np.ndarray]:
    """The groups of the first of ``arms`` that the experiment has, and what was found in each of their models."""
    planned = trained.experiment(experiment).arms
    arm = next((arm for arm in as_arms(arms) if arm in planned), None)
    if arm is None:
        raise NotAskedError(f"the experiment {experiment} has no arm {' or '.join(as_arms(arms))}")
    groups = trained.pick(experiment, arm, {})
    found = [_look_up(result, asked.figure) for group in groups for result in group.results]
    other = [_look_up(result, asked.less) if asked.less else 0.0 for g in groups for result in g.results]
    values = np.array([a - b for a, b in zip(found, other) if a is not None and b is not None])
    if not len(values):
        raise NotAskedError(f"no cell of {arm} in {experiment} has the finding {asked.figure}")
    return groups, values


def _part(values: np.ndarray) -> Part:
    """The variance of a mean over trainings."""
    count = len(values)
    return Part(float(values.var(ddof=1)) / count if count > 1 else math.nan, count - 1)


def _rank_differences(columns: np.ndarray) -> np.ndarray:
    """Of tables (R, G, 3) Spearman's correlation of column 0 with 1 less that with 2, (R,); NaN where a column is constant."""
    from scipy.stats import rankdata  # a dependency of scikit-learn

    ranks = rankdata(columns, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    products = (ranks[..., :1] * ranks[..., 1:]).sum(1)  # (R, 2)
    norms = np.sqrt((ranks**2).sum(1))  # (R, 3)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = products / (norms[:, :1] * norms[:, 1:])
    return correlations[:, 0] - correlations[:, 1]


def _look_up(result: CellResult, path: str) -> float | None:
    found: Any = result.findings
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return None if found is None else float(found)
