"""How long a run is: the steps that a length of time buys, measured on a few real steps that are then undone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from vitrail.runs.checkpoint import Checkpoint
from vitrail.runtime.progress import duration
from vitrail.training.state import Training, restore, snapshot
from vitrail.training.step import take_step

EVALUATION_SHARE = 0.06  # of a run bounded by time
RESERVE = 0.03  # for starting, saving and the report


def fix_length(training: Training, say: Callable[[str], None]) -> None:
    """Turns ``schedule.time`` into steps; a run whose steps are known is left as it is."""
    schedule = training.run.schedule
    if schedule.time is None or schedule.steps is not None:
        return
    seconds = measure_step(training)
    evaluation = measure_evaluation(training)
    run = training.run  # if a step ran out of memory, its micro-batch is smaller than before
    share = EVALUATION_SHARE * schedule.time
    evaluations = max(1, min(run.save.evaluations, int(share / max(evaluation, 1e-3))))
    budget = schedule.time * (1 - RESERVE) - evaluations * evaluation
    steps = max(int(budget / seconds), 1)
    bought = f"{steps:,} steps of {seconds * 1000:.0f} ms, {evaluations} evaluations"
    say(f"time     {duration(schedule.time)} buy {bought}")
    save = replace(run.save, evaluations=evaluations)
    training.run = replace(run, schedule=replace(schedule, steps=steps), save=save)
    training.steps = steps


def fix_evaluations(training: Training) -> None:
    """Spreads the evaluations evenly over the run; the last one falls on the last step."""
    training.evaluate_every = max(math.ceil(training.steps / training.run.save.evaluations), 1)


def measure_step(training: Training, *, seconds: float = 5.0) -> float:
    """Seconds that one step takes here and now, waiting for data included; the weights are put back afterwards."""
    before = Checkpoint(0, *snapshot(training), path=training.folder.path)
    lengths: list[float] = []
    started = time.perf_counter()
    batches = training.batches(0, training.steps)
    while len(lengths) < 4 or (time.perf_counter() - started < seconds and len(lengths) < 100):
        lap = time.perf_counter()
        take_step(training, next(batches))
        if training.device.type == "cuda":
            torch.cuda.synchronize()
        lengths.append(time.perf_counter() - lap)
        if len(lengths) == training.steps:
            break
    batches.close()
    restore(training, before)
    settled = lengths[len(lengths) // 4 :]
    return sum(settled) / len(settled)


def measure_evaluation(training: Training) -> float:
    """Seconds that one evaluation during training takes."""
    started = time.perf_counter()
    training.evaluate(lambda: False)
    return time.perf_counter() - started
