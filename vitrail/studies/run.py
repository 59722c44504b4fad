"""`vitrail study`: planned, computed by as many workers as there are cores, and reported; the same call continues."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.checksums import sha256_of
from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.data.sources.source import Splits
from vitrail.errors import ConfigError, DataError, DiskError
from vitrail.files import make_folder, read_sealed, write_sealed
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import find_device
from vitrail.runtime.machine import describe
from vitrail.runtime.process import cores, end_at_once, keep_generators, use_threads
from vitrail.runtime.progress import ProgressBar, Say, duration, say_nothing
from vitrail.studies.design import SAMPLE, Study
from vitrail.studies.images import DATA, find_damage, open_images, store_images
from vitrail.studies.plan import (
    Plan,
    PoolFacts,
    Trial,
    check_format,
    choose_claims,
    fit_to_images,
    make_plan,
    read_plan,
    settings_of,
    write_plan,
)
from vitrail.studies.results import RUNS, TrialResult
from vitrail.studies.worker import CONTINUE, WorkerPool
from vitrail.training.cost import measure_cost, run_operations
from vitrail.training.prepare import prepare

STARTING = 0.5  # seconds of a trial before its first step and after its last
# what does not change the time of a step
TIMELESS = ("seed", "schedule.", "data.limit", "optim.lr", "optim.betas", "optim.weight_decay", "optim.momentum")
# what a worker beside does, as far as the processor can tell, until the process that started it is gone
NEIGHBOUR = """
import os, sys
import torch
parent, device = os.getppid(), sys.argv[1]
x, weight = torch.randn(2176, 96, device=device), torch.randn(96, 384, device=device)
print(flush=True)
while os.getppid() == parent:
    torch.nn.functional.gelu(x @ weight) @ weight.T
    if device != "cpu":
        torch.cuda.synchronize()
"""
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
            unfinished = plan.list_ready(plan.read_results(out)) is not None
            if unfinished and (out / DATA).exists() and (damage := find_damage(out, plan.pool.fingerprint)):
                say(f"warning  {damage}; the images are stored again")
                splits, facts = request.open_images(say)
                if facts.fingerprint == plan.pool.fingerprint:  # workers refuse others
                    store_images(out, splits, facts.fingerprint)
            jobs = choose_jobs(request.jobs, plan.device)
            return PricedPlan(plan=plan, costs=read_costs(out, jobs), jobs=jobs)
    priced, splits = make_priced_plan(request, out, say)
    store_images(out, splits, priced.plan.pool.fingerprint)
    if earlier := write_plan(out, priced.plan):
        say(f"plan     the plan changed: {priced.plan.sha256[:12]} after {', '.join(each[:12] for each in earlier)}")
    return priced


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


# --- what trials cost ---


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """Of one network in training: seconds of a step and of evaluating an image, and the operations of a step for one image."""

    step: float
    image: float
    flops: float


def name_network(run: Run) -> str:
    """Returns the same name for runs whose steps take the same time."""
    timed = {path: value for path, value in settings_of(run).items() if not path.startswith(TIMELESS)}
    return sha256_of(json.dumps(timed, sort_keys=True).encode())[:16]


def price_trials(costs: dict[str, NetworkCost], pool: PoolFacts) -> Callable[[Trial], float]:
    """Returns a function that returns the seconds of a trial with all its evaluations; 0 for a network that was not measured."""

    def price(trial: Trial) -> float:
        cost = costs.get(name_network(trial.run))
        if cost is None:
            return 0.0
        evaluated = trial.run.save.evaluations * 2 * min(pool.validation, SAMPLE) + pool.validation
        evaluated += min(trial.run.data.limit or pool.training, SAMPLE) + (pool.test if trial.kind == "final" else 0)
        return STARTING + (trial.run.schedule.steps or 0) * cost.step + evaluated * cost.image

    return price


def count_flops(costs: dict[str, NetworkCost], trial: Trial) -> float:
    """Returns the operations of a training; 0 for a network that was not measured."""
    cost = costs.get(name_network(trial.run))
    return 0.0 if cost is None else cost.flops * (trial.run.schedule.steps or 0) * trial.run.data.batch


def measure_networks(
    folder: Path, runs: Iterable[Run], splits: Splits, say: Say, *, jobs: int, device: str
) -> dict[str, NetworkCost]:
    """Returns the cost of every network among ``runs``, by `name_network`, in a few seconds each, beside ``jobs`` - 1 processes.

    What was measured on this machine before is read from ``rates.json`` in the study's ``folder``, and new costs are added to it.
    Raises `ConfigError` for settings that no network can have: before anything is trained.
    """
    known = read_costs(folder, jobs)
    missing = {name: run for run in runs if (name := name_network(run)) not in known}
    if missing:
        say(f"measure  {len(missing)} networks on this machine")
        with keep_busy(jobs - 1, device):
            known |= {name: _measure(run, splits) for name, run in missing.items()}
        if folder.is_dir():
            measured = {name: asdict(cost) for name, cost in known.items()}
            path = folder / "rates.json"
            write_sealed(path, {**(read_sealed(path) or {}), _describe(jobs): measured})
    return known


def read_costs(folder: Path, jobs: int) -> dict[str, NetworkCost]:
    """Returns what was measured on this machine before with so many processes, for the study in ``folder``."""
    stored: dict[str, Any] = read_sealed(folder / "rates.json") or {}
    return {name: NetworkCost(**cost) for name, cost in stored.get(_describe(jobs), {}).items()}


def _describe(jobs: int) -> str:
    return f"{describe()}, {jobs} process{'es' if jobs > 1 else ''}"


@contextmanager
def keep_busy(count: int, device: str) -> Iterator[None]:
    """Keeps ``count`` processes of one thread computing inside the context: workers share cores, caches and a GPU.

    Two threads of one core gave each of two workers half the speed of one alone.
    """
    command = [sys.executable, "-c", NEIGHBOUR, device]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    neighbours: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            neighbours.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
        for neighbour in neighbours:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()  # it computes from here on
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.communicate()


def _measure(run: Run, splits: Splits) -> NetworkCost:
    run = replace(run, data=replace(run.data, limit=None))
    with tempfile.TemporaryDirectory(prefix="vitrail-study-") as place, keep_generators():
        folder = RunFolder(Path(place) / "run")
        folder.open()
        try:
            training = prepare(run, folder, data=splits, say=say_nothing).training
            with use_threads(training.run.compute.threads or 1):
                cost = measure_cost(training)
        except ConfigError as error:
            raise ConfigError(f"an arm of the study cannot be trained: {error.what}", error.remedy) from error
        finally:
            folder.close()
        flops = (run_operations(training) or 0.0) / (training.steps * training.run.data.batch)
        evaluated = training.validator.count_images(training.ranks)
        return NetworkCost(step=cost.step, image=cost.evaluation / evaluated, flops=flops)
