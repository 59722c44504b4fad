"""From the results of a study to its figures and its page: ``numbers.json``, ``costs.json``, ``trials.csv``, ``report.html``.

The same results give the same figures to the bit, in whatever order and in how many attempts they were computed; nothing in
``numbers.json`` depends on time. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config.parse import plain
from vitrail.files import dump_json, read_sealed, replace_file
from vitrail.rows import Rows
from vitrail.runtime.machine import describe, versions
from vitrail.studies.aggregate import Aggregate, Measured, NotAskedError, Placed, UnsureError
from vitrail.studies.design import COMMON, Claim, Difference, Study, paper_claims, unit_of
from vitrail.studies.paper import list_published
from vitrail.studies.plan import Place, Plan, find_best, losses_of, read_plan
from vitrail.studies.results import FORMAT, TrialResult
from vitrail.studies.statistics import LEVEL, Estimate, Student
from vitrail.studies.verdicts import Equal, Question, Unit, Verdict, judge, judge_all, show
from vitrail.tables import open_table

MOST_SEEDS = 100  # that are advised
WIDER = "a wider grid of learning rates, as in experiments.NAME.rates.grid"
LONGER = "a longer training: a longer --budget, or more schedule.steps"
Tunings = Mapping[str, Mapping[str, Mapping[float, TrialResult]]]  # experiment -> arm -> rate -> its tuning trial


@dataclass(frozen=True, repr=False)
class StudyReport(Rows):
    """A study that was judged: its ``folder``, its page ``report``, and all figures as in ``numbers.json``."""

    folder: Path
    report: Path
    numbers: dict[str, Any]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each claim: ``claim``, ``verdict``, ``estimate`` and the ends of its interval, ``unit``, ``why``."""
        return [
            {
                "claim": claim["name"],
                "verdict": claim["verdict"],
                **{name: (claim["effect"] or {}).get(name) for name in ("estimate", "low", "high", "unit")},
                "why": claim["why"],
            }
            for claim in self.numbers["claims"]
        ]


def report_study(folder: str | Path) -> StudyReport:
    """Judges the results that there are in the ``folder`` of a study, and writes figures and page.

    Raises `ConfigError` for a folder without a plan, and `DiskError`.
    """
    from vitrail.studies.page import write_study_page

    folder = Path(folder)
    plan, earlier = read_plan(folder)
    results, facts = plan.read_results(folder), plain(plan.pool)
    trials = {
        experiment: {place: results[trial.key] for place, trial in placed.items() if trial.key in results}
        for experiment, placed in plan.places.items()
    }
    tunings = collect_tunings(plan, results)
    numbers = judge_study(
        plan.study,
        trials,
        tunings,
        data={name: facts[name] for name in ("name", "classes", "training", "validation", "test")},
        plan={"sha256": plan.sha256, "earlier": earlier, "reductions": list(plan.reductions)},
        not_asked=plan.not_asked,
    )
    rows = list_trials(trials, tunings)
    asked = read_sealed(folder / "run.json") or {}
    costs = {
        "total_seconds": sum(row["seconds"] for row in rows),
        "flops": sum(row["flops"] for row in rows),
        **{name: asked.get(name) for name in ("predicted_seconds", "budget_seconds", "command")},
        "trials": [
            {name: row[name] for name in ("experiment", "kind", "seconds", "attempts", "host", "device")}
            for row in rows
        ],
        "machine": describe(),
        "versions": versions(),
        "date": date.today().isoformat(),
    }
    replace_file(folder / "numbers.json", dump_json(numbers))
    replace_file(folder / "costs.json", dump_json(costs))
    with open_table(folder / "trials.csv") as write:
        for row in rows:
            write(row)
    return StudyReport(folder, write_study_page(folder, numbers, costs), numbers)


def collect_tunings(plan: Plan, results: Mapping[str, TrialResult]) -> dict[str, dict[str, dict[float, TrialResult]]]:
    """Returns the tuning results that there are, by experiment, arm and rate."""
    found: dict[str, dict[str, dict[float, TrialResult]]] = {}
    for experiment, placed in plan.places.items():
        own = found[experiment] = {}
        for place, trial in placed.items():
            if trial.search is not None and place.arm not in own:
                own[place.arm] = trial.search.tried(results)
    return found


