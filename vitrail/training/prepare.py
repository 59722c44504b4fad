"""Prepares a training from the requested run: its automatic settings, data, network, objective and optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from vitrail import weights
from vitrail.config.schema import Parallel, Precision, Run, identify
from vitrail.config.units import largest_divisor
from vitrail.data.loader import collate_labels
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.deep_files import find_levels
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.source import Source, describe_data
from vitrail.errors import ConfigError
from vitrail.evaluation.evaluate import EvaluationResult, evaluate_model
from vitrail.inference.options import InferenceOptions
from vitrail.objectives import FeatureDistillation
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import default_precision, find_device
from vitrail.runtime.distributed import SINGLE, Ranks, localise
from vitrail.runtime.machine import versions
from vitrail.runtime.process import cores
from vitrail.runtime.progress import LogFunction
from vitrail.runtime.tuning import Choice, ExecutionPlan, list_threads, recall_plan, recall_precision
from vitrail.tasks import Task, find_task
from vitrail.text import plural
from vitrail.torch_private import has_bf16
from vitrail.training.cost import TRIAL_STEPS, buy_steps
from vitrail.training.data import RunData, TrainingBatches, Transform, check_rare_classes, warn_of_order
from vitrail.training.fingerprint import fingerprint_data
from vitrail.training.goals import ENCODER, GOALS, Goal
from vitrail.training.inputs import ViewInputs
from vitrail.training.network import BuiltModel, NetworkPlan
from vitrail.training.optimizer import Average, Optimiser, select_trainable
from vitrail.training.schedule import check_warmup
from vitrail.training.state import Training
from vitrail.training.validation import FeatureValidator, TaskValidator

STATIC_BYTES = 24  # of a parameter: weight, gradient, two moments, average, and the copy that is evaluated
NARROW = 64  # width below which a network gains nothing from bf16
HUGE = 4 << 30  # bytes that one image keeps for the backward pass, from which on a size is hardly meant
FULL = 0.6  # of the memory of a device, above which parameters are sharded


def resolve(
    run: Run, plan: NetworkPlan, train: Source, device: torch.device, log: LogFunction, ranks: Ranks = SINGLE
) -> Run:
    """Returns ``run`` with the network of ``plan``, and with all automatic settings chosen but a length given as time."""
    compute, data = run.compute, run.data
    precision = compute.precision or default_precision(device)
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("fp16 training needs a GPU", "use --precision bf16 or fp32")
    if not ranks.is_single:
        parallel = compute.parallel or choose_parallel(plan, run, device, ranks)
        check_ranks(run, parallel, precision, ranks)
        compute = replace(compute, parallel=parallel)
        log(f"ranks    {ranks.world}, {ranks.local_world} on this machine; parameters: {compute.parallel}")
    elif device.type == "cuda" and torch.cuda.device_count() > 1:
        log(f"note     one of {torch.cuda.device_count()} GPUs is used; --devices all uses them all")
    threads = compute.threads or cores()
    compute = replace(
        compute,
        device=str(device) if ranks.is_single else device.type,
        precision=precision,
        compile=compute.compile if compute.compile is not None else device.type == "cuda",
        threads=threads,
    )
    workers = max(threads - 1, 1) if train.kind == "files" else 0
    data = replace(
        data,
        micro_batch=data.micro_batch or default_micro_batch(plan.image_bytes, data.batch, device),
        workers=workers if data.workers is None else data.workers,
        channels=plan.channels,
        pixel_range=data.pixel_range or find_levels(train),
    )
    steps = length_in_steps(run, len(train))
    save = replace(run.save, log_every=run.save.log_every or (max(1, min(50, steps // 100)) if steps else 10))
    losses = find_task(run.task, run.model.head).losses
    objective = replace(run.objective, loss=run.objective.loss or (losses[int(train.multi_label)] if losses else None))
    run = replace(run, model=plan.model, compute=compute, data=data, save=save, objective=objective)
    computed = f"{device}, {precision}, compile {'on' if compute.compile else 'off'}, {plural(threads, 'thread')}"
    batch = f"batch {data.batch} = {run.accumulate} x {data.micro_batch}"
    log(f"compute  {computed}, {plural(data.workers or 0, 'worker')}, {batch}")
    return run


def tune(
    run: Run, plan: NetworkPlan, device: torch.device, log: LogFunction, ranks: Ranks = SINGLE
) -> tuple[Run, Choice | None]:
    """Returns ``run`` with the precision and the number of threads for its network on this processor, unless it sets them,
    and how the threads were chosen if several numbers were timed.

    The precision is that of `choose_precision`, the threads are the fastest in it. The ranks take the choice of rank 0.
    """
    compute = run.compute
    if not compute.tune or device.type != "cpu" or plan.network is None or plan.network.width < NARROW:
        return run, None
    if plan.image_bytes > HUGE:  # whose blocks would take minutes
        return run, None
    assert plan.model.size is not None
    image = (plan.channels, *plan.model.size)
    named = {"config": repr(plan.network.config), "about": plan.model.name or Path(plan.model.init or "").stem}
    precision = compute.precision if has_bf16() else compute.precision or "fp32"
    if precision is None:
        choice = ranks.broadcast(recall_precision(plan.network, image, **named))
        log(f"tuned    {choice}")
        precision = cast(Precision, choice.plan.precision)
    chosen = None
    counts = [compute.threads] if compute.threads else list_threads(cores()) if ranks.is_single else [cores()]
    if len(counts) > 1:
        batch = run.data.micro_batch or default_micro_batch(plan.image_bytes, run.data.batch, device)
        plans = [ExecutionPlan(precision, count) for count in counts]
        chosen = recall_plan(plan.network, image, plans, batch=batch, **named)
        assert chosen is not None  # as a training measures for any number of images
        log(f"tuned    {chosen}")
        counts = [chosen.plan.threads]
    return replace(run, compute=replace(compute, precision=precision, threads=counts[0])), chosen


def check_ranks(run: Run, parallel: Parallel, precision: str, ranks: Ranks) -> None:
    """Raises `ConfigError` for what several ranks cannot do."""
    if run.data.batch < ranks.world:
        what = f"a batch of {run.data.batch} is too small for {ranks.world} ranks"
        raise ConfigError(what, "give at least one image for each: a larger --batch")
    if run.model.head_first:
        raise ConfigError("model.head_first is set, which needs a single process", "set it to 0")
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
    """Returns the updates in the run; None if its length is a time (``schedule.time``), whose steps are measured."""
    if run.schedule.steps is not None or run.schedule.epochs is None:
        return run.schedule.steps
    return TrainStream(images=images, batch=run.data.batch, seed=run.seed).steps_for(run.schedule.epochs)


@dataclass(frozen=True)
class Prepared:
    """A training that is ready for its next step, the model that it trains, and its data."""

    goal: Goal
    training: Training
    built: BuiltModel
    data: RunData
    threads: Choice | None = None  # how their number was chosen

    def evaluate(self, parts: Mapping[str, Source]) -> dict[str, EvaluationResult]:
        """Evaluates the model of a supervised run, as it is now, on each of ``parts`` by name; in fp32, over all ranks.

        Raises `DataError` for an empty or unlabelled source.
        """
        training, read = self.training, self.training.run.data
        options = InferenceOptions(workers=read.workers or 0, max_pixels=read.max_pixels)
        how = {"seed": training.run.seed, "bad": self.data.bad, "ranks": training.ranks}
        return {
            name: evaluate_model(self.built.model, part, options, split=name, **how) for name, part in parts.items()
        }


def prepare(
    run: Run,
    folder: RunFolder,
    *,
    data: Any = None,
    transform: Transform | None = None,
    log: LogFunction,
    sample: int | None = None,
    quiet: bool = True,
    ranks: Ranks = SINGLE,
) -> Prepared:
    """Opens the data, chooses the automatic settings of ``run``, and builds its model, objective and optimiser.

    Args:
        run: the requested settings, or those in ``config.yaml`` of a resumed run.
        data: anything `open_data` takes; by default the path in ``run.data.source``.
        transform: the user's own map from a decoded picture to a (C, h, w) tensor in [0, 1], in place of the recipe's crops.
        log: takes each line that a user should read.
        sample: for a dry run, the number of small images that are decoded.
        quiet: no progress on stderr.
        ranks: the processes that train together; each of them calls this.

    Raises `ConfigError`, `DataError` or `CheckpointError` before any training memory is used.
    """
    goal = GOALS.get(run.objective.name, ENCODER)

    with ranks.share_errors():
        goal.check(run)
        device, init = find_device(run.compute.device, ranks), run.model.init
        start = None if init is None else weights.load(init, log=log)
        run_data = goal.open(run, data, folder, transform, start.config.in_channels if start else None)
        log(describe_data(run_data.splits))
        run = replace(run, data=replace(run.data, conflicts=run_data.conflicts))
        for warning in (*run_data.notes, *find_layout_warnings(run_data.splits, run.data.source)):
            log(f"warning  {warning}")
        run_data = run_data.keep_small(sample)
        if warning := warn_of_order(run_data.train, run.seed):
            log(f"warning  {warning}")
        if run.data.balance or run.objective.class_weights != "none":
            check_rare_classes(run_data.train, balance=run.data.balance)
        plan = goal.plan(run, run_data, start, log)
        if plan.image_bytes > HUGE and plan.model.size is not None:
            size = "{} x {}".format(*plan.model.size)
            what = f"an image of {size} pixels keeps {plan.image_bytes / 2**30:.0f} GiB for the backward pass"
            log(f"warning  {what}: give a smaller --size, unless this is meant")
    run, choice = tune(run, plan, device, log, ranks)
    with ranks.share_errors():
        run = resolve(run, plan, run_data.train, device, log, ranks)
        built = goal.build(run, run_data, plan, start, log)
        built.model.to(device)
    how: dict[str, Any] = {"is_trial": sample is not None, "quiet": quiet, "log": log}
    training = assemble(run, goal, built, run_data, folder, device, ranks, **how)
    return Prepared(goal, training, built, run_data, choice)


def assemble(
    run: Run,
    goal: Goal,
    built: BuiltModel,
    data: RunData,
    folder: RunFolder,
    device: torch.device,
    ranks: Ranks,
    *,
    is_trial: bool,
    quiet: bool,
    log: LogFunction,
) -> Training:
    """Returns the `Training` of a resolved run; the steps that its length in time buys are measured first.

    If only a head is trained, on images without augmentation, their features are computed here (`training.frozen`).
    """
    how: dict[str, Any] = {"is_trial": is_trial, "quiet": quiet, "log": log}
    objective, inputs = goal.objective(run, built, data, log)
    objective.to(device)
    batches = TrainingBatches(
        run=run,
        data=data,
        source=data.train,
        batch=run.data.batch,
        workers=run.data.workers or 0,
        views=objective.views,
        local=objective.local,
        collate=built.model.targets.collate if isinstance(built.model, Task) else collate_labels,
        device=device,
        ranks=ranks,
    )
    digests = fingerprint_data(data)
    ranks.check_same(settings=identify(run), images=digests, versions=versions())
    steps = length_in_steps(run, len(data.train))
    if isinstance(objective, FeatureDistillation) and isinstance(inputs, ViewInputs):
        from vitrail.training.teacher_features import prepare_teacher

        inputs = prepare_teacher(objective, inputs, batches, built.model, **how)
    select_trainable(objective, run.model)
    trained = objective
    if not ranks.is_single:
        from vitrail.training.parallel import parallelise  # loading FSDP takes a second

        trained = parallelise(objective, run.compute, ranks, device)
    parameters = localise(select_trainable(trained, run.model))
    validator = goal.validator(run, built, data)
    if run.model.head_only:
        from vitrail.training.frozen import compute_features_once, has_fixed_features

        if has_fixed_features(run, data, built.model) and isinstance(validator, TaskValidator):
            inputs, batches, validator = compute_features_once(batches, validator, **how)
    if isinstance(validator, FeatureValidator) and not is_trial:
        validator.evaluate_teacher(run, ranks)
    training = Training(
        run=run,
        steps=TRIAL_STEPS if steps is None else steps,
        objective=objective,
        trained=trained,
        inputs=inputs,
        optimiser=Optimiser(
            trained, run.optim, parameters, exact=run.compute.exact, precision=run.compute.precision, ranks=ranks
        ),
        average=Average(parameters, run.optim.ema, run.optim.ema_ramp) if run.optim.ema else None,
        batches=batches,
        validator=validator,
        folder=folder,
        device=device,
        ranks=ranks,
        evaluate_first=goal.evaluate_first,
        scaler=torch.amp.GradScaler(device.type, enabled=run.compute.precision == "fp16"),
        digests=digests,
    )
    if steps is None:
        run, steps = buy_steps(training, log)
        training = replace(training, run=run, steps=steps)
    check_warmup(run.schedule, steps, log, begun=folder.config.exists())
    return training
