"""What the trials of a study cost: operations, and seconds as measured for each network on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.checksums import sha256_of
from vitrail.config.schema import Run
from vitrail.data.sources.source import Splits
from vitrail.errors import ConfigError
from vitrail.files import read_sealed, write_sealed
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe
from vitrail.runtime.process import keep_generators, use_threads
from vitrail.runtime.progress import Say, say_nothing
from vitrail.studies.design import SAMPLE
from vitrail.studies.plan import PoolFacts, Trial, settings_of
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
        evaluated = training.monitor.count_images(training.ranks)
        return NetworkCost(step=cost.step, image=cost.evaluation / evaluated, flops=flops)