def list_trials(trials: Placed, tunings: Tunings) -> list[dict[str, Any]]:
    """Returns a row for each training, at its first place: tuning trials, then final ones."""
    tuned = (
        (experiment, Place(arm, (), result.seed), result)
        for experiment, arms in tunings.items()
        for arm, by_rate in arms.items()
        for result in by_rate.values()
    )
    final = ((experiment, place, result) for experiment, found in trials.items() for place, result in found.items())
    splits = ("test", "validation", "train")
    last = ("flops", "macs6", "parameters", "seconds", "attempts", "device", "commit", "key", "error")
    rows: dict[str, dict[str, Any]] = {}
    for experiment, place, result in (*tuned, *final):
        row = {
            "experiment": experiment,
            "arm": place.arm,
            "levels": " ".join(f"{path}={level}" for path, level in place.levels),
            "seed": place.seed,
            **{name: getattr(result, name) for name in ("kind", "state", "rate", "limit", "steps", "images")},
            **{f"{split}_{name}": getattr(result, split).get(name) for split in splits for name in ("accuracy", "nll")},
            **{name: getattr(result, name) for name in last},
            "host": result.host,
            "peak_bytes": result.peak_bytes,
        }
        rows.setdefault(result.key, row)
    return list(rows.values())


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A claim with its figures, and why it is not decided: a ``doubt`` and what would remove it, or its range (``outside``)."""

    claim: Claim
    measured: Measured | None
    doubt: str = ""
    remedy: str = ""
    outside: str = ""

    @property
    def unit(self) -> Unit:
        return unit_of(self.claim.contrast, self.claim.scale)

    @property
    def question(self) -> Question:
        assert self.measured is not None, "a claim without figures is not judged"
        return Question(self.claim.rule, self.measured.figures, self.unit)


def judge_study(
    study: Study,
    trials: Placed,
    tunings: Tunings,
    *,
    data: Mapping[str, Any],
    plan: Mapping[str, Any],
    not_asked: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Returns all figures of a study, as ``numbers.json`` holds them.

    Args:
        data: ``name``, ``classes`` and the numbers of ``training``, ``validation`` and ``test`` images.
        plan: ``sha256``, and those of ``earlier`` plans.
        not_asked: claims that the plan left out, ``name`` and ``why``.
    """
    aggregate = Aggregate(study, trials, classes=data["classes"], images=data["test"])
    cases, unasked = [], list(not_asked)
    for claim in study.claims:
        try:
            cases.append(_measure(claim, aggregate, tunings.get(claim.experiment, {})))
        except NotAskedError as error:
            unasked.append({"name": claim.name, "why": str(error)})
    verdicts = _decide(cases)
    of_paper = any(claim.name in paper_claims() for claim in study.claims)
    return plain(
        {
            "format": FORMAT,
            "study": study.name,
            "plan": plan,
            "data": data,
            "base": {**COMMON, **study.base},
            "claims": [
                _describe(case, verdicts.get(case.claim.name), aggregate, tunings.get(case.claim.experiment, {}))
                for case in cases
            ],
            "arms": list_arms(aggregate),
            "rates": list_rates(tunings),
            "published": list_published() if of_paper else [],
            **list_findings(aggregate),
            "not_asked": unasked,
            "failures": [
                {"trial": each.key, "experiment": name, "arm": place.arm, "state": each.state, "error": each.error}
                for name, found in trials.items()
                for place, each in sorted(found.items(), key=lambda entry: entry[1].key)
                if each.state != "done"
            ],
            "commits": sorted({each.commit for found in trials.values() for each in found.values() if each.commit}),
        }
    )


