"""`vitrail study`: planned, computed by as many workers as there are cores, and reported; the same call continues."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.checksums import sha256_of
from vitrail.config.parse import plain
from vitrail.data.sources.source import Splits
from vitrail.errors import ConfigError, DataError, DiskError
from vitrail.files import make_folder, read_sealed, write_sealed
from vitrail.runtime.device import find_device
from vitrail.runtime.process import cores
from vitrail.runtime.progress import ProgressBar, Say, duration
from vitrail.runtime.signals import end_at_once
from vitrail.studies.costs import NetworkCost, count_flops, measure_networks, price_trials, read_costs
from vitrail.studies.design import Study
from vitrail.studies.images import DATA, find_damage, open_images, store_images
from vitrail.studies.plan import (
    Plan,
    PoolFacts,
    check_format,
    choose_claims,
    fit_to_images,
    make_plan,
    read_plan,
    write_plan,
)
from vitrail.studies.results import RUNS, TrialResult
from vitrail.studies.worker import CONTINUE, WorkerPool

START, RESERVE = 8.0, 0.08  # seconds before the first step of a worker; the share of a budget that is kept for the page
NOTED_EVERY = 10.0  # seconds between two states of progress.json
WORKERS_A_GPU = 6  # small networks do not fill one


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """What a call asks for.

    Args:
        definition: the study, whose ``pool.source`` names the images.
        data: images in memory, in place of ``pool.source``.
        budget: seconds of the clock, everything included; None is no bound.
        claims: names of the claims that are asked; all of the study's without any.
        jobs: worker processes; by default one for each core, or some for a GPU.
        until: seconds after which this call stops; the same call continues.
    """

    definition: Study
    data: Any = None
    budget: float | None = None
    claims: tuple[str, ...] = ()
    jobs: int | None = None
    until: float | None = None
    command: str = ""

    @property
    def digest(self) -> str:
        """Equal for equal requests: the same one continues its plan."""
        asked = [plain(self.definition), self.budget, list(self.claims)]
        return sha256_of(json.dumps(asked, sort_keys=True).encode())

    def open_images(self, say: Say) -> tuple[Splits, PoolFacts]:
        """Opens the images that a call asks for. Raises `ConfigError` without any, and `DataError`."""
        pool = self.definition.pool
        if self.data is None and not pool.source:
            raise ConfigError(f"the study {self.definition.name!r} names no images", "vitrail study DATA")
        splits, facts = open_images(pool, self.data, channels=self.definition.base.get("data.channels"))
        if self.data is not None and facts.size is None:
            raise DataError("large images in memory cannot be given to the workers", "give the path of their folder")
        say(
            f"data     {facts.training:,} training, {facts.validation:,} validation images; tested on {facts.test_split}"
        )
        return splits, facts


@dataclass(frozen=True, kw_only=True)
class PricedPlan:
    """A plan with what its trials are expected to take on this machine, in ``jobs`` processes."""

    plan: Plan
    costs: dict[str, NetworkCost]
    jobs: int

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The seconds of every trial that is foreseen, by key."""
        price = price_trials(self.costs, self.plan.pool)
        return {trial.key: price(trial) for trial in self.plan.foreseen()}

    def seconds_left(self, results: Mapping[str, TrialResult]) -> float:
        """Returns the seconds of the clock until all trials have a result."""
        return sum(spent for key, spent in self.seconds.items() if key not in results) / self.jobs


def run_study(request: StudyRequest, out: Path, *, quiet: bool = False, say: Say) -> None:
    """Plans a study in the folder ``out`` or continues it, and computes what is missing. Raises as `vitrail.study`."""
    started = time.monotonic()
    make_folder(out)
    priced = plan_or_continue(request, out, say)
    for line in describe_plan(priced, out):
        say(line)
    note = {"predicted_seconds": sum(priced.seconds.values()) / priced.jobs, "budget_seconds": request.budget}
    write_sealed(out / "run.json", {**note, "command": request.command})
    run_workers(priced, out, ends=math.inf if request.until is None else started + request.until, quiet=quiet)
    results, trials = priced.plan.read_results(out), priced.plan.trials
    taken = duration(time.monotonic() - started)
    if priced.plan.list_ready(results) is None:
        shutil.rmtree(out / RUNS, ignore_errors=True)
        say(f"done     {len(trials)} trials after {taken}")
    else:
        say(f"stopped  with {sum(key in results for key in trials)} of {len(trials)} trials after {taken}; {CONTINUE}")


def plan_or_continue(request: StudyRequest, out: Path, say: Say) -> PricedPlan:
    """Returns the plan in the folder, if it was made for the same request, else a new one, which is written."""
    before, name = read_sealed(out / "plan.json"), request.definition.name
    if before is None and (out / "plan.json").exists():
        say(f"warning  {out / 'plan.json'} is damaged; the study is planned again")
    if before is not None:
        check_format(before, out)
        if before["study"]["name"] != name:
            raise ConfigError(f"{out} holds the study {before['study']['name']!r}, not {name!r}", "give another --out")
        if before["request"] == request.digest:
            plan, _ = read_plan(out)
            say(f"plan     continues {plan.sha256[:12]}")
            _repair_images(request, out, plan, say)
            jobs = choose_jobs(request.jobs, plan.device)
            return PricedPlan(plan=plan, costs=read_costs(out, jobs), jobs=jobs)
    priced, splits = make_priced_plan(request, out, say)
    store_images(out, splits, priced.plan.pool.fingerprint)
    if earlier := write_plan(out, priced.plan):
        say(f"plan     the plan changed: {priced.plan.sha256[:12]} after {', '.join(each[:12] for each in earlier)}")
    return priced


