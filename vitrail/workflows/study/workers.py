"""The workers of a study: the loop of one, and the processes that `vitrail study` starts and replaces."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vitrail.errors import DiskError, Interrupted, Preempted, VitrailError
from vitrail.files import disk_errors
from vitrail.runtime.signals import end_at_once
from vitrail.workflows.study.cells import Cell
from vitrail.workflows.study.plan import Plan, read_plan, read_results
from vitrail.workflows.study.queue import MOST_DEATHS, Queue, Work, work
from vitrail.workflows.study.results import CellResult, read_result, write_result

CONTINUE = "run the same command to go on"
PATIENCE = 60.0  # seconds that workers have to save when they are asked to stop
ASKED_EVERY = 0.2  # seconds between two requests to stop
Compute = Callable[[Cell, float, int], None]  # of a cell, its rate and the number of the attempt


@dataclass
class Turn:
    """What a worker knows of a study while it works: the plan, and the results that it has seen."""

    folder: Path
    plan: Plan
    compute: Compute
    results: dict[str, CellResult] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)

    def ready(self) -> list[str] | None:
        """The keys that may be computed now."""
        self.results = read_results(self.folder, self.plan.grid, self.results)
        ready = self.plan.grid.list_ready(self.results)
        self.cells = {cell.key: cell for cell in ready or ()}
        return None if ready is None else list(self.cells)

    def is_done(self, key: str) -> bool:
        return read_result(self.folder, key) is not None

    def run(self, key: str, attempt: int) -> None:
        """Computes a cell at its rate, which the tuning decides."""
        cell = self.cells[key]
        rate: float | None = cell.run.optim.lr
        if cell.tuning is not None:
            rate = self.plan.grid.tuned[cell.tuning].choose(self.results).best
        if rate is None:
            self.give_up(key, "every learning rate that was tried diverged or failed", attempt)
        else:
            self.compute(cell, rate, attempt)

    def give_up(self, key: str, error: str, attempts: int) -> None:
        """Keeps a failure as the result of a cell."""
        cell = self.cells[key]
        settings: dict[str, Any] = {"settings": {}, "seed": cell.run.seed, "rate": cell.run.optim.lr}
        failed = CellResult(key=key, kind=cell.kind, state="failed", error=error, attempts=attempts, **settings)
        write_result(self.folder, failed)


def work_on(folder: Path, compute: Compute | None = None) -> int:
    """Computes cells of the study in ``folder`` until every one has a result; returns how many. Any number of processes may do
    so at a time, on any machines that see the folder.

    Args:
        compute: in place of training, for tests.

    Raises `ConfigError` for a folder without a plan, `DataError` for images other than the plan's, `DiskError`, and `Preempted`
    or `Interrupted` when it is stopped: the same call goes on.
    """
    plan, _ = read_plan(folder)
    with end_at_once(CONTINUE):
        if compute is None and plan.grid.list_ready(plan.results(folder)) is not None:
            from vitrail.workflows.study.cell import Computing
            from vitrail.workflows.study.pool import load_pool

            channels = plan.study.base.get("data.channels")
            compute = Computing(folder, load_pool(folder, plan.study.pool, plan.pool, channels)).compute
        if compute is None:
            return 0
        turn = Turn(folder, plan, compute)
        queue = Queue(folder)
        return work(queue, Work(ready=turn.ready, is_done=turn.is_done, compute=turn.run, give_up=turn.give_up))


@dataclass
class Crew:
    """Worker processes over a folder, one thread each; those that are killed are replaced."""

    folder: Path
    command: tuple[str, ...]
    count: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    @classmethod
    def of(cls, folder: Path, count: int) -> Crew:
        return cls(folder, (sys.executable, "-m", "vitrail", "study", "work", str(folder)), count)

    def start(self) -> None:
        """Starts one more worker, which logs to ``logs``."""
        self.started += 1
        with disk_errors(self.folder):
            (self.folder / "logs").mkdir(exist_ok=True)
            log: IO[bytes] = open(self.folder / "logs" / f"worker-{os.getpid()}-{self.started}.log", "wb")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log:
            self.processes.append(subprocess.Popen(self.command, env=environment, stdout=log, stderr=log))

    def tend(self, seen: Callable[[], None], *, ends: float = math.inf, every: float = 0.5) -> None:
        """Returns when all workers have ended because no work is left, or at the time ``ends`` of the monotonic clock, while they
        work; ``seen`` is called on the way.

        Raises `VitrailError` where one cannot work, and `DiskError` where the disk is full.
        """
        for _ in range(self.count):
            self.start()
        while self.processes and time.monotonic() < ends:
            time.sleep(every)
            seen()
            for process in [each for each in self.processes if each.poll() is not None]:
                self.processes.remove(process)
                if process.returncode < 0 and self.started < self.count + MOST_DEATHS * self.count:
                    self.start()  # killed from outside, by the system for its memory or by a user
                elif process.returncode:
                    raise self._explain(process.returncode)

    def _explain(self, code: int) -> VitrailError:
        """The error of the worker that ended last, in its own words."""
        logs = sorted((self.folder / "logs").glob(f"worker-{os.getpid()}-*.log"), key=lambda path: path.stat().st_mtime)
        words = "\n".join(log.read_text(errors="replace").strip() for log in logs[-1:]) or "it left no log"
        if code == DiskError.code:
            return DiskError("a worker of the study could not write", f"free some space; {CONTINUE}", value=words)
        if code in (Preempted.code, Interrupted.code):
            return Preempted("a worker of the study was stopped", CONTINUE)
        return VitrailError(f"a worker of the study ended with code {code}", CONTINUE, value=words)

    def stop(self) -> None:
        """Asks the workers to save and end; those that do not are killed."""
        deadline = time.monotonic() + PATIENCE
        while working := [process for process in self.processes if process.poll() is None]:
            for process in working:
                # again and again: a training that has taken its last step does not look at the signal any more
                process.send_signal(signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(ASKED_EVERY)
        self.processes.clear()


def clean(folder: Path) -> None:
    """Removes what is not needed once every cell has a result: trainings under way and leases."""
    for name in ("runs", "leases"):
        shutil.rmtree(folder / name, ignore_errors=True)