def _measure(claim: Claim, aggregate: Aggregate, tunings: Mapping[str, Mapping[float, TrialResult]]) -> _Case:
    """Returns a claim with its figures, and why it cannot be decided. Raises `NotAskedError` without trials for it."""
    try:
        measured = aggregate.measure(claim.contrast, claim.experiment, claim.scale)
    except UnsureError as error:
        return _Case(claim=claim, measured=None, doubt=str(error))
    for group in measured.groups:
        if doubt := aggregate.find_undertrained(group):
            return _Case(claim=claim, measured=measured, doubt=doubt, remedy=LONGER)
    for arm in dict.fromkeys(group.arm for group in measured.groups):
        if (tuned := tunings.get(arm)) and find_best(tuned).edge:
            doubt = f"the best learning rate of {arm} is at the edge of those that were tried"
            return _Case(claim=claim, measured=measured, doubt=doubt, remedy=WIDER)
    for group in measured.groups if claim.regime else ():
        if group.regime and group.regime != claim.regime:
            gap = show(group.mean("train", "accuracy") - group.accuracy, "points")
            outside = (
                f"the claim is about {claim.regime} networks, and {group} is {group.regime}: train - test is {gap}"
            )
            return _Case(claim=claim, measured=measured, outside=outside)
    return _Case(claim=claim, measured=measured)


def _decide(cases: Sequence[_Case]) -> dict[str, Verdict]:
    """Returns the verdicts by claim, at Holm's levels over those that can be decided; none for a claim without figures."""
    asked = {case.claim.name: case for case in cases if case.measured is not None}
    verdicts = judge_all({name: case.question for name, case in asked.items() if not (case.doubt or case.outside)})
    for name, case in asked.items():
        alone = judge(case.question.rule, case.question.figures, unit=case.unit)
        if case.doubt:
            verdicts[name] = replace(alone, kind="cannot tell", why=case.doubt)
        elif case.outside:
            verdicts[name] = replace(alone, kind="out of range", why=case.outside)
        elif case.claim.beyond and verdicts[name].kind != "held":
            verdicts[name] = replace(verdicts[name], kind="out of range", why=case.claim.beyond)
        elif (found := verdicts[name]).level > LEVEL:
            more = f"; alone, at {LEVEL:.0%}, it would be {alone.kind!r}" if alone.kind != found.kind else ""
            verdicts[name] = replace(found, why=f"{found.why} (at {found.level:.2%}, for several claims{more})")
    return verdicts


def _describe(
    case: _Case, verdict: Verdict | None, aggregate: Aggregate, tunings: Mapping[str, Mapping[float, TrialResult]]
) -> dict[str, Any]:
    """Returns the row of a claim."""
    claim, measured = case.claim, case.measured
    low, high = claim.rule.zone
    row: dict[str, Any] = {
        **{name: getattr(claim, name) for name in ("name", "quote", "source", "question", "experiment", "caveat")},
        "rule": {"kind": claim.rule.kind, "low": low, "high": high},
    }
    if measured is None or verdict is None:
        nothing = {"effect": None, "detectable": None, "to_tell": "", "regime": "", "beside": []}
        return {**row, "verdict": "cannot tell", "why": case.doubt, **nothing}
    figure = next((each for each in measured.figures if each.value == verdict.effect), measured.figures[0])
    seeds = min(len(group.values) for group in measured.groups)
    student = figure if isinstance(figure, Student) else None
    df = student and finite(student.freedom)
    return {
        **row,
        "verdict": verdict.kind,
        "verdict_level": verdict.level,
        "effect": {**with_interval(figure), "unit": case.unit, "level": LEVEL, "df": df, "seeds": seeds},
        "detectable": student and finite(student.detectable()),
        "why": verdict.why,
        "to_tell": case.remedy or _advise(case, figure, seeds, verdict),
        "regime": ", ".join(dict.fromkeys(group.regime for group in measured.groups if group.regime)),
        "beside": list(_list_secondary(case, measured, aggregate, tunings)),
    }


def _advise(case: _Case, figure: Estimate, seeds: int, verdict: Verdict) -> str:
    """Returns how many more seeds would decide a claim that cannot be told; empty where it is decided or not known."""
    if verdict.kind != "cannot tell" or not isinstance(figure, Student) or seeds < 2:
        return ""
    effect = abs(case.claim.rule.zone[0]) or abs(figure.value)
    shown = f"would show a difference of {show(effect, case.unit)}"
    for more in range(MOST_SEEDS + 1):
        if figure.with_seeds(seeds, seeds + more).detectable(level=verdict.level) <= effect:
            return (
                f"{more} more {'seed' if more == 1 else 'seeds'} {shown}" if more else f"a study of this size {shown}"
            )
    return f"no number of seeds {shown}: that needs more test images"