def _repair_images(request: StudyRequest, out: Path, plan: Plan, say: Say) -> None:
    """Stores the images of a study again that has trials to compute, where what is stored is damaged."""
    if not (out / DATA).exists() or plan.list_ready(plan.read_results(out)) is None:
        return
    if damage := find_damage(out, plan.pool.fingerprint):
        say(f"warning  {damage}; the images are stored again")
        splits, facts = request.open_images(say)
        if facts.fingerprint == plan.pool.fingerprint:  # workers refuse others
            store_images(out, splits, facts.fingerprint)


def plan_only(request: StudyRequest, out: Path, say: Say) -> None:
    """Describes the plan of a study, of which nothing is written but the measured costs, if ``out`` exists."""
    for line in describe_plan(make_priced_plan(request, out, say)[0], out):
        say(line)


def make_priced_plan(request: StudyRequest, out: Path, say: Say) -> tuple[PricedPlan, Splits]:
    """Returns a new plan, and the images; the time that planning takes is part of the budget.

    Nothing is written but the measured costs, if ``out`` exists.
    """
    began = time.monotonic()
    splits, facts = request.open_images(say)
    definition = choose_claims(request.definition, request.claims)
    device = find_device(definition.base.get("compute.device") or "cpu").type
    jobs = choose_jobs(request.jobs, device)
    whole = Plan(study=fit_to_images(definition, facts)[0], pool=facts, device=device)
    runs = [trial.run for trial in whole.foreseen()]
    costs = measure_networks(out, runs, splits, say, jobs=jobs, device=device)
    spent = time.monotonic() - began + START
    budget = None if request.budget is None else max(request.budget * (1 - RESERVE) - spent, 0.0) * jobs
    price = price_trials(costs, facts)
    plan = make_plan(definition, facts, device=device, request=request.digest, price=price, budget=budget)
    return PricedPlan(plan=plan, costs=costs, jobs=jobs), splits


def choose_jobs(jobs: int | None, device: str) -> int:
    """Returns the number of worker processes. Raises `ConfigError` for less than one."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs is {jobs}", "give 1 or more")
    return jobs or (WORKERS_A_GPU if device == "cuda" else cores())


def describe_plan(priced: PricedPlan, folder: Path) -> list[str]:
    """Returns the plan as lines for a terminal: trials and times, what was left out, what can be detected."""
    plan, done = priced.plan, priced.plan.read_results(folder)
    rows: list[tuple[str, ...]] = [("experiment", "trials", "done", "TFLOP", "core min", "claims")]
    groups = {"tuning": [search.trial(rate) for search in plan.searches.values() for rate in search.rates.grid]}
    groups |= {name: list(placed.values()) for name, placed in plan.places.items()}
    counted: set[str] = set()
    for name, trials in groups.items():
        own = {
            trial.key: trial for trial in trials if trial.key not in counted
        }  # those of an earlier experiment are shared
        counted.update(own)
        flops = sum(count_flops(priced.costs, trial) for trial in own.values()) / 1e12
        minutes = sum(priced.seconds[key] for key in own) / 60
        claims = " ".join(claim.name for claim in plan.study.claims if claim.experiment == name)
        finished = sum(key in done for key in own)
        rows.append((name, f"{len(own)}", f"{finished}", f"{flops:.3g}", f"{minutes:.1f}", claims))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        *(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:]), row[-1]]).rstrip()
            for row in rows
        ),
        f"plan     {plan.sha256[:12]}: {len(counted)} trials, {duration(priced.seconds_left({}))} with {priced.jobs} processes",
        *(f"reduced  {change}" for change in plan.reductions),
        *(f"not asked {each['name']}: {each['why']}" for each in plan.not_asked),
        *(f"detects  {name}: {100 * value:.1f} points" for name, value in plan.detectable.items()),
    ]


def run_workers(priced: PricedPlan, out: Path, *, ends: float = math.inf, quiet: bool) -> None:
    """Computes the trials that have no result yet, and shows on a terminal and in ``progress.json``, by which a server lists the
    study among its runs, how far that is. At the time ``ends`` of the monotonic clock the workers are asked to save and end.

    Raises as `WorkerPool.wait`, and `Preempted` or `Interrupted` when it is stopped.
    """
    plan, total = priced.plan, len(priced.seconds)
    results, noted = plan.read_results(out), -math.inf
    if plan.list_ready(results) is None:
        return
    workers = WorkerPool(out, priced.jobs)

    def note(state: str, left: float) -> None:
        done = sum(key in results for key in priced.seconds)
        write_sealed(out / "progress.json", {"state": state, "done": done, "trials": total, "seconds_left": left})

    with ProgressBar("studying", total, quiet=quiet) as bar, end_at_once(CONTINUE):

        def show() -> None:
            nonlocal results, noted
            results = plan.read_results(out, results)
            left = priced.seconds_left(results)
            bar.update(sum(key in results for key in priced.seconds), left=duration(left))
            if time.monotonic() - noted > NOTED_EVERY:
                noted = time.monotonic()
                note("running", left)

        try:
            workers.wait(show, ends=ends)
        finally:
            workers.stop()
            results = plan.read_results(out, results)
            with suppress(DiskError):  # what stopped the study is raised, not this
                note("finished" if plan.list_ready(results) is None else "stopped", 0.0)
