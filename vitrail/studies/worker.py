"""The workers of a study: the loop of one, and the processes that `vitrail study` starts and replaces."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from vitrail.errors import DiskError, Interrupted, InUseError, Preempted, VitrailError
from vitrail.files import disk_errors
from vitrail.runtime.process import end_at_once
from vitrail.studies.plan import Plan, Trial, find_best, read_plan
from vitrail.studies.results import TrialResult, read_result, write_result
from vitrail.work import MOST_DEATHS, Attempts, Claims, work_through

CONTINUE = "run the same command to continue"
CLAIMS, ATTEMPTS = "claims", "attempts"  # inside the folder of a study
POLL = 0.5  # seconds between two looks for trials that others may leave
PATIENCE = 60.0  # seconds that workers have to save when they are asked to stop
STOP_EVERY = 0.2  # seconds between two requests to stop
Compute = Callable[[Trial, float, int], None]  # of a trial, its learning rate and the number of the attempt


def number_of(trial: Trial) -> int:
    """Returns the number by which a trial is claimed: no two of a study have the same."""
    return int(trial.key[:15], 16)


@dataclass
class WorkerState:
    """What a worker knows of a study while it works: the plan, and the results that it has seen."""

    folder: Path
    plan: Plan
    compute: Compute
    results: dict[str, TrialResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.claims, self.attempts = Claims(self.folder / CLAIMS), Attempts(self.folder / ATTEMPTS)

    def list_open(self) -> list[Trial] | None:
        """Returns the trials that may be computed now."""
        self.results = self.plan.read_results(self.folder, self.results)
        return self.plan.list_ready(self.results)

    def take_and_compute(self, trial: Trial) -> bool:
        """Computes a trial unless another process has it; returns whether this one did."""
        if not self.claims.take_open(number_of(trial), lambda: read_result(self.folder, trial.key) is not None):
            return False
        try:
            self.attempts.run(trial.key, partial(self._train, trial), partial(self._give_up, trial))
        except InUseError:  # another process trains there, on a file system without locks
            return False
        finally:
            self.claims.release(number_of(trial))
        return True

    def _train(self, trial: Trial, attempt: int) -> None:
        rate = trial.run.optim.lr
        if trial.search is not None:
            rate = find_best(trial.search.tried(self.results)).best
        if rate is None:
            self._give_up(trial, "every learning rate that was tried diverged or failed", attempt)
        else:
            self.compute(trial, rate, attempt)

    def _give_up(self, trial: Trial, error: str, attempts: int) -> None:
        """Keeps a failure as the result of a trial."""
        about = {"key": trial.key, "kind": trial.kind, "seed": trial.run.seed, "rate": trial.run.optim.lr or 0.0}
        write_result(self.folder, TrialResult(**about, settings={}, state="failed", error=error, attempts=attempts))


def work_study(folder: str | Path) -> int:
    """Computes trials of the study in ``folder`` until every one has a result, and returns how many this process computed.

    Any number of processes may do so at a time, on any machines that see the folder.

    Raises `ConfigError` for a folder without a plan, `DataError` for images other than the plan's, `DiskError`, and `Preempted`
    or `Interrupted` when it is stopped: the same call continues.
    """
    return compute_trials(Path(folder))


def compute_trials(folder: Path, compute: Compute | None = None) -> int:
    """Computes trials as `work_study` does; ``compute`` takes the place of a training."""
    plan, _ = read_plan(folder)
    with end_at_once(CONTINUE):
        if plan.list_ready(plan.read_results(folder)) is None:
            return 0
        if compute is None:
            from vitrail.studies.images import load_images
            from vitrail.studies.trial import Trainer

            splits = load_images(folder, plan.study.pool, plan.pool, plan.study.base.get("data.channels"))
            compute = Trainer(folder, splits, plan.study.measure).compute
        state = WorkerState(folder, plan, compute)
        # the first trial that no other process has
        return work_through(state.list_open, lambda trials: int(any(map(state.take_and_compute, trials))), poll=POLL)


@dataclass
class WorkerPool:
    """Worker processes over a folder, one thread each; those that are killed are replaced."""

    folder: Path
    count: int
    command: tuple[str, ...] = ()
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    def start(self) -> None:
        """Starts one more worker, which logs to ``logs``."""
        self.started += 1
        with disk_errors(self.folder):
            (self.folder / "logs").mkdir(exist_ok=True)
            log = open(self.folder / "logs" / f"worker-{os.getpid()}-{self.started}.log", "wb")
        command = self.command or (sys.executable, "-m", "vitrail", "study", "work", str(self.folder))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log:
            self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def wait(self, on_poll: Callable[[], None], *, ends: float = math.inf, every: float = 0.5) -> None:
        """Returns when all workers have ended because no work is left, or at the time ``ends`` of the monotonic clock, while they
        work; ``on_poll`` is called on the way.

        Raises `VitrailError` where one cannot work, and `DiskError` where the disk is full.
        """
        for _ in range(self.count):
            self.start()
        while self.processes and time.monotonic() < ends:
            time.sleep(every)
            on_poll()
            for process in [each for each in self.processes if each.poll() is not None]:
                self.processes.remove(process)
                if process.returncode < 0 and self.started < self.count + MOST_DEATHS * self.count:
                    self.start()  # killed from outside, by the system for its memory or by a user
                elif process.returncode:
                    raise self._explain(process.returncode)

    def _explain(self, code: int) -> VitrailError:
        """Returns the error of the worker that ended last, with its own message."""
        logs = sorted((self.folder / "logs").glob(f"worker-{os.getpid()}-*.log"), key=lambda path: path.stat().st_mtime)
        logged = "\n".join(log.read_text(errors="replace").strip() for log in logs[-1:]) or "it left no log"
        if code == DiskError.code:
            return DiskError("a worker of the study could not write", f"free some space; {CONTINUE}", value=logged)
        if code in (Preempted.code, Interrupted.code):
            return Preempted("a worker of the study was stopped", CONTINUE)
        return VitrailError(f"a worker of the study ended with code {code}", CONTINUE, value=logged)

    def stop(self) -> None:
        """Asks the workers to save and end; those that do not are killed."""
        deadline = time.monotonic() + PATIENCE
        while working := [process for process in self.processes if process.poll() is None]:
            for process in working:
                # again and again: a training that has taken its last step does not look at the signal any more
                process.send_signal(signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(STOP_EVERY)
        self.processes.clear()
