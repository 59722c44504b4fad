"""Resolves every automatic setting of a run, once, except the steps of a length of time (`time_budget`)."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.config.schema import Run
from vitrail.config.units import largest_divisor
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.reports.wording import plural
from vitrail.runtime.precision import default_precision
from vitrail.runtime.process import cores
from vitrail.runtime.progress import Say
from vitrail.tasks import find_task
from vitrail.training.network import NetworkPlan


def resolve(run: Run, plan: NetworkPlan, train: Source, device: torch.device, say: Say) -> Run:
    """``run`` with the network of ``plan``, and with nothing automatic left in it but the length that ``schedule.time`` buys."""
    compute, data = run.compute, run.data
    precision = compute.precision or default_precision(device, plan.width)
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("fp16 training needs a GPU", "use --precision bf16 or fp32")
    compute = replace(
        compute,
        device=str(device),
        precision=precision,
        compile=compute.compile if compute.compile is not None else device.type == "cuda",
        threads=compute.threads or cores(),
    )
    files = train.kind == "files"
    workers = data.workers if data.workers is not None else (max((compute.threads or 1) - 1, 1) if files else 0)
    data = replace(
        data,
        micro_batch=data.micro_batch or default_micro_batch(plan.image_bytes, data.batch, device),
        workers=workers,
        channels=plan.channels,
    )
    steps = length_in_steps(run, len(train))
    save = replace(run.save, log_every=run.save.log_every or (max(1, min(50, steps // 100)) if steps else 10))
    loss = run.objective.loss or find_task(run.task).default_loss(train)
    objective = replace(run.objective, loss=loss)
    run = replace(run, model=plan.model, compute=compute, data=data, save=save, objective=objective)
    say(
        f"compute  {device}, {precision}, compile {'on' if compute.compile else 'off'}, "
        f"{plural(compute.threads or 1, 'thread')}, {plural(workers, 'worker')}, "
        f"batch {data.batch} = {run.accumulate} x {data.micro_batch}"
    )
    return run


def default_micro_batch(image_bytes: float, batch: int, device: torch.device) -> int:
    """The largest divisor of ``batch`` whose activations stay under 6 GB on a CPU; on a GPU the whole batch is tried."""
    if device.type == "cuda":
        return batch
    return largest_divisor(batch, int(6e9 // image_bytes))


def length_in_steps(run: Run, images: int) -> int | None:
    """Updates in the run; None where only a measurement can tell (``schedule.time``)."""
    schedule = run.schedule
    if schedule.steps is not None:
        return schedule.steps
    if schedule.epochs is None:
        return None
    return TrainStream(images=images, batch=run.data.batch, seed=run.seed).steps_for(schedule.epochs)
