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
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vitrail.config.schema import Run
from vitrail.data.sources.source import Splits
from vitrail.errors import ConfigError, DiskError
from vitrail.files import make_folder, read_checksummed, write_checksummed
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import find_device
from vitrail.runtime.process import cores, end_at_once, keep_generators, use_threads
from vitrail.runtime.progress import LogFunction, ProgressBar, duration, log_nothing
from vitrail.studies.design import SAMPLE, Study
from vitrail.studies.images import DATA, open_images
from vitrail.studies.plan import (
    RUNS,
    Plan,
    PoolFacts,
    Trial,
    check_format,
    fit_to_images,
    hash_request,
    make_plan,
    read_plan,
    settings_of,
    write_plan,
)
from vitrail.studies.worker import CONTINUE, WorkerPool
from vitrail.training.cost import measure_cost
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


def run_study(
    study: Study,
    out: Path,
    *,
    budget: float | None = None,
    jobs: int | None = None,
    until: float | None = None,
    command: str = "",
    quiet: bool = False,
    log: LogFunction,
) -> None:
    """Plans a study in the folder ``out`` or continues it, and computes what is missing. Times are in seconds of the clock.

    Raises as `vitrail.study`.
    """
    started = time.monotonic()
    make_folder(out)
    plan = continue_plan(study, out, budget, log)
    if plan is None:
        plan, seconds = make_priced_plan(study, budget=budget, jobs=jobs, log=log, shared=out / DATA)
        if earlier := write_plan(out, plan):
            log(f"plan     the plan changed: {plan.sha256[:12]} after {', '.join(each[:12] for each in earlier)}")
        predicted = sum(seconds.values()) / choose_jobs(jobs, plan.device)
        about = {"command": command, "budget_seconds": budget, "predicted_seconds": predicted, "trials": seconds}
        write_checksummed(out / "run.json", about)
    run_workers(plan, out, jobs=jobs, ends=math.inf if until is None else started + until, quiet=quiet)
    results, taken = plan.read_results(out), duration(time.monotonic() - started)
    if plan.list_ready(results) is None:
        shutil.rmtree(out / RUNS, ignore_errors=True)
        log(f"done     {len(plan.trials)} trials after {taken}")
    else:
        done = sum(key in results for key in plan.trials)
        log(f"stopped  with {done} of {len(plan.trials)} trials after {taken}; {CONTINUE}")


def continue_plan(study: Study, out: Path, budget: float | None, log: LogFunction) -> Plan | None:
    """Returns the plan in the folder if it was made for the same request. Raises `ConfigError` for one of another study."""
    before = read_checksummed(out / "plan.json")
    if before is None:
        if (out / "plan.json").exists():
            log(f"warning  {out / 'plan.json'} is damaged; the study is planned again")
        return None
    check_format(before, out)
    if before["study"]["name"] != study.name:
        raise ConfigError(
            f"{out} holds the study {before['study']['name']!r}, not {study.name!r}", "give another --out"
        )
    if before["request"] != hash_request(study, budget):
        return None
    log(f"plan     continues {before['sha256'][:12]}")
    return read_plan(out)[0]


def make_priced_plan(
    study: Study, *, budget: float | None, jobs: int | None, log: LogFunction, shared: Path | None = None
) -> tuple[Plan, dict[str, float]]:
    """Returns a new plan, which is described, and the seconds of every trial by key; the time to plan is part of the budget."""
    began = time.monotonic()
    splits, facts = open_images(study, shared)
    counts = f"{facts.training:,} training, {facts.validation:,} validation images"
    log(f"data     {counts}; tested on {facts.test_split}")
    device = find_device(study.base.get("compute.device") or "cpu").type
    jobs = choose_jobs(jobs, device)
    whole = Plan(study=fit_to_images(study, facts)[0], pool=facts, device=device)
    runs = {name_network(trial.run): trial.run for trial in whole.foreseen()}
    log(f"measure  {len(runs)} networks on this machine")
    with keep_busy(jobs - 1, device):
        costs = {name: measure_network(run, splits) for name, run in runs.items()}
    bound = None
    if budget is not None:
        bound = max(budget * (1 - RESERVE) - (time.monotonic() - began) - START, 0.0) * jobs
    price, request = partial(price_trial, costs, facts), hash_request(study, budget)
    plan = make_plan(study, facts, device=device, request=request, price=price, budget=bound)
    describe_plan(plan, costs, jobs, log)
    return plan, {trial.key: price(trial) for trial in plan.foreseen()}


