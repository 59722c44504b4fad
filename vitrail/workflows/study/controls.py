"""Comparisons whose answer is known, which judge the study itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.evaluation.claim import POINT
from vitrail.evaluation.contrasts import contrast, pool_spreads
from vitrail.evaluation.estimates import Student
from vitrail.evaluation.verdicts import Greater, judge
from vitrail.workflows.study.effects import describe_effect, describe_rule, detect
from vitrail.workflows.study.groups import Group, NotAskedError, Trained, UnsureError, fewest_seeds
from vitrail.workflows.study.study import LIMIT

AGAIN, HALF = "again", "half"  # experiments: an arm of another one with other seeds, and on half the images
RULE = Greater(by=POINT)


def list_controls(trained: Trained) -> list[dict[str, Any]]:
    """The controls that there are cells for: the same settings with other seeds, and fewer images.

    ``passed`` is False if a control came out as it should not: the first if a difference of `POINT` is seen in either direction,
    the second if none is. It is None where the second cannot be told.
    """
    controls = []
    for compare in (_compare_again, _compare_fewer):
        try:
            controls += compare(trained)
        except (NotAskedError, UnsureError):
            continue
    return controls


def _compare_again(trained: Trained) -> list[dict[str, Any]]:
    again = trained.experiment(AGAIN)
    arm, settings = next(iter(again.arms.items()))
    (first,) = trained.pick(AGAIN, arm, {})
    for experiment in trained.study.experiments:
        twin = next(
            (name for name, own in experiment.arms.items() if own == settings and experiment is not again), None
        )
        if twin is None:
            continue
        (second,) = trained.pick(experiment.name, twin, {})
        alike = [group for group in trained.groups[experiment.name] if group.limit == second.limit]
        cells = [group.values for group in dict.fromkeys([first, second, *alike]) if len(group.values)]
        figure = contrast(cells[:2], [1, -1], pool_spreads(cells)[:2])
        seen = judge(RULE, [replace(figure, value=abs(figure.value))]).kind == "held"
        return [
            _describe(
                "A/A", f"{twin} of {experiment.name} with other seeds - the same", figure, (first, second), not seen
            )
        ]
    return []


def _compare_fewer(trained: Trained) -> list[dict[str, Any]]:
    experiment = trained.study.experiments[0]
    arm = next(iter(experiment.arms))
    if HALF in trained.groups:
        name, (fewer,) = "half the images", trained.pick(HALF, next(iter(trained.experiment(HALF).arms)), {})
    else:
        name, (fewer,) = "fewer images", trained.pick(experiment.name, arm, {LIMIT: "lowest"})
    (more,) = trained.pick(experiment.name, arm, {})
    if more.limit == fewer.limit:
        return []
    figure = trained.subtract([more], [fewer], "points")
    passed = {"held": True, "did not hold": False}.get(judge(RULE, [figure]).kind)
    question = f"{arm} on {more.limit:,} images - the same on {fewer.limit:,}: must be seen"
    return [_describe(name, question, figure, (more, fewer), passed)]


def _describe(
    name: str, question: str, figure: Student, pair: tuple[Group, Group], passed: bool | None
) -> dict[str, Any]:
    verdict = judge(RULE, [figure])
    return {
        "name": name,
        "question": question,
        "verdict": verdict.kind,
        "passed": passed,
        "effect": describe_effect(figure, "points", fewest_seeds(pair)),
        "rule": describe_rule(RULE),
        "detectable": detect(figure),
        "why": verdict.why,
    }
