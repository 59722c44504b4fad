"""The workers of a study: the loop of one, and the processes that `vitrail study` starts and replaces."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from vitrail.errors import DiskError, Interrupted, InUseError, Preempted, VitrailError
from vitrail.runtime.process import end_at_once
from vitrail.shared_work import MAX_DEATHS, Attempts, Claims, work_through
from vitrail.studies.plan import Trial, TrialResult, read_plan, read_result, write_result

CONTINUE = "run the same command to continue"
CLAIMS, ATTEMPTS = "claims", "attempts"  # inside the folder of a study
POLL = 0.5  # seconds between two looks for trials that others may leave
PATIENCE = 60.0  # seconds that workers have to save when they are asked to stop
STOP_EVERY = 0.2  # seconds between two requests to stop
Compute = Callable[[Trial, float, int], None]  # of a trial, its learning rate and the number of the attempt


def number_of(trial: Trial) -> int:
    """Returns the number by which a trial is claimed."""
    return int(trial.key[:15], 16)


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
    results = plan.read_results(folder)
    with end_at_once(CONTINUE):
        if plan.list_ready(results) is None:
            return 0
        if compute is None:
            from vitrail.studies.images import load_images
            from vitrail.studies.trial import Trainer

            compute = Trainer(folder, load_images(folder, plan.study, plan.pool), plan.study.measure).compute
        claims, attempts = Claims(folder / CLAIMS), Attempts(folder / ATTEMPTS)

        def list_open() -> list[Trial] | None:
            nonlocal results
            results = plan.read_results(folder, results)
            return plan.list_ready(results)

        def run(trial: Trial, attempt: int) -> None:
            rate = trial.run.optim.lr if trial.search is None else trial.search.choose(results).best
            if rate is None:
                give_up(trial, "every learning rate that was tried diverged or failed", attempt)
            else:
                compute(trial, rate, attempt)

        def give_up(trial: Trial, error: str, attempts: int) -> None:
            about = {"key": trial.key, "kind": trial.kind, "seed": trial.run.seed, "rate": trial.run.optim.lr or 0.0}
            write_result(folder, TrialResult(**about, state="failed", error=error, attempts=attempts))

        def take_and_compute(trial: Trial) -> bool:
            """Computes a trial unless another process has it; returns whether this one did."""
            if not claims.take_open(number_of(trial), lambda: read_result(folder, trial.key) is not None):
                return False
            try:
                attempts.run(trial.key, partial(run, trial), partial(give_up, trial))
            except InUseError:  # another process trains there, on a file system without locks
                return False
            finally:
                claims.release(number_of(trial))
            return True

        # the first trial that no other process has
        return work_through(list_open, lambda trials: int(any(map(take_and_compute, trials))), poll=POLL)


@dataclass
class WorkerPool:
    """Worker processes over a folder, one thread each; those that are killed are replaced."""

    folder: Path
    count: int
    command: tuple[str, ...] = ()
    logs: dict[subprocess.Popen[bytes], IO[bytes]] = field(default_factory=dict)  # of the processes
    started: int = 0

    def start(self) -> None:
        """Starts one more worker."""
        self.started += 1
        log = tempfile.TemporaryFile()
        command = self.command or (sys.executable, "-m", "vitrail", "study", "work", str(self.folder))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.logs[subprocess.Popen(command, env=environment, stdout=log, stderr=log)] = log

    def wait(self, on_poll: Callable[[], None], *, ends: float = math.inf, every: float = 0.5) -> None:
        """Returns when no work is left, or at the time ``ends`` of the monotonic clock, while workers work. Raises `VitrailError`
        where one cannot work, and `DiskError` where the disk is full.
        """
        for _ in range(self.count):
            self.start()
        while self.logs and time.monotonic() < ends:
            time.sleep(every)
            on_poll()
            for process in [each for each in self.logs if each.poll() is not None]:
                with self.logs.pop(process) as log:
                    log.seek(0)
                    logged = log.read().decode(errors="replace").strip()
                if process.returncode < 0 and self.started < self.count + MAX_DEATHS * self.count:
                    self.start()  # killed from outside, by the system for its memory or by a user
                elif process.returncode == DiskError.code:
                    raise DiskError(
                        "a worker of the study could not write", f"free some space; {CONTINUE}", value=logged
                    )
                elif process.returncode in (Preempted.code, Interrupted.code):
                    raise Preempted("a worker of the study was stopped", CONTINUE)
                elif process.returncode:
                    what = f"a worker of the study ended with code {process.returncode}"
                    raise VitrailError(what, CONTINUE, value=logged)

    def stop(self) -> None:
        """Asks the workers to save and end; those that do not are killed."""
        deadline = time.monotonic() + PATIENCE
        while working := [process for process in self.logs if process.poll() is None]:
            for process in working:
                # again and again: a training that has taken its last step does not look at the signal any more
                process.send_signal(signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(STOP_EVERY)
        for log in self.logs.values():
            log.close()
        self.logs.clear()
