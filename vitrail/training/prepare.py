"""Prepares a training from the requested run: data, the resolved run, network, objective, optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitrail import weights
from vitrail.config.schema import Run, identify
from vitrail.data.loader import collate_labels
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.source import Source, describe_data
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.evaluation.result import EvaluationResult
from vitrail.inference.options import InferenceOptions
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import find_device
from vitrail.runtime.distributed import SINGLE, Ranks, localise
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.training.auto import length_in_steps, resolve, tune
from vitrail.training.binding import fingerprint_data
from vitrail.training.data import RunData, TrainingBatches, Transform, warn_of_order
from vitrail.training.goals.goal import GOALS, Goal
from vitrail.training.network import BuiltModel, NetworkPlan
from vitrail.training.optimizer import Average, Optimiser, select_trainable
from vitrail.training.schedule import check_warmup
from vitrail.training.state import Training
from vitrail.training.time_budget import TRIAL_STEPS, buy_steps
from vitrail.weights.resolve import resolve_model


@dataclass(frozen=True)
class Prepared:
    """A training that is ready for its next step, the model that it trains, and its data."""

    goal: Goal
    training: Training
    built: BuiltModel
    data: RunData

    def judge(self, parts: Mapping[str, Source]) -> dict[str, EvaluationResult]:
        """Returns every figure of a supervised run's model, as it is now, on each of several sources; in fp32, over all ranks.

        Args:
            parts: by name, e.g. ``{"test": data.splits.test, "train": some of data.train}``.

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
    say: Say,
    sample: int | None = None,
    ranks: Ranks = SINGLE,
) -> Prepared:
    """Opens the data, fills every automatic field of ``run``, and builds all that it works with.

    Args:
        run: the requested settings, or those in ``config.yaml`` of a resumed run.
        data: anything `open_data` takes; by default the path in ``run.data.source``.
        transform: the user's own map from a decoded picture to a (C, h, w) tensor in [0, 1], in place of the recipe's crops.
        say: takes each line that a user should read.
        sample: for a dry run, how many small images are decoded, of all that would be kept in memory.
        ranks: the processes that train together; each of them calls this.

    Raises `ConfigError`, `DataError` or `CheckpointError` before any training memory is used.
    """
    goal = GOALS[run.objective.name]

    def open_all() -> tuple[Task | None, RunData, NetworkPlan, torch.device]:
        goal.check(run)
        device = find_device(run.compute.device, ranks)
        path = run.model.init
        start = None if path is None else weights.load(resolve_model(path).path.resolve(), log=say)
        run_data = goal.open(run, data, folder, transform, start.config.in_channels if start else None)
        say(describe_data(run_data.splits))
        for words in find_layout_warnings(run_data.splits, run.data.source):
            say(f"warning  {words}")
        run_data = run_data.keep_small(sample)
        for words in warn_of_order(run_data.train, run.seed):
            say(f"warning  {words}")
        return start, run_data, goal.plan(run, run_data, start, say), device

    start, run_data, plan, device = ranks.run_on_all(open_all)
    tuned = tune(run, plan, device, say, ranks)

    def build() -> tuple[Run, BuiltModel]:
        resolved = resolve(tuned, plan, run_data.train, device, say, ranks)
        built = goal.build(resolved, run_data, plan, start, say)
        built.model.to(device)
        return resolved, built

    resolved, built = ranks.run_on_all(build)
    training = assemble(resolved, goal, built, run_data, folder, device, say, ranks)
    return Prepared(goal, training, built, run_data)


def assemble(
    run: Run,
    goal: Goal,
    built: BuiltModel,
    data: RunData,
    folder: RunFolder,
    device: torch.device,
    say: Say,
    ranks: Ranks = SINGLE,
) -> Training:
    """Returns the `Training` of a resolved run; the steps that its length in time buys are measured first."""
    objective, inputs = goal.objective(run, built, data, say)
    objective.to(device)
    select_trainable(objective, head_only=run.model.head_only)
    trained = objective
    if not ranks.is_single:
        from vitrail.training.parallel import spread  # loading FSDP takes a second

        trained = spread(objective, run.compute, ranks, device)
    parameters = localise(select_trainable(trained, head_only=run.model.head_only))
    digests = fingerprint_data(data)
    ranks.check_same(settings=identify(run), images=digests, versions=versions())
    steps = length_in_steps(run, len(data.train))
    training = Training(
        run=run,
        steps=TRIAL_STEPS if steps is None else steps,
        images=len(data.train),
        objective=objective,
        trained=trained,
        inputs=inputs,
        optimiser=Optimiser(
            trained, run.optim, parameters, exact=run.compute.exact, precision=run.compute.precision, ranks=ranks
        ),
        average=Average(parameters, run.optim.ema, run.optim.ema_ramp) if run.optim.ema else None,
        batches=TrainingBatches(
            run=run,
            data=data,
            source=data.train,
            batch=run.data.batch,
            workers=run.data.workers or 0,
            views=objective.views,
            collate=built.model.targets.collate if isinstance(built.model, Task) else collate_labels,
            device=device,
            ranks=ranks,
        ),
        monitor=goal.monitor(run, built, data),
        folder=folder,
        device=device,
        ranks=ranks,
        evaluate_first=goal.evaluate_first,
        scaler=torch.amp.GradScaler(device.type) if run.compute.precision == "fp16" else None,
        digests=digests,
    )
    if steps is None:
        run, steps = buy_steps(training, say)
        training = replace(training, run=run, steps=steps)
    check_warmup(run.schedule, steps, say, begun=folder.config.exists())
    return training
