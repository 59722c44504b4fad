"""From the results of a study to its figures and its page: ``numbers.json``, ``costs.json``, ``trials.csv``, ``report.html``.

The same results give the same figures to the bit, in whatever order and in how many attempts they were computed; nothing in
``numbers.json`` depends on time. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.config.parse import plain
from vitrail.files import dump_json, read_checksummed, replace_file, replace_nan
from vitrail.rows import Rows
from vitrail.runtime.machine import describe, versions
from vitrail.studies.aggregate import Aggregate, Group, NotAskedError, Placed, UnsureError
from vitrail.studies.design import Claim, Study, common_settings, paper_claims
from vitrail.studies.paper import METRICS, fit_table_6
from vitrail.studies.plan import FORMAT, Place, TrialResult, losses_of, read_plan
from vitrail.studies.statistics import LEVEL, Estimate, Student
from vitrail.studies.verdicts import Question, Verdict, decide, decide_all, show
from vitrail.tables import open_table
from vitrail.text import plural
from vitrail.training.lr_search import RateChoice

MAX_SEEDS = 100  # that are advised
WIDER = "a wider grid of learning rates, as in experiments.NAME.rates.grid"
LONGER = "a longer training: a longer --budget, or more schedule.steps"
SPLITS = ("test", "validation", "train")
UNLISTED = (*SPLITS, "curve", "findings", "right", "device", "host")  # what is no column of trials.csv


class Tuning(NamedTuple):
    """The tuning trials of an arm by rate, and the rate that they choose."""

    tried: Mapping[float, TrialResult]
    choice: RateChoice

    @property
    def is_at_edge(self) -> bool:
        """Whether a better rate may lie beyond those tried; of an arm that always diverged none is known."""
        return self.choice.best is not None and self.choice.is_at_edge


Tunings = Mapping[str, Mapping[str, Tuning]]  # by experiment and arm


@dataclass(frozen=True, repr=False)
class StudyReport(Rows):
    """A study that was decided: its ``folder``, its page ``report``, and all figures as in ``numbers.json``."""

    folder: Path
    report: Path
    numbers: dict[str, Any]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each claim: ``claim``, ``verdict``, ``estimate`` and the ends of its interval, ``unit``, ``why``."""
        rows = []
        for claim in self.numbers["claims"]:
            effect = {name: (claim["effect"] or {}).get(name) for name in ("estimate", "low", "high", "unit")}
            rows.append({"claim": claim["name"], "verdict": claim["verdict"], **effect, "why": claim["why"]})
        return rows


