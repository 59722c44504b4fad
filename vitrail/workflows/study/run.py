"""`vitrail study`: planned, and computed by as many workers as there are cores; the same call goes on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.checksums import sha256_of
from vitrail.config.parse import plain
from vitrail.data.sources.source import Splits
from vitrail.errors import ConfigError, DataError, DiskError
from vitrail.files import make_folder, read_sealed, write_sealed
from vitrail.reports.study.documents import write_progress
from vitrail.runtime.device import find_device
from vitrail.runtime.process import cores
from vitrail.runtime.progress import ProgressBar, Say, duration
from vitrail.runtime.signals import end_at_once
from vitrail.workflows.study.cells import Grid, PoolFacts, fit_to_images
from vitrail.workflows.study.measuring import NetworkCost, measure_networks, name_network, read_costs
from vitrail.workflows.study.plan import Plan, Price, choose_claims, make_plan, read_plan, read_results, write_plan
from vitrail.workflows.study.pool import DATA, decode_pool, describe_pool, find_damage, open_pool, store_pool
from vitrail.workflows.study.queue import Queue
from vitrail.workflows.study.results import CellResult
from vitrail.workflows.study.study import Study
from vitrail.workflows.study.workers import CONTINUE, Crew, clean

START, RESERVE = 8.0, 0.08  # seconds before the first step of a worker; the share of a budget that is kept for the page
DRAWN_EVERY = 10.0  # seconds between two states of the page of a study that runs
WORKERS_A_GPU = 6  # small networks do not fill one


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a call asks for.

    Args:
        definition: the study, whose ``pool.source`` names the images.
        data: images in memory, in place of ``pool.source``.
        budget: seconds of the clock, everything included; None is no bound.
        claims: names of the claims that are asked; all of the study's without any.
        jobs: worker processes; by default one for each core, or some for a GPU.
        until: seconds after which this call stops; the same call goes on.
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
        """Equal for equal requests: the same one goes on with its plan."""
        asked = [plain(self.definition), self.budget, list(self.claims)]
        return sha256_of(json.dumps(asked, sort_keys=True).encode())


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with what its cells are expected to take on this machine, in ``jobs`` processes."""

    plan: Plan
    costs: Mapping[str, NetworkCost]
    jobs: int

    @cached_property
    def price(self) -> Price:
        return make_price(self.costs, self.plan.pool)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The seconds of every cell that is foreseen, by key."""
        return {cell.key: self.price(cell) for cell in self.plan.grid.foreseen()}

    @cached_property
    def flops(self) -> dict[str, float]:
        """The operations of every cell that is foreseen, by key; 0 where its network was not measured here."""
        found = {cell.key: (cell.run, self.costs.get(name_network(cell.run))) for cell in self.plan.grid.foreseen()}
        return {
            key: 0.0 if cost is None else cost.flops * (run.schedule.steps or 0) * run.data.batch
            for key, (run, cost) in found.items()
        }


def run_study(asked: Asked, out: Path, *, quiet: bool = False, say: Say) -> None:
    """Plans a study in the folder ``out`` or goes on with it, and computes what is missing.

    Raises:
        ConfigError: an invalid study, a claim that it does not have, a budget that is too small, a folder of another study.
        DataError: images that cannot be used.
        Preempted, Interrupted: it was stopped; the same call goes on.
    """
    started = time.monotonic()
    make_folder(out)
    planned = plan_or_continue(asked, out, say)
    for line in describe_plan(planned, out):
        say(line)
    predicted = sum(planned.seconds.values()) / planned.jobs
    note = {"predicted_seconds": predicted, "budget_seconds": asked.budget, "command": asked.command}
    write_sealed(out / "run.json", note)
    ends = math.inf if asked.until is None else started + asked.until
    run_workers(planned, out, budget=asked.budget, ends=ends, quiet=quiet)
    results, cells = planned.plan.results(out), planned.plan.grid.cells
    taken = duration(time.monotonic() - started)
    if planned.plan.grid.list_ready(results) is not None:
        say(f"stopped  with {sum(key in results for key in cells)} of {len(cells)} cells after {taken}; {CONTINUE}")
        return
    clean(out)
    say(f"done     {len(cells)} cells after {taken}")


def plan_only(asked: Asked, out: Path, say: Say) -> Planned:
    """The plan of a study, of which nothing is written but the measured rates, if ``out`` exists."""
    planned, _ = _plan(asked, out, say)
    for line in describe_plan(planned, out):
        say(line)
    return planned


def plan_or_continue(asked: Asked, out: Path, say: Say) -> Planned:
    """The plan in the folder, if it was made for the same request, else a new one, which is written."""
    before = read_sealed(out / "plan.json")
    if before is not None and before["study"]["name"] != asked.definition.name:
        raise ConfigError(
            f"{out} holds the study {before['study']['name']!r}, and {asked.definition.name!r} is asked",
            "give another --out",
        )
    if before is not None and before["request"] == asked.digest:
        plan, _ = read_plan(out)
        say(f"plan     goes on with {plan.sha256[:12]}")
        _repair_images(asked, out, plan, say)
        jobs = choose_jobs(asked.jobs, plan.device)
        return Planned(plan=plan, costs=read_costs(out, jobs), jobs=jobs)
    if before is None and (out / "plan.json").exists():
        say(f"warning  {out / 'plan.json'} is damaged; the study is planned again")
    planned, splits = _plan(asked, out, say)
    store_pool(out, splits, planned.plan.pool.fingerprint)
    earlier = write_plan(out, planned.plan)
    if earlier:
        say(f"plan     the plan changed: {planned.plan.sha256[:12]} after {', '.join(each[:12] for each in earlier)}")
    return planned


def _repair_images(asked: Asked, out: Path, plan: Plan, say: Say) -> None:
    """Stores the images of a study again that has cells to compute, where what is stored is damaged."""
    if not (out / DATA).exists() or plan.grid.list_ready(plan.results(out)) is None:
        return
    if damage := find_damage(out, plan.pool.fingerprint):
        say(f"warning  {damage}; the images are stored again")
        images = open_images(asked, say)
        if images.facts.fingerprint == plan.pool.fingerprint:  # workers refuse others
            store_pool(out, images.splits, images.facts.fingerprint)


@dataclass(frozen=True)
class Images:
    """The images of a study, opened, and what a plan knows of them."""

    splits: Splits
    facts: PoolFacts


def open_images(asked: Asked, say: Say) -> Images:
    """The images that a call asks for. Raises `DataError`."""
    pool = asked.definition.pool
    if asked.data is None and not pool.source:
        raise ConfigError(f"the study {asked.definition.name!r} names no images", "vitrail study DATA")
    splits, judged_on = open_pool(pool, asked.data)
    splits = decode_pool(splits, asked.definition.base.get("data.channels"))
    name = Path(pool.source).name if asked.data is None else "images in memory"
    facts = describe_pool(splits, name, judged_on)
    if asked.data is not None and facts.size is None:
        raise DataError("large images in memory cannot be given to the workers", "give the path of their folder")
    say(f"data     {facts.training:,} training, {facts.validation:,} validation images; judged on {judged_on}")
    return Images(splits, facts)


def _plan(asked: Asked, out: Path, say: Say) -> tuple[Planned, Splits]:
    """A new plan, and the images; the time that planning takes is part of the budget."""
    began = time.monotonic()
    images = open_images(asked, say)
    definition = choose_claims(asked.definition, asked.claims)
    device = find_device(definition.base.get("compute.device") or "cpu").type
    fitted, _ = fit_to_images(definition, images.facts)
    runs = [cell.run for cell in Grid(fitted, images.facts, device).foreseen()]
    jobs = choose_jobs(asked.jobs, device)
    costs = measure_networks(out, runs, images.splits, say, jobs=jobs, device=device)
    price = make_price(costs, images.facts)
    spent = time.monotonic() - began + START
    seconds = None if asked.budget is None else max(asked.budget * (1 - RESERVE) - spent, 0.0) * jobs
    plan = make_plan(definition, images.facts, device=device, request=asked.digest, price=price, budget=seconds)
    return Planned(plan=plan, costs=costs, jobs=jobs), images.splits


def make_price(costs: Mapping[str, NetworkCost], pool: PoolFacts) -> Price:
    """The seconds of a cell on one worker; 0 where its network was not measured on this machine."""
    sizes = {"training": pool.training, "validation": pool.validation, "test": pool.test}

    def price(cell: Any) -> float:
        cost = costs.get(name_network(cell.run))
        return 0.0 if cost is None else cost.seconds(cell, **sizes)

    return price


def choose_jobs(asked: int | None, device: str) -> int:
    """The number of worker processes. Raises `ConfigError` for less than one."""
    if asked is not None and asked < 1:
        raise ConfigError(f"jobs is {asked}", "give 1 or more")
    return asked or (WORKERS_A_GPU if device == "cuda" else cores())


def describe_plan(planned: Planned, folder: Path) -> list[str]:
    """The plan as lines for a terminal: experiments with their cells and times, what was left out, what can be detected."""
    plan, grid = planned.plan, planned.plan.grid
    done = plan.results(folder)
    rows: list[tuple[str, ...]] = [("experiment", "cells", "done", "TFLOP", "core min", "claims")]
    counted: set[str] = set()
    groups = {"tuning": [tuning.cell(rate).key for tuning in grid.tuned.values() for rate in tuning.rates.grid]}
    groups |= {name: list(places.values()) for name, places in grid.places.items()}
    for name, keys in groups.items():
        own = [key for key in dict.fromkeys(keys) if key not in counted]  # those of an earlier experiment are shared
        counted.update(own)
        flops, minutes = sum(planned.flops[key] for key in own) / 1e12, sum(planned.seconds[key] for key in own) / 60
        claims = " ".join(claim.name for claim in plan.study.claims if claim.experiment == name)
        rows.append(
            (name, f"{len(own)}", f"{sum(key in done for key in own)}", f"{flops:.3g}", f"{minutes:.1f}", claims)
        )
    expected = duration(sum(planned.seconds.values()) / planned.jobs)
    return [
        *_align(rows),
        f"plan     {plan.sha256[:12]}: {len(counted)} cells, {expected} with {planned.jobs} processes",
        *(f"reduced  {words}" for words in plan.reductions),
        *(f"not asked {each['name']}: {each['why']}" for each in plan.not_asked),
        *(f"detects  {name}: {100 * value:.1f} points" for name, value in plan.detectable.items()),
    ]


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as columns, numbers to the right; the last column is words, too."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            [first.ljust(widths[0]), *(word.rjust(width) for word, width in zip(middle, widths[1:])), last]
        ).rstrip()
        for first, *middle, last in rows
    ]


def run_workers(
    planned: Planned, out: Path, *, budget: float | None = None, ends: float = math.inf, quiet: bool
) -> None:
    """Computes the cells that have no result yet, and shows on a terminal and in ``report.html`` how far that is.

    At the time ``ends`` of the monotonic clock the workers are asked to save and end.

    Raises as `Crew.tend`, and `Preempted` or `Interrupted` when it is stopped.
    """
    grid, began = planned.plan.grid, time.monotonic()
    results = planned.plan.results(out)
    if grid.list_ready(results) is None:
        return
    crew, drawn = Crew.of(out, planned.jobs), -math.inf
    with ProgressBar("studying", len(planned.seconds), quiet=quiet) as show, end_at_once(CONTINUE):

        def seen() -> None:
            nonlocal results, drawn
            results = read_results(out, grid, results)
            left = sum(seconds for key, seconds in planned.seconds.items() if key not in results) / planned.jobs
            show.update(sum(key in results for key in planned.seconds), left=duration(left))
            if time.monotonic() - drawn > DRAWN_EVERY:
                drawn = time.monotonic()
                clock = {"seconds_used": drawn - began, "seconds_left": left, "budget_seconds": budget}
                write_progress(out, {**collect_progress(planned, results, out), **clock})
                note_progress(planned, results, out, "running", left)

        try:
            crew.tend(seen, ends=ends)
        finally:
            crew.stop()
            results = read_results(out, grid, results)
            state = "finished" if grid.list_ready(results) is None else "stopped"
            with suppress(DiskError):  # what stopped the study is told, not this
                note_progress(planned, results, out, state, 0.0)


def note_progress(planned: Planned, results: Mapping[str, CellResult], out: Path, state: str, left: float) -> None:
    """Writes ``progress.json``, by which a server lists the study among its runs."""
    done = sum(key in results for key in planned.seconds)
    told = {"state": state, "done": done, "cells": len(planned.seconds), "seconds_left": left}
    write_sealed(out / "progress.json", told)


def collect_progress(planned: Planned, results: Mapping[str, CellResult], out: Path) -> dict[str, Any]:
    """What the page of a study that still runs shows."""
    plan, grid, queue = planned.plan, planned.plan.grid, Queue(out)
    rows = []
    for name, places in grid.places.items():
        keys = set(places.values())
        ended = [results[key].state for key in keys if key in results]
        rows.append(
            {
                "name": name,
                "cells": len(keys),
                "done": sum(state != "failed" for state in ended),
                "failed": ended.count("failed"),
                "running": sum(queue.is_held(key) for key in keys - results.keys()),
                "seconds_left": sum(planned.seconds[key] for key in keys - results.keys()) / planned.jobs,
                "claims": [claim.name for claim in plan.study.claims if claim.experiment == name],
            }
        )
    tuned = all(not tuning.missing(results) for tuning in grid.tuned.values())
    return {
        "study": plan.study.name,
        "state": "running" if tuned else "tuning",
        "plan": plan.sha256,
        "workers": planned.jobs,
        "experiments": rows,
        "date": date.today().isoformat(),
    }
