"""Every automatic choice of a run but the steps that a length of time buys (`time_budget`): made once, and said aloud."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.config.default_model import model_for_images
from vitrail.config.schema import Run
from vitrail.config.units import largest_divisor
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.reports.wording import plural
from vitrail.runtime.device import default_precision
from vitrail.runtime.process import cores
from vitrail.runtime.progress import Say


def choose_model(run: Run, size: tuple[int, int], images: int) -> Run:
    """``run`` with a network: the one that it names, or one that follows the pictures' size and number."""
    if run.model.name is not None:
        return run
    name, changes = model_for_images(size, images=images)
    return replace(run, model=replace(run.model, name=name, changes={**changes, **run.model.changes}))


def settle(
    run: Run, preprocessing: Preprocessing, train: Source, device: torch.device, say: Say, *, width: int, saved: float
) -> Run:
    """``run`` with nothing automatic left in it but the length that ``schedule.time`` buys.

    Args:
        width: of the network.
        saved: bytes of activations that one image leaves for the backward pass.
    """
    compute, data, model = run.compute, run.data, run.model
    precision = compute.precision or default_precision(device, width)
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
        micro_batch=data.micro_batch or default_micro_batch(saved, data.batch, device),
        workers=workers,
        channels=preprocessing.channels,
    )
    steps = len_in_steps(run, len(train))
    save = replace(run.save, log_every=run.save.log_every or (max(1, min(50, steps // 100)) if steps else 10))
    loss = run.objective.loss or ("sigmoid" if train.multi_label else "softmax")
    model = replace(model, size=preprocessing.size)
    run = replace(run, compute=compute, data=data, model=model, save=save, objective=replace(run.objective, loss=loss))
    say(
        f"compute  {device}, {precision}, compile {'on' if compute.compile else 'off'}, "
        f"{plural(compute.threads or 1, 'thread')}, {plural(workers, 'worker')}, "
        f"batch {data.batch} = {run.accumulate} x {data.micro_batch}"
    )
    return run


def default_micro_batch(saved: float, batch: int, device: torch.device) -> int:
    """The largest divisor of ``batch`` whose saved activations stay under 6 GB on a CPU; on a GPU the whole batch is tried."""
    if device.type == "cuda":
        return batch
    return largest_divisor(batch, int(6e9 // saved))


def len_in_steps(run: Run, images: int) -> int:
    """Updates in the run; 0 where only a measurement can tell (``schedule.time``)."""
    schedule = run.schedule
    if schedule.steps is not None:
        return schedule.steps
    if schedule.epochs is None:
        return 0
    return TrainStream(images=images, batch=run.data.batch, seed=run.seed).steps_for(schedule.epochs)