def _list_secondary(
    case: _Case, measured: Measured, aggregate: Aggregate, tunings: Mapping[str, Mapping[float, TrialResult]]
) -> Iterator[dict[str, Any]]:
    """Yields the figures beside a verdict: those of the claim, and what belongs to contrasts of its kind."""
    claim = case.claim
    for other in claim.beside:
        try:
            found = aggregate.measure(other.contrast, other.experiment or claim.experiment, claim.scale)
        except (NotAskedError, UnsureError):
            continue
        yield {"name": other.name, **with_interval(found.figures[0]), "unit": unit_of(other.contrast, claim.scale)}
    alone: list[tuple[str, float, str]] = []
    if claim.regime == "data-limited":
        for group in measured.groups:
            gap = group.mean("train", "accuracy") - group.accuracy
            alone.append((f"train - test of {group}", gap, "points"))
    if measured.ratio is not None:
        alone.append(("p-value of equal slopes", measured.ratio.same_slope, "share"))
    if isinstance(claim.rule, Equal) and isinstance(claim.contrast, Difference):
        plus, minus = (find_best(tunings.get(side[0][0].arm, {})).best for side in (measured.plus, measured.minus))
        if plus is not None and minus is not None:
            alone.append(("best learning rate, plus / minus", plus / minus, "ratio"))
    for name, value, unit in alone:
        yield {"name": name, "estimate": finite(value), "low": None, "high": None, "unit": unit}


def finite(value: float) -> float | None:
    """Returns a figure as JSON can hold it: None where it is not finite."""
    return float(value) if math.isfinite(value) else None


def with_interval(figure: Estimate) -> dict[str, Any]:
    """Returns ``estimate``, ``low`` and ``high``."""
    low, high = figure.bounds(LEVEL)
    return {"estimate": finite(figure.value), "low": finite(low), "high": finite(high)}


def list_arms(aggregate: Aggregate) -> list[dict[str, Any]]:
    """Returns a row for each arm at each level; accuracies on test images, with an interval over seeds and images."""
    return [
        {
            "experiment": experiment,
            "arm": group.arm,
            "levels": dict(group.levels),
            "limit": group.limit,
            "seeds": len(group.values),
            "steps": group.results[0].steps,
            "accuracy": with_interval(aggregate.combine([group], [1.0], "points")),
            "train": finite(group.mean("train", "accuracy")),
            "validation": finite(group.mean("validation", "accuracy")),
            "nll": finite(group.mean("test", "nll")),
            "regime": group.regime,
            "undertrained": aggregate.find_undertrained(group),
            "curve": [dict(point) for point in group.results[0].curve],
            "flops": max(result.flops for result in group.results),
            "macs6": group.macs6,
            "parameters": max(result.parameters for result in group.results),
            "rate": group.results[0].rate,
        }
        for experiment, groups in aggregate.groups.items()
        for group in groups
        if len(group.values)
    ]


def list_rates(tunings: Tunings) -> list[dict[str, Any]]:
    """Returns the rates that were tried for each arm, the best one, and whether it is at the edge."""
    rows = []
    for experiment, arms in tunings.items():
        for arm, tuned in arms.items():
            losses, best = losses_of(tuned), find_best(tuned)
            points = [
                {"lr": rate, "nll": finite(loss), "accuracy": tuned[rate].validation.get("accuracy")}
                for rate, loss in losses.items()
            ]
            if points:
                rows.append(
                    {"experiment": experiment, "arm": arm, "points": points, "best": best.best, "edge": best.edge}
                )
    return rows


def list_findings(aggregate: Aggregate) -> dict[str, Any]:
    """Returns, for each network, the attention distances of its first trial and the position statistics over its trials."""
    heads, positions = [], []
    names = ("neighbour_rate", "row_column_excess", "untrained_neighbour_rate")
    for experiment, groups in aggregate.groups.items():
        measured_here = aggregate.study.experiment(experiment).measure
        for group in groups:
            found, model = [result.findings for result in group.results], f"{experiment}: {group}"
            if "heads" in measured_here and (layers := found[0].get("heads", {}).get("layers")):
                heads.append({"model": model, "layers": layers})
            known = [each["positions"] for each in found if "positions" in each]
            if "positions" in measured_here and known:
                positions.append(
                    {"model": model, **{name: float(np.mean([each[name] for each in known])) for name in names}}
                )
    return {"heads": heads, "positions": positions}
