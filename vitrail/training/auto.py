"""Resolves every automatic setting of a run, once, except the steps of a length of time (`time_budget`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from vitrail.config.schema import Parallel, Precision, Run
from vitrail.config.units import largest_divisor
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.deep_files import find_levels
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.precision import default_precision
from vitrail.runtime.process import cores
from vitrail.runtime.progress import Say
from vitrail.runtime.tuning import ExecutionPlan, list_threads, recall_plan
from vitrail.tasks import find_task
from vitrail.text import plural
from vitrail.training.network import NetworkPlan

STATIC_BYTES = 24  # of a parameter: weight, gradient, two moments, average, and the copy that is evaluated
NARROW = 64  # width below which a network gains nothing from bf16
FULL = 0.6  # of the memory of a device, above which parameters are sharded


def resolve(run: Run, plan: NetworkPlan, train: Source, device: torch.device, say: Say, ranks: Ranks = SINGLE) -> Run:
    """Returns ``run`` with the network of ``plan``, and with all automatic settings chosen but a length given as time."""
    compute, data = run.compute, run.data
    precision = compute.precision or default_precision(device)
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("fp16 training needs a GPU", "use --precision bf16 or fp32")
    if not ranks.is_single:
        parallel = compute.parallel or choose_parallel(plan, run, device, ranks)
        check_ranks(run, parallel, precision, ranks)
        compute = replace(compute, parallel=parallel)
        say(f"ranks    {ranks.world}, {ranks.local_world} on this machine; parameters: {compute.parallel}")
    elif device.type == "cuda" and torch.cuda.device_count() > 1:
        say(f"note     one of {torch.cuda.device_count()} GPUs is used; --devices all uses them all")
    compute = replace(
        compute,
        device=str(device) if ranks.is_single else device.type,
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
        pixel_range=data.pixel_range or find_levels(train),
    )
    steps = length_in_steps(run, len(train))
    save = replace(run.save, log_every=run.save.log_every or (max(1, min(50, steps // 100)) if steps else 10))
    losses = find_task(run.task).losses
    loss = run.objective.loss or (losses[int(train.multi_label)] if losses else None)
    objective = replace(run.objective, loss=loss)
    run = replace(run, model=plan.model, compute=compute, data=data, save=save, objective=objective)
    say(
        f"compute  {device}, {precision}, compile {'on' if compute.compile else 'off'}, "
        f"{plural(compute.threads or 1, 'thread')}, {plural(workers, 'worker')}, "
        f"batch {data.batch} = {run.accumulate} x {data.micro_batch}"
    )
    return run


def tune(run: Run, plan: NetworkPlan, device: torch.device, say: Say, ranks: Ranks = SINGLE) -> Run:
    """``run`` with the precision and the threads that are fastest for its network on this processor, where it leaves them open.

    All ranks measure at the same time, as they will compute, and take what the first one finds.
    """
    compute = run.compute
    if not compute.tune or device.type != "cpu" or plan.network is None or plan.width < NARROW:
        return run
    threads = compute.threads or cores()
    counts = [threads] if compute.threads or not ranks.is_single else list_threads(threads)
    precisions = [compute.precision] if compute.precision else ["fp32", "bf16"]
    plans = [
        ExecutionPlan(precision, max(count // ranks.local_world, 1)) for count in counts for precision in precisions
    ]
    if len(plans) == 1:
        return run
    assert plan.model.size is not None
    batch = run.data.micro_batch or default_micro_batch(plan.image_bytes, run.data.batch, device)
    image = (plan.channels, *plan.model.size)
    named = {"config": repr(plan.network.config), "about": plan.model.name or Path(plan.model.init or "").stem}
    choice = ranks.broadcast(recall_plan(plan.network, image, plans, batch=-(-batch // ranks.world), **named))
    assert choice is not None  # as a training measures for any number of images
    say(f"tuned    {choice}")
    precision, threads = cast(Precision, choice.plan.precision), choice.plan.threads * ranks.local_world
    return replace(run, compute=replace(compute, precision=precision, threads=threads))


def check_ranks(run: Run, parallel: Parallel, precision: str, ranks: Ranks) -> None:
    """Raises `ConfigError` for what several ranks cannot do."""
    if run.data.batch < ranks.world:
        what = f"a batch of {run.data.batch} is too small for {ranks.world} ranks"
        raise ConfigError(what, "give at least one image for each: a larger --batch")
    if run.model.head_first:
        raise ConfigError("model.head_first is set, which needs a single process", "leave it out, or use --head-only")
    if precision == "fp16" and parallel != "replicate":
        what = "fp16 scales the loss by overflows, which every rank sees in its own shards only"
        raise ConfigError(what, "use --precision bf16, or --set compute.parallel=replicate")


def choose_parallel(plan: NetworkPlan, run: Run, device: torch.device, ranks: Ranks) -> Parallel:
    """Chooses ``replicate`` where all of it fits in the memory of a device; else ``shard``, on several machines ``hybrid``."""
    if run.compute.exact:
        return "shard"
    if device.type != "cuda":
        return "replicate"
    memory = torch.cuda.get_device_properties(device).total_memory
    images = run.data.micro_batch or run.data.batch / ranks.world
    if STATIC_BYTES * plan.parameters + images * plan.image_bytes < FULL * memory:
        return "replicate"
    return "shard" if ranks.local_world == ranks.world else "hybrid"


def default_micro_batch(image_bytes: float, batch: int, device: torch.device) -> int:
    """Returns the largest divisor of ``batch`` whose activations stay under 6 GB on a CPU; on a GPU the whole batch is tried."""
    if device.type == "cuda":
        return batch
    return largest_divisor(batch, int(6e9 // image_bytes))


def length_in_steps(run: Run, images: int) -> int | None:
    """Returns the updates in the run; None where only a measurement can tell (``schedule.time``)."""
    schedule = run.schedule
    if schedule.steps is not None:
        return schedule.steps
    if schedule.epochs is None:
        return None
    return TrainStream(images=images, batch=run.data.batch, seed=run.seed).steps_for(schedule.epochs)
