"""From the results of a study to its figures: verdicts on claims and controls, and the tables beside them.

The same results give the same figures to the bit, in whatever order and in how many attempts they were computed; nothing here
depends on time. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitrail.config.parse import plain
from vitrail.evaluation.claim import Beside, Claim, Difference, Pairs
from vitrail.evaluation.estimates import LEVEL, Estimate, Student
from vitrail.evaluation.paper_claims import NOT_TESTABLE
from vitrail.evaluation.verdicts import Equal, Question, Unit, Verdict, judge, judge_all, show
from vitrail.workflows.study.controls import list_controls
from vitrail.workflows.study.effects import describe_effect, describe_rule, detect, finite, with_interval
from vitrail.workflows.study.evidence import Measured, measure
from vitrail.workflows.study.figures import list_arms, list_curves, list_findings, list_published
from vitrail.workflows.study.groups import NotAskedError, Trained, UnsureError, fewest_seeds
from vitrail.workflows.study.results import CellResult, Place
from vitrail.workflows.study.study import COMMON, Study
from vitrail.workflows.study.tunings import Tunings, find_best, find_gain, list_rates

FORMAT = 1
MOST_SEEDS = 100  # that are advised
UNKNOWN = "not known"
WIDER = (
    "a wider grid of learning rates, as in experiments.NAME.rates.grid"  # would decide a claim that rests on an edge
)
CHECKLIST = {
    "intervals": "Student's with Satterthwaite's degrees of freedom; the variance between seeds is pooled over an experiment's "
    "cells of one training size unless Bartlett's test rejects it at 1 %, that over images has the seeds' noise taken off",
    "several claims": "Holm's step-down over all claims that were judged, for 5 % of studies with any wrong decision",
    "laws": "limit + scale x^-exponent; residuals in log error, soft_l1 with scale 0.05, scipy's "
    "least_squares from 16 starts; a straight line in logit for fewer than five levels",
    "ratios of compute": "lines of one slope in logit accuracy over log FLOPs (6 x multiply-adds x images), and beside them "
    "PCHIP through the frontiers at the middle of the common range",
    "uncertainty of fits": "draws of all accuracies with the covariance of the contrasts",
    "extrapolation": "no curve is drawn beyond twice its largest level, and no verdict rests on a fit of data sizes",
    "learning rates": "each network has its own, of the same grid and length of tuning, chosen by validation NLL",
    "test images": "judged once at the end of a final cell; rates and regularisation are chosen on validation images",
}


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A claim with its figures, and a reason why it is not decided: a ``doubt`` or its ``range``."""

    claim: Claim
    measured: Measured | None
    doubt: str = ""
    outside: str = ""


