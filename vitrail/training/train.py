"""Training from the first word to the report: `train` is what the command line and Python users call."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.config.recipes import RECIPES
from vitrail.config.reconcile import without_what_was_left_out
from vitrail.config.schema import LENGTH, Run, differences
from vitrail.errors import ConfigError
from vitrail.runs import checkpoint
from vitrail.runs.folder import RunFolder, default_folder, why_stopped
from vitrail.runtime.process import keep_generators, use_threads
from vitrail.runtime.progress import ProgressBar
from vitrail.runtime.signals import StopRequests
from vitrail.training.goals.classifier import finish, prepare
from vitrail.training.goals.encoder import finish_pretraining, prepare_pretraining
from vitrail.training.loop import fit
from vitrail.training.provenance import record_split
from vitrail.training.schedule import learning_rate
from vitrail.training.state import Training, restore
from vitrail.training.time_budget import fix_evaluations, fix_length
from vitrail.weights.resolve import find


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its report, and the figures of its final model."""

    folder: Path
    report: Path
    figures: dict[str, float]

    def load(self) -> Any:
        """The trained `Classifier`; without a head where it learned without labels."""
        from vitrail.weights import load

        return load(self.folder)


def train(
    run: Run,
    *,
    out: Path | None = None,
    data: Any = None,
    transform: Callable | None = None,
    quiet: bool = False,
    command: str = "",
) -> Result:
    """Trains ``run`` in the folder ``out``, or goes on there with the same run that was stopped.

    Args:
        run: the settings; automatic ones are decided before the first step and written to ``config.yaml``.
        out: the run directory; by default a new one under ``runs``.
        data: anything `vitrail.data.open_data` takes, in place of the path in ``run.data.source``.
        transform: a callable or module from a decoded picture to a (C, h, w) tensor in [0, 1], in place of the recipe's crops.
        quiet: no progress on stderr.
        command: the words that started this, for the report.

    Raises the classes of `vitrail.errors`; `Preempted` and `Interrupted` come once the state is saved.
    """
    run = with_full_paths(run)
    folder = RunFolder(out or default_folder(run, run.model.name or Path(run.model.init or run.recipe).stem))
    finished = folder.status().get("state") == "finished"
    run, extended = _continued(run, folder)
    if finished and not extended:
        return Result(folder.path, folder.report, folder.status().get("figures", {}))
    folder.open()
    say = _teller(folder, quiet)
    try:
        with keep_generators(), StopRequests() as stop:
            return _train(run, folder, data, transform, quiet, command, say, stop)
    except BaseException as error:
        if folder.path.is_dir() and folder.status().get("state") != "finished":
            folder.write_status(why_stopped(error), error=str(error))
        raise
    finally:
        folder.close()


def with_full_paths(run: Run) -> Run:
    """The run with its teacher and its tokenizer by their paths in full: `latest` may change until it is resumed.

    Raises `CheckpointError` where there is no such model.
    """
    asked = run.objective
    teacher, tokenizer = (path and str(find(path).path.resolve()) for path in (asked.teacher, asked.tokenizer))
    return replace(run, objective=replace(asked, teacher=teacher, tokenizer=tokenizer))


def _continued(run: Run, folder: RunFolder) -> tuple[Run, bool]:
    """The run as its folder has it, where it has one; and whether it was made longer.

    Raises `ConfigError` with the difference where the settings are of another run.
    """
    if not folder.config.exists():
        return run, False
    stored = folder.read_config()
    found = differences(without_what_was_left_out(run, stored), stored)
    longer = {path: both for path, both in found.items() if path in LENGTH}
    wrong = {path: both for path, both in found.items() if path not in LENGTH and path != "recipe"}
    if wrong:
        raise ConfigError(
            f"{folder.path} holds a run with other settings",
            "choose another --out, or the same settings",
            value="\n".join(f"{path}: {before!r} there, {now!r} asked" for path, (before, now) in wrong.items()),
        )
    asked = run.data
    data = replace(
        stored.data,
        source=asked.source or stored.data.source,
        workers=stored.data.workers if asked.workers is None else asked.workers,
    )
    save = replace(run.save, log_every=stored.save.log_every, evaluations=stored.save.evaluations)
    schedule = run.schedule if longer else stored.schedule
    model = replace(stored.model, init=run.model.init or stored.model.init)
    return replace(stored, model=model, data=data, save=save, schedule=schedule), bool(longer)


def _teller(folder: RunFolder, quiet: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        for each in line.splitlines():
            folder.log(each)
            if not quiet:
                print(each, file=sys.stderr, flush=True)

    return say


def _train(
    run: Run,
    folder: RunFolder,
    data: Any,
    transform: Callable | None,
    quiet: bool,
    command: str,
    say: Callable[[str], None],
    stop: StopRequests,
) -> Result:
    started = time.perf_counter()
    if run.recipe in RECIPES:
        recipe = RECIPES[run.recipe]
        say(f"recipe   {run.recipe}: {recipe.source}\nexpect   {recipe.expect}")
    if run.objective.name == "supervised":
        prepared = prepare(run, folder, data=data, transform=transform, say=say)
        end = partial(finish, prepared)
    else:
        prepared = prepare_pretraining(run, folder, data=data, transform=transform, say=say)
        end = partial(finish_pretraining, prepared)
    training = prepared.training
    saved = checkpoint.load_newest(folder.checkpoints)
    with use_threads(training.run.compute.threads or 1):
        fix_length(training, say)
        fix_evaluations(training)
        record_split(folder, prepared.splits)
        if saved is not None:
            resume(training, saved, say)
        folder.write_config(training.run)
        folder.write_status("running", steps=training.steps)
        progress = training.progress
        folder.start_metrics(progress.metrics_bytes, step=progress.step, tensorboard=training.run.save.tensorboard)
        length = f"{training.steps:,} steps, {training.steps / training.steps_an_epoch:.3g} epochs"
        say(f"training {length}; run {folder.path}")
        with ProgressBar("training", training.steps, quiet=quiet) as show:
            fit(training, stop, show)
        seconds = time.perf_counter() - started
        report, figures = end(command=command, seconds=seconds, quiet=quiet, say=say)
    return Result(folder.path, report, figures)


def resume(training: Training, saved: checkpoint.Checkpoint, say: Callable[[str], None]) -> None:
    """Goes on from a checkpoint, saying what was passed over and what a longer schedule changes."""
    for line in saved.refused:
        say(f"passed over a damaged checkpoint: {line}")
    restore(training, saved)
    run, step = training.run, saved.step
    before = saved.state.get("steps", training.steps)
    if step > training.steps:
        raise ConfigError(f"the run is at step {step}, beyond the {training.steps} asked for", "ask for a longer run")
    rate = learning_rate(run.schedule, run.optim.lr, step, training.steps)
    say(f"resuming at step {step} of {training.steps}; learning rate {rate:.3g}")
    if before != training.steps:
        was = learning_rate(run.schedule, run.optim.lr, step, before)
        say(f"the schedule is stretched from {before} to {training.steps} steps: the rate at this step was {was:.3g}")
