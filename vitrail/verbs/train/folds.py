"""`vitrail train --folds`: a training for each fold, evaluated on the images held out, before the one on all images."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config.reconcile import continue_run
from vitrail.config.schema import Run
from vitrail.errors import ConfigError
from vitrail.evaluation.evaluate import EvaluationResult, write_predictions
from vitrail.files import write_checksummed
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.progress import LogFunction, log_nothing
from vitrail.training.provenance import describe_first
from vitrail.training.train import train
from vitrail.verbs.evaluate import evaluate

FOLDS = "folds"  # the folder of the trainings, inside that of the run


def check_folds(folds: int, run: Run, *, tune_lr: bool, callbacks: bool) -> None:
    """Raises `ConfigError` for fewer than two folds, with options that choose by images which the last training has not, and with
    callbacks, whose state would go from one training into the next.
    """
    if folds < 2:
        raise ConfigError(f"folds is {folds}", "give 2 or more, e.g. --folds 5")
    if tune_lr or run.save.compares:
        what = "folds are given with tune_lr, save.best or save.patience, which choose by images that are held out"
        raise ConfigError(
            f"{what}, and the last training holds out none", "leave one out; a fixed --lr and --epochs compare"
        )
    if callbacks:
        raise ConfigError("callbacks are given with folds", "train each fold with its own: set=['data.fold=0/5']")
    if run.data.fold:
        raise ConfigError(f"folds are given with data.fold={run.data.fold}", "leave data.fold out")


def train_folds(
    run: Run, folder: Path, folds: int, *, data: Any, log: LogFunction, ranks: Ranks, quiet: bool, **how: Any
) -> Run:
    """Trains ``run`` for each fold, in a folder of its own below ``folder``, and evaluates it there on the images held out.

    Writes ``folds.json``, the figures of every fold and of all images together, each answered by the model that has not seen it,
    and ``out_of_fold.csv``, these answers. What was finished before a stop is kept.

    Returns:
        The training that is left: on all of these images.
    """
    begun, results = RunFolder(folder), list[EvaluationResult]()
    if begun.config.exists():  # another run is not to be trained in between
        continue_run(replace(run, data=replace(run.data, fold="all")), begun.read_config(), folder)
    given = data if data is not None else run.data.source
    reading: dict[str, Any] = {"columns": run.data.columns or None, "metrics": list(run.save.metrics) or None}
    reading |= {"max_pixels": run.data.max_pixels, "max_bad": run.data.max_bad, "device": run.compute.device}
    for place in range(folds):
        part, out = replace(run, data=replace(run.data, fold=f"{place}/{folds}")), folder / FOLDS / str(place)
        train(part, out=out, data=data, ranks=ranks, quiet=quiet, **how)
        results.append(evaluate(out, given, split="val", quiet=quiet, log=log_nothing, ranks=ranks, **reading))
        log(f"fold     {place}/{folds}: {describe_first(results[-1].to_dict())}")
    whole = join_results(results)
    log(f"folds    {describe_first(whole.to_dict())}, each answered by the model that was not trained on it")
    each = [next(iter(result.figures.values())) for result in results]
    if np.isfinite(each).all():
        log(f"         mean of the folds {np.mean(each):.4f}, from {min(each):.4f} to {max(each):.4f}")
    ranks.run_on_rank0(lambda: _write(RunFolder(folder), results, whole))
    return replace(run, data=replace(run.data, fold="all"))


def join_results(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Returns the result of all images together, without figures that are not the task's."""
    metric = deepcopy(results[0].metric)
    for result in results[1:]:
        metric.merge(result.metric)
    return replace(results[0], metric=metric, further={})


def _write(folder: RunFolder, results: Sequence[EvaluationResult], whole: EvaluationResult) -> None:
    write_checksummed(folder.folds, {"folds": [result.to_dict() for result in results], "all": whole.to_dict()})
    write_predictions(folder.out_of_fold, whole.metric)