def report_study(folder: str | Path) -> StudyReport:
    """Decides the results that there are in the ``folder`` of a study, and writes figures and page.

    Raises `ConfigError` for a folder without a plan, and `DiskError`.
    """
    from vitrail.studies.page import write_study_page

    folder = Path(folder)
    plan, earlier = read_plan(folder)
    results, facts = plan.read_results(folder), plain(plan.pool)
    trials: dict[str, dict[Place, TrialResult]] = {}
    tunings: dict[str, dict[str, Tuning]] = {}
    for experiment, placed in plan.places.items():
        trials[experiment] = {place: results[trial.key] for place, trial in placed.items() if trial.key in results}
        searches = {place.arm: trial.search for place, trial in placed.items() if trial.search is not None}
        tunings[experiment] = {arm: Tuning(each.tried(results), each.choose(results)) for arm, each in searches.items()}
    numbers = evaluate_study(
        plan.study,
        trials,
        tunings,
        data={name: facts[name] for name in ("name", "classes", "training", "validation", "test")},
        plan={"sha256": plan.sha256, "earlier": earlier, "reductions": list(plan.reductions)},
        not_asked=plan.not_asked,
    )
    rows, asked = list_trials(trials, tunings), read_checksummed(folder / "run.json") or {}
    costs = {
        "total_seconds": sum(row["seconds"] for row in rows),
        "flops": sum(row["flops"] for row in rows),
        **{name: asked.get(name) for name in ("predicted_seconds", "budget_seconds", "command")},
        "trials": rows,
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


def list_trials(trials: Placed, tunings: Tunings) -> list[dict[str, Any]]:
    """Returns a row for each training, at its first place: tuning trials, then final ones."""
    tuned = [
        (experiment, Place(arm, (), result.seed), result)
        for experiment, arms in tunings.items()
        for arm, tuning in arms.items()
        for result in tuning.tried.values()
    ]
    final = [(experiment, place, result) for experiment, placed in trials.items() for place, result in placed.items()]
    rows: dict[str, dict[str, Any]] = {}
    for name, place, each in (*tuned, *final):
        levels = " ".join(f"{path}={level}" for path, level in place.levels)
        figures = {f"{split}_{key}": getattr(each, split).get(key) for split in SPLITS for key in ("accuracy", "nll")}
        machine = " on ".join(filter(None, (each.device, each.host)))  # neither is known of a trial that was given up
        spent = {"seconds": each.seconds, "attempts": each.attempts, "machine": machine}
        own = {key: value for key, value in vars(each).items() if key not in UNLISTED}
        rows.setdefault(each.key, {"experiment": name, "arm": place.arm, "levels": levels, **own, **figures, **spent})
    return list(rows.values())


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A claim with its figures and whose they are, and why it is not decided: a ``doubt``, or being ``outside`` of its range."""

    claim: Claim
    figures: Sequence[Estimate] = ()
    groups: Sequence[Group] = ()
    doubt: str = ""
    remedy: str = ""
    outside: str = ""


def evaluate_study(
    study: Study,
    trials: Placed,
    tunings: Tunings,
    *,
    data: Mapping[str, Any],
    plan: Mapping[str, Any],
    not_asked: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Returns all figures of a study, as ``numbers.json`` holds them, ``data`` and ``plan`` among them."""
    aggregate = Aggregate(study, trials, classes=data["classes"], images=data["test"])
    cases, unasked = [], list(not_asked)
    for claim in study.claims:
        try:
            cases.append(_measure(claim, aggregate, tunings.get(claim.experiment, {})))
        except NotAskedError as error:
            unasked.append({"name": claim.name, "why": str(error)})
    decided = decide_all(
        {
            case.claim.name: Question(case.claim.rule, case.figures, case.claim.unit)
            for case in cases
            if case.figures and not (case.doubt or case.outside)
        }
    )
    final = [(name, place, result) for name, placed in trials.items() for place, result in placed.items()]
    of_paper = any(claim.name in paper_claims() for claim in study.claims)
    lost = [training for training in final if training[2].state != "done"]
    numbers = {
        "format": FORMAT,
        "study": study.name,
        "plan": plan,
        "data": data,
        "base": {**common_settings(), **study.base},
        "claims": [_describe(case, decided.get(case.claim.name)) for case in cases],
        "arms": list_arms(aggregate),
        "rates": list_rates(tunings),
        "published": {metric: fit_table_6(metric) for metric in METRICS} if of_paper else {},
        "heads": list_heads(aggregate),
        "not_asked": unasked,
        "failures": [
            {"trial": each.key, "experiment": name, "arm": place.arm, "state": each.state, "error": each.error}
            for name, place, each in sorted(lost, key=lambda training: training[2].key)
        ],
        "versions": sorted({result.version for _, _, result in final if result.version}),
    }
    return replace_nan(plain(numbers))


def _measure(claim: Claim, aggregate: Aggregate, tunings: Mapping[str, Tuning]) -> _Case:
    """Returns a claim with its figures, and why it cannot be decided. Raises `NotAskedError` without trials for it."""
    try:
        figures, groups = aggregate.measure(claim.contrast, claim.experiment, claim.scale)
    except UnsureError as error:
        return _Case(claim=claim, doubt=str(error))
    case = _Case(claim=claim, figures=figures, groups=groups)
    for group in groups:
        if doubt := aggregate.find_undertrained(group):
            return replace(case, doubt=doubt, remedy=LONGER)
    for arm in dict.fromkeys(group.arm for group in groups):
        if arm in tunings and tunings[arm].is_at_edge:
            doubt = f"the best learning rate of {arm} is at the edge of those that were tried"
            return replace(case, doubt=doubt, remedy=WIDER)
    for group in groups if claim.regime else ():
        if group.regime and group.regime != claim.regime:
            gap = show(group.mean("train") - group.accuracy, "points")
            kinds = f"the claim is about {claim.regime} networks, and {group} is {group.regime}"
            return replace(case, outside=f"{kinds}: train - test is {gap}")
    return case


def _describe(case: _Case, decided: Verdict | None) -> dict[str, Any]:
    """Returns the row of a claim, given the verdict at Holm's level if it can be decided."""
    claim = case.claim
    low, high = claim.rule.zone
    row: dict[str, Any] = {
        **{name: getattr(claim, name) for name in ("name", "quote", "source", "question", "experiment", "caveat")},
        "rule": {"kind": claim.rule.kind, "low": low, "high": high},
    }
    if not case.figures:
        nothing = {"effect": None, "detectable": None, "to_tell": "", "regime": ""}
        return {**row, "verdict": "cannot tell", "why": case.doubt, **nothing}
    alone = decide(Question(claim.rule, case.figures, claim.unit))
    verdict = decided or replace(
        alone, kind="cannot tell" if case.doubt else "out of range", why=case.doubt or case.outside
    )
    if decided and claim.beyond and verdict.kind != "held":
        verdict = replace(verdict, kind="out of range", why=claim.beyond)
    elif decided and verdict.level > LEVEL:
        more = f"; alone, at {LEVEL:.0%}, it would be {alone.kind!r}" if alone.kind != verdict.kind else ""
        verdict = replace(verdict, why=f"{verdict.why} (at {verdict.level:.2%}, for several claims{more})")
    figure = next((each for each in case.figures if each.value == verdict.effect), case.figures[0])
    student, seeds = figure if isinstance(figure, Student) else None, min(len(group.values) for group in case.groups)
    effect = {**with_interval(figure), "unit": claim.unit, "level": LEVEL, "seeds": seeds}
    return {
        **row,
        "verdict": verdict.kind,
        "verdict_level": verdict.level,
        "effect": {**effect, "df": student and student.freedom},
        "detectable": student and student.detectable(),
        "why": verdict.why,
        "to_tell": case.remedy or _advise(claim, figure, seeds, verdict),
        "regime": ", ".join(dict.fromkeys(group.regime for group in case.groups if group.regime)),
    }


def _advise(claim: Claim, figure: Estimate, seeds: int, verdict: Verdict) -> str:
    """Returns how many more seeds would decide a claim that cannot be told; empty where it is decided or not known."""
    if verdict.kind != "cannot tell" or not isinstance(figure, Student) or seeds < 2:
        return ""
    effect = abs(claim.rule.zone[0]) or abs(figure.value)
    shown = f"would show a difference of {show(effect, claim.unit)}"
    for more in range(MAX_SEEDS + 1):
        if figure.with_seeds(seeds, seeds + more).detectable(level=verdict.level) <= effect:
            return f"{plural(more, 'more seed')} {shown}" if more else f"a study of this size {shown}"
    return f"no number of seeds {shown}: that needs more test images"


def with_interval(figure: Estimate) -> dict[str, Any]:
    """Returns ``estimate``, ``low`` and ``high``."""
    low, high = figure.bounds(LEVEL)
    return {"estimate": figure.value, "low": low, "high": high}


def list_arms(aggregate: Aggregate) -> list[dict[str, Any]]:
    """Returns a row for each arm at each level; accuracies on test images, with an interval over seeds and images."""
    return [
        {
            "experiment": experiment,
            "arm": group.arm,
            "levels": dict(group.levels),
            "limit": group.limit,
            "seeds": len(group.values),
            "accuracy": with_interval(aggregate.combine([group], [1.0], "points")),
            "train": group.mean("train"),
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
    """Returns the rates that were tried for each arm, the chosen one, and whether it is at the edge."""
    return [
        {
            "experiment": experiment,
            "arm": arm,
            "points": [{"lr": rate, "nll": loss} for rate, loss in losses_of(tuning.tried).items()],
            "best": tuning.choice.best,
            "edge": tuning.is_at_edge,
        }
        for experiment, arms in tunings.items()
        for arm, tuning in arms.items()
        if tuning.tried
    ]


def list_heads(aggregate: Aggregate) -> list[dict[str, Any]]:
    """Returns the attention distances of the first trial of each network of the experiments that measure them."""
    return [
        {"model": f"{experiment}: {group}", "layers": layers}
        for experiment, groups in aggregate.groups.items()
        for group in groups
        if "heads" in aggregate.study.experiment(experiment).measure
        and (layers := group.results[0].findings.get("heads", {}).get("layers"))
    ]