def judge_study(
    study: Study,
    cells: Mapping[str, Mapping[Place, CellResult]],
    tunings: Tunings,
    *,
    data: Mapping[str, Any],
    plan: Mapping[str, Any],
    not_asked: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """All figures of a study, as ``numbers.json`` holds them.

    Args:
        cells: the final cells that there are, by experiment and place.
        tunings: the tuning cells that there are, by experiment, arm and rate.
        data: ``name``, ``classes`` and the numbers of ``training``, ``validation`` and ``test`` images.
        plan: ``sha256``, and those of ``earlier`` plans.
        not_asked: claims that the plan left out, ``name`` and ``why``.
    """
    trained = Trained(study, cells, classes=data["classes"], images=data["test"])
    cases, unasked = _collect(study.claims, trained, tunings)
    verdicts = _decide(cases)
    return plain(
        {
            "format": FORMAT,
            "study": study.name,
            "plan": plan,
            "data": data,
            "base": {**COMMON, **study.base},
            "claims": [_row(case, verdicts.get(case.claim.name), trained, tunings) for case in cases],
            "controls": list_controls(trained),
            "arms": list_arms(trained),
            "rates": list_rates(tunings),
            "curves": list_curves(trained, _list_ratios(cases)),
            "published": list_published(),
            **list_findings(trained),
            "not_asked": [*not_asked, *unasked],
            "not_testable": [{"claim": claim, "why": why} for claim, why in NOT_TESTABLE.items()],
            "failures": list_failures(cells),
            "commits": sorted({each.commit for found in cells.values() for each in found.values() if each.commit}),
            "checklist": [{"item": item, "answer": answer} for item, answer in CHECKLIST.items()],
        }
    )


def _collect(claims: Sequence[Claim], trained: Trained, tunings: Tunings) -> tuple[list[_Case], list[dict[str, str]]]:
    """The claims with their figures, and those that the study has no cells for."""
    cases, unasked = [], []
    for claim in claims:
        try:
            measured = measure(trained, claim.contrast, claim.experiment, claim.scale)
        except NotAskedError as error:
            unasked.append({"name": claim.name, "why": str(error)})
        except UnsureError as error:
            cases.append(_Case(claim=claim, measured=None, doubt=str(error)))
        else:
            doubt = _find_edge(measured, tunings.get(claim.experiment, {}))
            cases.append(_Case(claim=claim, measured=measured, doubt=doubt, outside=_find_regime(claim, measured)))
    return cases, unasked


def _find_edge(measured: Measured, tunings: Mapping[str, Mapping[float, CellResult]]) -> str:
    """Why the rate of an arm is not known well enough; empty if it is."""
    for arm in dict.fromkeys(group.arm for group in measured.groups):
        if (tuned := tunings.get(arm)) and find_best(tuned).edge:
            return f"the best learning rate of {arm} is at the edge of those that were tried"
    return ""


def _find_regime(claim: Claim, measured: Measured) -> str:
    """Why a claim about other networks than these is not decided; empty if it is about such networks."""
    for group in measured.groups if claim.regime else ():
        if group.regime and group.regime != claim.regime:
            gap = show(group.mean("train", "accuracy") - group.accuracy, "points")
            return f"the claim is about {claim.regime} networks, and {group} is {group.regime}: train - test is {gap}"
    return ""


def _decide(cases: Sequence[_Case]) -> dict[str, Verdict]:
    """The verdicts by claim, those on trained cells at Holm's levels; none for a claim without figures."""
    questions = {
        case.claim.name: Question(case.claim.rule, case.measured.figures, case.claim.unit)
        for case in cases
        if case.measured is not None
    }
    asked = {case.claim.name for case in cases if case.claim.experiment and not (case.doubt or case.outside)}
    verdicts = judge_all({name: question for name, question in questions.items() if name in asked})
    for name, (rule, figures, unit) in questions.items():
        if name not in asked:
            verdicts[name] = judge(rule, figures, unit=unit)
    return verdicts


def _row(case: _Case, verdict: Verdict | None, trained: Trained, tunings: Tunings) -> dict[str, Any]:
    claim = case.claim
    row = {
        "name": claim.name,
        "quote": claim.quote,
        "source": claim.source,
        "question": claim.question,
        "experiment": claim.experiment,
        "caveat": claim.caveat,
        "rule": describe_rule(claim.rule),
    }
    if case.measured is None or verdict is None:
        nothing = {
            "effect": None,
            "detectable": None,
            "to_tell": "",
            "rate_robust": UNKNOWN,
            "regime": "",
            "beside": [],
        }
        return {**row, "verdict": "cannot tell", "why": case.doubt, **nothing}
    figures = case.measured.figures
    figure = next((figure for figure in figures if figure.value == verdict.effect), figures[0])  # the one that decided
    verdict = _restrict(case, verdict)
    regimes = dict.fromkeys(group.regime for group in case.measured.groups if group.regime)
    return {
        **row,
        "verdict": verdict.kind,
        "verdict_level": verdict.level,
        "effect": describe_effect(figure, claim.unit, fewest_seeds(case.measured.groups)),
        "detectable": detect(figure),
        "why": verdict.why,
        "to_tell": WIDER if case.doubt else _advise(claim, figure, fewest_seeds(case.measured.groups), verdict),
        "rate_robust": _test_rates(case, verdict, tunings.get(claim.experiment, {})),
        "regime": ", ".join(regimes),
        "beside": _list_beside(case, trained, tunings),
    }


def _restrict(case: _Case, verdict: Verdict) -> Verdict:
    """The verdict as far as the study can decide the claim at all."""
    if case.outside:
        return replace(verdict, kind="out of range", why=case.outside)
    if case.doubt:
        return replace(verdict, kind="cannot tell", why=case.doubt)
    if case.claim.beyond and verdict.kind != "held":
        return replace(verdict, kind="out of range", why=case.claim.beyond)
    if verdict.level > LEVEL and case.measured is not None:
        alone = judge(case.claim.rule, case.measured.figures, unit=case.claim.unit).kind
        more = f"; alone, at {LEVEL:.0%}, it would be {alone!r}" if alone != verdict.kind else ""
        return replace(verdict, why=f"{verdict.why} (at {verdict.level:.2%}, for several claims{more})")
    return verdict


def _advise(claim: Claim, figure: Estimate, seeds: int | None, verdict: Verdict) -> str:
    """What would decide a claim that cannot be told: how many more seeds; empty where it is decided or not known."""
    if verdict.kind != "cannot tell" or not isinstance(figure, Student) or seeds is None or seeds < 2:
        return ""
    effect = abs(claim.rule.zone[0]) or abs(figure.value)
    words = f"would show a difference of {show(effect, claim.unit)}"
    for more in range(MOST_SEEDS + 1):
        if figure.with_seeds(seeds, seeds + more).detectable(level=verdict.level) <= effect:
            return (
                f"{more} more {'seed' if more == 1 else 'seeds'} {words}" if more else f"a study of this size {words}"
            )
    return f"no number of seeds {words}: that needs more test images"


def _test_rates(case: _Case, verdict: Verdict, tunings: Mapping[str, Mapping[float, CellResult]]) -> str:
    """Whether the verdict is the same with the rate of either side moved to its neighbour, as far as tuning cells say."""
    claim, measured = case.claim, case.measured
    known = verdict.kind in ("held", "did not hold") and isinstance(claim.contrast, Difference | Pairs)
    if measured is None or not known:
        return UNKNOWN
    variants = [list(measured.figures)]
    for number, figure in enumerate(measured.figures):
        for side, sign in ((measured.plus[number], 1), (measured.minus[number], -1)):
            tuned = tunings.get(side[0].arm)
            if not tuned or not isinstance(figure, Student):
                return UNKNOWN
            accuracy = side[0].accuracy
            steepness = 1.0 if claim.scale == "points" else 1 / max(accuracy * (1 - accuracy), 1e-9)
            variants.append(list(measured.figures))
            variants[-1][number] = replace(figure, value=figure.value + sign * steepness * find_gain(tuned))
    kinds = {judge(claim.rule, figures, level=verdict.level, unit=claim.unit).kind for figures in variants}
    return "yes" if len(kinds) == 1 else "no"


def _list_beside(case: _Case, trained: Trained, tunings: Tunings) -> list[dict[str, Any]]:
    """The figures beside a verdict: those of the claim, and what belongs to contrasts of its kind."""
    claim, measured = case.claim, case.measured
    assert measured is not None
    rows: list[tuple[str, float, Unit]] = []
    if claim.regime == "data-limited":
        for group in measured.groups:
            rows.append((f"train - test of {group}", group.mean("train", "accuracy") - group.accuracy, "points"))
    if measured.compute is not None:
        rows.append(("between frontiers", measured.compute.frontiers, "ratio"))
        rows.append(("p-value of equal slopes", measured.compute.same_slope, "share"))
    if isinstance(claim.rule, Equal) and isinstance(claim.contrast, Difference):
        tuned = tunings.get(claim.experiment, {})
        best = [find_best(tuned.get(side[0].arm, {})).best for side in (*measured.plus, *measured.minus)]
        if best[0] is not None and best[1] is not None:
            rows.append(("best learning rate, plus / minus", best[0] / best[1], "ratio"))
    found = [_measure_beside(trained, claim, other) for other in claim.beside]
    plain_rows = [
        {"name": name, "estimate": finite(value), "low": None, "high": None, "unit": unit} for name, value, unit in rows
    ]
    return [row for row in found if row is not None] + plain_rows


def _measure_beside(trained: Trained, claim: Claim, other: Beside) -> dict[str, Any] | None:
    """The figure as a row; None where the study has no cells for it, or they failed."""
    try:
        measured = measure(trained, other.contrast, other.experiment or claim.experiment, claim.scale)
    except (NotAskedError, UnsureError):
        return None
    return {
        "name": other.name,
        **with_interval(measured.figures[0]),
        "unit": replace(claim, contrast=other.contrast).unit,
    }


def _list_ratios(cases: Sequence[_Case]) -> list[dict[str, Any]]:
    """The ratios of compute of the trained families, beside the curves."""
    return [
        {"name": case.claim.question, **with_interval(case.measured.figures[0])}
        for case in cases
        if case.claim.experiment and case.measured is not None and case.measured.compute is not None
    ]


def list_failures(cells: Mapping[str, Mapping[Place, CellResult]]) -> list[dict[str, Any]]:
    """The final cells that diverged or failed."""
    return [
        {"cell": result.key, "experiment": name, "arm": place.arm, "state": result.state, "error": result.error}
        for name, found in cells.items()
        for place, result in sorted(found.items(), key=lambda entry: entry[1].key)
        if result.state != "done"
    ]