def choose_jobs(jobs: int | None, device: str) -> int:
    """Returns the number of worker processes. Raises `ConfigError` for less than one."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs is {jobs}", "give 1 or more")
    return jobs or (WORKERS_A_GPU if device == "cuda" else cores())


def describe_plan(plan: Plan, costs: Mapping[str, NetworkCost], jobs: int, log: LogFunction) -> None:
    """Says the plan: trials and times by experiment, what was left out, what can be detected."""
    groups = {"tuning": [search.trial(rate) for search in plan.searches.values() for rate in search.rates.grid]}
    groups |= {name: list(placed.values()) for name, placed in plan.places.items()}
    rows, counted, total = [("experiment", "trials", "core min", "claims")], set[str](), 0.0
    for name, trials in groups.items():
        own = {each.key: each for each in trials if each.key not in counted}  # those of an earlier one are shared
        counted.update(own)
        seconds = sum(price_trial(costs, plan.pool, each) for each in own.values())
        claims = " ".join(claim.name for claim in plan.study.claims if claim.experiment == name)
        rows.append((name, str(len(own)), f"{seconds / 60:.1f}", claims))
        total += seconds
    wide = max(len(name) for name, *_ in rows)
    for name, *figures, claims in rows:
        log(f"{name:{wide}}{''.join(f'{figure:>10}' for figure in figures)}  {claims}".rstrip())
    log(f"plan     {plan.sha256[:12]}: {len(counted)} trials, {duration(total / jobs)} with {jobs} processes")
    for change in plan.reductions:
        log(f"reduced  {change}")
    for each in plan.not_asked:
        log(f"not asked {each['name']}: {each['why']}")
    for name, value in plan.detectable.items():
        log(f"detects  {name}: {100 * value:.1f} points")


def run_workers(plan: Plan, out: Path, *, jobs: int | None, ends: float = math.inf, quiet: bool) -> None:
    """Computes the trials that have no result yet, and shows on a terminal and in ``progress.json``, by which a server lists the
    study among its runs, how far that is. At the time ``ends`` of the monotonic clock the workers are asked to save and end.

    Raises as `WorkerPool.wait`, and `Preempted` or `Interrupted` when it is stopped.
    """
    workers = WorkerPool(out, choose_jobs(jobs, plan.device))
    results, noted = plan.read_results(out), -math.inf
    seconds: dict[str, float] = (read_checksummed(out / "run.json") or {}).get("trials", {})
    if plan.list_ready(results) is None:
        return

    def show(ended: bool = False) -> None:
        nonlocal results, noted
        results = plan.read_results(out, results)
        done = sum(key in results for key in seconds)
        left = sum(spent for key, spent in seconds.items() if key not in results) / workers.count
        bar.update(done, left=duration(left))
        if ended or time.monotonic() - noted > NOTED_EVERY:
            noted = time.monotonic()
            state = "running" if not ended else "stopped" if plan.list_ready(results) else "finished"
            progress = {"state": state, "done": done, "trials": len(seconds)}
            write_checksummed(out / "progress.json", {**progress, "seconds_left": 0.0 if ended else left})

    with ProgressBar("studying", len(seconds), quiet=quiet) as bar, end_at_once(CONTINUE):
        try:
            workers.wait(show, ends=ends)
        finally:
            workers.stop()
            with suppress(DiskError):  # what stopped the study is raised, not this
                show(ended=True)


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """Of one network in training: the seconds of a step and of evaluating an image."""

    step: float
    image: float


def name_network(run: Run) -> str:
    """Returns the same name for runs whose steps take the same time."""
    timed = {path: value for path, value in settings_of(run).items() if not path.startswith(TIMELESS)}
    return json.dumps(timed, sort_keys=True)


def price_trial(costs: Mapping[str, NetworkCost], pool: PoolFacts, trial: Trial) -> float:
    """Returns the seconds of a trial with all its evaluations."""
    run, cost = trial.run, costs[name_network(trial.run)]
    evaluated = run.save.evaluations * 2 * min(pool.validation, SAMPLE) + pool.validation
    evaluated += min(run.data.limit or pool.training, SAMPLE) + (pool.test if trial.kind == "final" else 0)
    return STARTING + (run.schedule.steps or 0) * cost.step + evaluated * cost.image


@contextmanager
def keep_busy(count: int, device: str) -> Iterator[None]:
    """Keeps ``count`` processes of one thread computing inside the context: workers share cores, caches and a GPU.

    Two threads of one core gave each of two workers half the speed of one alone.
    """
    command, environment = [sys.executable, "-c", NEIGHBOUR, device], {**os.environ, "OMP_NUM_THREADS": "1"}
    neighbours = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for neighbour in neighbours:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()  # it computes from here on
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.communicate()


def measure_network(run: Run, splits: Splits) -> NetworkCost:
    """Measures a network in a few seconds. Raises `ConfigError` for settings that none can have."""
    run = replace(run, data=replace(run.data, limit=None))
    with tempfile.TemporaryDirectory() as place, closing(RunFolder(Path(place) / "run")) as folder, keep_generators():
        folder.open()
        try:
            training = prepare(run, folder, data=splits, log=log_nothing).training
            with use_threads(training.run.compute.threads or 1):
                cost = measure_cost(training)
        except ConfigError as error:
            raise ConfigError(f"an arm of the study cannot be trained: {error.what}", error.remedy) from error
        return NetworkCost(step=cost.step, image=cost.evaluation / training.validator.count_images(training.ranks))
