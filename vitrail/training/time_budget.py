"""The number of steps that fit into a length of time, measured on a few real steps that are then undone."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

import torch

from vitrail.config.schema import Run
from vitrail.runs.checkpoint import Checkpoint
from vitrail.runtime.progress import Say, duration
from vitrail.training.resume import restore, snapshot
from vitrail.training.state import Training
from vitrail.training.step import take_step

EVALUATION_SHARE = 0.06  # of a run bounded by time
RESERVE = 0.03  # for starting, saving and the report
TRIAL_STEPS = 1_000_000  # so many that the few steps of a measurement stay at the beginning of the warm-up


def buy_steps(trial: Training, say: Say) -> tuple[Run, int]:
    """The run of ``trial`` with the steps and evaluations that its ``schedule.time`` buys on this machine; and these steps."""
    seconds = measure_step(trial)
    evaluation = measure_evaluation(trial)
    run = trial.run  # if a step ran out of memory, its micro-batch is smaller than before
    assert run.schedule.time is not None, "the run has no length of time"
    share = EVALUATION_SHARE * run.schedule.time
    evaluations = max(1, min(run.save.evaluations, int(share / max(evaluation, 1e-3))))
    budget = run.schedule.time * (1 - RESERVE) - evaluations * evaluation
    steps = max(int(budget / seconds), 1)
    bought = f"{steps:,} steps of {seconds * 1000:.0f} ms, {evaluations} evaluations"
    say(f"time     {duration(run.schedule.time)} buy {bought}")
    schedule, save = replace(run.schedule, steps=steps), replace(run.save, evaluations=evaluations)
    return replace(run, schedule=schedule, save=save), steps


def measure_step(training: Training, *, seconds: float = 5.0) -> float:
    """Seconds that one step takes here and now, waiting for data included; the weights are put back afterwards."""
    before = Checkpoint(0, *snapshot(training), path=training.folder.path)
    lengths: list[float] = []
    started = time.perf_counter()
    with closing(training.batches(0, training.steps)) as batches:
        while len(lengths) < 4 or (time.perf_counter() - started < seconds and len(lengths) < 100):
            lap = time.perf_counter()
            take_step(training, next(batches))
            if training.device.type == "cuda":
                torch.cuda.synchronize()
            lengths.append(time.perf_counter() - lap)
            if len(lengths) == training.steps:
                break
    restore(training, before)
    after_warmup = lengths[len(lengths) // 4 :]
    return sum(after_warmup) / len(after_warmup)


def measure_evaluation(training: Training) -> float:
    """Seconds that one evaluation during training takes."""
    started = time.perf_counter()
    training.evaluate(lambda: False)
    return time.perf_counter() - started
