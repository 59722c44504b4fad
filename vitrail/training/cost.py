"""The operations of a run, and the number of steps that fit into a length of time, measured on a few real steps that are undone.

A measurement takes seconds: a long step is measured on a part of its batch, an evaluation on a few batches, and scaled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vitrail.config.schema import Run
from vitrail.data.loader import Batch
from vitrail.models.cost import step_operations
from vitrail.objectives.contrastive import ContrastiveObjective, cached_backward
from vitrail.runs.checkpoint import Checkpoint
from vitrail.runtime.distributed import SINGLE
from vitrail.runtime.process import keep_generators
from vitrail.runtime.progress import LogFunction, duration
from vitrail.runtime.timing import time_call
from vitrail.text import plural
from vitrail.training.optimizer import find_head_names
from vitrail.training.state import Training, restore, snapshot
from vitrail.training.step import backward, take_step
from vitrail.training.validation import read_options

MIN_IMAGES = 2  # of a small batch: some objectives compare images
EVALUATION_SHARE = 0.06  # of a run bounded by time
RESERVE = 0.03  # for starting, saving and the report
FEW_STEPS = 20  # below which a run bounded by time is warned of
TRIAL_STEPS = 1_000_000  # so many that the few steps of a measurement stay at the beginning of the warm-up
LONG_STEP = 0.8  # seconds; a batch whose gradient takes longer is cut
STEPS_SECONDS, MIN_STEPS, MAX_STEPS = 3.0, 4, 100  # of the measurement of whole steps
EVALUATION_SECONDS = 2.0  # of that of an evaluation


def run_operations(training: Training) -> float | None:
    """Counts the operations that all steps of a run execute, over all ranks: forward and backward passes of the objective as
    `step_operations` counts them, and those of a teacher, a momentum encoder or a tokenizer; not those of evaluations.

    A few images are read. None where the objective cannot be counted, because it looks at the values of tensors.
    """
    images = min(MIN_IMAGES * training.run.data.repeats, training.run.data.batch)
    few = replace(training.batches, batch=images, workers=0, ranks=SINGLE)
    with keep_generators(), closing(few(0, 1)) as batches:
        inputs = training.inputs(next(batches).to(training.device))
    try:
        counted = [_operations_an_update(training, inputs)]
        if share := training.run.model.head_first:
            counted.insert(0, _operations_an_update(training, inputs, head_only=True))
    except RuntimeError:
        return None
    frozen, size = training.inputs.frozen, (inputs[0].shape[-2], inputs[0].shape[-1])
    given = 0 if frozen is None else training.run.data.batch * frozen.operations(size)
    first = math.ceil(share * training.steps)  # steps in which the head learns alone
    return float(counted[0] * first + counted[-1] * (training.steps - first) + given * training.steps)


def _operations_an_update(training: Training, few: Sequence[Tensor], *, head_only: bool = False) -> int:
    """Counts one update, over its micro-steps and ranks; with ``head_only`` the backbone is left as it is."""
    data, ranks, objective = training.run.data, training.ranks, training.objective
    micro = min(data.micro_batch or data.batch, -(-data.batch // ranks.world))
    together = isinstance(objective, ContrastiveObjective) and objective.compares_images and micro < data.batch
    images = data.batch if together else micro
    inputs = [torch.empty((images, *part.shape[1:]), dtype=part.dtype, device="meta") for part in few]
    frozen = training.optimiser.parameters.keys() - find_head_names(objective) if head_only else ()
    if together:
        backward = partial(cached_backward, micro=micro, seed=lambda index: None)
        return step_operations(objective, inputs, backward=backward)
    return round(step_operations(objective, inputs, frozen=frozen) * data.batch / images)


@dataclass(frozen=True)
class Cost:
    """Seconds that one step takes, waiting for data included, and one evaluation during training."""

    step: float
    evaluation: float


def buy_steps(trial: Training, log: LogFunction) -> tuple[Run, int]:
    """Returns the run of ``trial`` with the steps and evaluations that fit into its ``schedule.time``, and these steps."""
    cost = measure_cost(trial)
    run = trial.run  # if a step ran out of memory, its micro-batch is smaller than before
    assert run.schedule.time is not None, "the run has no length of time"
    share = EVALUATION_SHARE * run.schedule.time
    evaluations = max(1, min(run.save.evaluations, int(share / max(cost.evaluation, 1e-3))))
    budget = run.schedule.time * (1 - RESERVE) - evaluations * cost.evaluation
    steps = max(int(budget / cost.step), 1)
    fits = f"{plural(steps, 'step')} of {cost.step * 1000:.0f} ms and {plural(evaluations, 'evaluation')}"
    log(f"length   {fits} fit into {duration(run.schedule.time)}")
    if steps < FEW_STEPS:
        enough = duration(FEW_STEPS * cost.step / (1 - RESERVE - EVALUATION_SHARE))
        log(
            f"warning  {plural(steps, 'step')} will hardly train anything: give at least {enough}, or a smaller --batch"
        )
    schedule, save = replace(run.schedule, steps=steps), replace(run.save, evaluations=evaluations)
    return replace(run, schedule=schedule, save=save), steps


def measure_cost(training: Training) -> Cost:
    """Measures the cost of ``training`` on this machine; its weights are restored afterwards.

    The time of a step on a part of its batch is scaled to the whole, except for the optimiser's share of it.
    """
    before = Checkpoint(0, *snapshot(training), path=training.folder.path)
    part, gradient = _cut_batch(training)
    _time(part, part.optimiser.step)  # makes its state
    update = _time(part, part.optimiser.step)  # on the gradient that stands
    step = _time_steps(part) if gradient <= LONG_STEP else gradient + update
    evaluation = _time_evaluation(part)
    restore(training, before)
    images = training.run.data.batch / part.run.data.batch
    return Cost(step=update + max(step - update, 0.0) * images, evaluation=evaluation)


def _cut_batch(training: Training) -> tuple[Training, float]:
    """Returns ``training`` with a part of its batch that fits into `LONG_STEP`, and the seconds of its gradient.

    A GPU, and a compiled model, which every new size would compile again, get at least the micro-batch.
    """
    data = training.run.data
    gradually = training.device.type == "cpu" and not training.run.compute.compile
    images = smallest = min(MIN_IMAGES * data.repeats if gradually else data.micro_batch or data.batch, data.batch)
    while True:
        part = _resize_batch(training, images)
        with closing(part.batches(0, 1)) as batches:
            batch = next(batches)
        compute_gradient = partial(_compute_gradient, part, batch)
        seconds = _time(part, compute_gradient)
        if seconds <= LONG_STEP or images == smallest:
            seconds = _time(part, compute_gradient)  # the first one warms up, which may take as long as many steps
        if images == data.batch or 2 * seconds > LONG_STEP:
            return part, seconds
        images = min(2 * images, data.batch)


def _resize_batch(training: Training, images: int) -> Training:
    """Returns ``training`` with a batch of so many images, in more than one micro-step where it has several."""
    data = training.run.data
    if images == data.batch:
        return training
    micro = min(data.micro_batch or data.batch, images // 2 if training.run.accumulate > 1 else images)
    run = replace(training.run, data=replace(data, batch=images, micro_batch=micro))
    return replace(training, run=run, batches=replace(training.batches, batch=images))


def _compute_gradient(training: Training, batch: Batch) -> None:
    backward(training, training.inputs(batch.to(training.device)))


def _time(training: Training, step: Callable[[], object]) -> float:
    """Returns the seconds of ``step`` on the first rank, so that all ranks take the same number of steps."""
    return training.ranks.broadcast(time_call(step, training.device, time.perf_counter))


def _time_steps(training: Training) -> float:
    """Returns the mean over the steps of `STEPS_SECONDS`, without the first quarter, which warms up."""
    lengths: list[float] = []
    with closing(training.batches(0, training.steps)) as batches:
        while len(lengths) < MIN_STEPS or (sum(lengths) < STEPS_SECONDS and len(lengths) < MAX_STEPS):
            lengths.append(_time(training, lambda: take_step(training, next(batches))))
            if len(lengths) == training.steps:
                break
    after_warmup = lengths[len(lengths) // 4 :]
    return sum(after_warmup) / len(after_warmup)


def _time_evaluation(training: Training) -> float:
    """Returns the seconds of one evaluation, from the batches that fit into `EVALUATION_SECONDS`."""
    ends: list[float] = []
    started = time.perf_counter()

    def stopped() -> bool:
        if training.device.type != "cpu":
            torch.accelerator.synchronize(training.device)
        ends.append(training.ranks.broadcast(time.perf_counter() - started))
        return ends[-1] > EVALUATION_SECONDS

    if training.evaluate(stopped) is not None:
        stopped()
        return ends[-1]
    # without the first batch, which waits for the workers, unless it is the only one
    batch = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else ends[0]
    return batch * training.validator.count_images(training.ranks) / read_options(training.run).batch
