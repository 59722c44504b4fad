"""`vitrail train --tune-lr`: trainings of half the length at a few learning rates, before the one that is asked for."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.config.schema import Run, ScheduleSettings
from vitrail.errors import DataError, DivergedError
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.progress import LogFunction
from vitrail.training.lr_search import choose_rate, grid_around
from vitrail.training.prepare import Prepared
from vitrail.training.train import train

TRIALS = "tuning"  # the folder of the trainings, inside that of the run
LENGTH = 0.5  # of a training, relative to the run


def tune_rate(
    run: Run, folder: Path, *, data: Any, transform: Callable[[Any], Any] | None, log: LogFunction, ranks: Ranks
) -> Run:
    """Returns ``run`` with the best learning rate, and the validation losses of all that were tried in ``optim.rates``.

    The rates lie around the one of ``run``, see `choose_rate`. Each training has half the length of the run, its seed and its
    data, and is evaluated on the validation split. One that was stopped goes on; all of them are removed at the end.
    A run that has begun in ``folder`` keeps its rate.

    Raises `DataError` where there are no validation images, `DivergedError` where every training diverged, and what `train`
    raises.
    """
    begun = RunFolder(folder)
    if begun.config.exists():
        stored = begun.read_config().optim
        return replace(run, optim=replace(run.optim, lr=stored.lr, rates=stored.rates))
    grid = grid_around(run.optim.lr)
    losses: dict[float, float] = {}

    def attempt(rate: float) -> None:
        trial = replace(
            run,
            optim=replace(run.optim, lr=rate),
            schedule=_shorten(run.schedule),
            save=replace(run.save, evaluations=1, best=False, patience=None),
        )
        how = {"data": data, "transform": transform, "quiet": True, "ranks": ranks}
        try:
            figures = train(trial, out=folder / TRIALS / f"{rate:g}", end=_evaluate_validation, **how).figures
            losses[rate] = figures["loss"]
        except DivergedError:
            losses[rate] = math.inf
        log(f"rate     {rate:g}: {losses[rate]:.4f} on val after {LENGTH:g} of the length")

    while (choice := choose_rate(losses, grid)).untried:
        for rate in choice.untried:
            attempt(rate)
    if choice.best is None:
        what = f"the training diverges at every learning rate from {max(losses):g} to {min(losses):g}"
        raise ranks.collective_error(DivergedError(what, "lower --lr much further, or set optim.clip=1"))
    edge = ", at the edge of those tried: another --lr may be better" if choice.is_at_edge else ""
    log(f"rate     {choice.best:g} is taken{edge}")
    ranks.run_on_rank0(lambda: shutil.rmtree(folder / TRIALS))
    rates = {f"{rate:g}": losses[rate] if math.isfinite(losses[rate]) else None for rate in sorted(losses)}
    return replace(run, optim=replace(run.optim, lr=choice.best, rates=rates))


def _shorten(schedule: ScheduleSettings) -> ScheduleSettings:
    """Returns a schedule of `LENGTH` of the length."""
    if schedule.steps is not None:
        return replace(schedule, steps=max(round(schedule.steps * LENGTH), 1))
    name = "time" if schedule.epochs is None else "epochs"
    return replace(schedule, **{name: getattr(schedule, name) * LENGTH})


def _evaluate_validation(prepared: Prepared) -> dict[str, float]:
    val = prepared.data.splits.val
    if val is None:
        what = "a learning rate is chosen on validation images, and the data have none"
        error = DataError(what, "set data.validation, or train without --tune-lr")
        raise prepared.training.ranks.collective_error(error)
    return {"loss": loss_of(prepared.evaluate({"val": val})["val"])}


def loss_of(result: EvaluationResult) -> float:
    """Returns the negative log-likelihood where there is one, else the first figure, negative where higher is better."""
    first = next(iter(result.figures.values()))
    return result.figures.get("nll", -first if result.metric.higher_is_better else first)
