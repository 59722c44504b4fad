"""Training from the settings to the report: `train` serves the command line and Python."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.config.recipes import recipe_of
from vitrail.config.reconcile import continue_run
from vitrail.config.schema import Run
from vitrail.data.sources.open import FoundData
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.files import read_checksummed
from vitrail.rows import Scores, Table
from vitrail.runs import checkpoint
from vitrail.runs.folder import (
    FollowerFolder,
    RunFolder,
    default_folder,
    find_unfinished,
    join_records,
    speed,
    why_stopped,
)
from vitrail.runs.trackers import check_installed
from vitrail.runtime import fault_injection
from vitrail.runtime.distributed import Ranks, join, lost_ranks
from vitrail.runtime.process import StopRequests, keep_generators, note_stops, use_threads
from vitrail.runtime.progress import LogFunction, ProgressBar, duration, to_stderr
from vitrail.runtime.tuning import forget_if_stale
from vitrail.text import large, plural
from vitrail.training.callbacks import Callback
from vitrail.training.cost import run_operations
from vitrail.training.data import Transform
from vitrail.training.fingerprint import check_finished, record_or_check
from vitrail.training.goals import ENCODER, GOALS
from vitrail.training.loop import fit
from vitrail.training.prepare import Prepared, prepare
from vitrail.training.provenance import Ending, Outcome, describe_choice, device_hours
from vitrail.training.state import resume, use_average
from vitrail.weights.resolve import resolve_model

if TYPE_CHECKING:
    import matplotlib.figure

End = Callable[[Prepared], Mapping[str, float]]


@dataclass(frozen=True, repr=False)
class Result(Scores):
    """A finished run: its folder, its report, which does not exist with ``end``, the figures of its final model, and the split
    that they were measured on; "" where it learned without labels.
    """

    folder: Path
    report: Path
    figures: dict[str, float]
    split: str = ""

    def to_dict(self) -> dict[str, Any]:
        split = {"split": self.split} if self.split else {}
        found = read_checksummed(RunFolder(self.folder).folds) or {}
        folds = {"folds": found["folds"], "out_of_fold": found["all"]} if found else {}
        return {"folder": str(self.folder), "report": str(self.report), **split, **self.figures, **folds}

    @property
    def history(self) -> Table:
        """The logged steps and the evaluations between them, a row each: step, epoch, loss, lr, ..., val_top1, ...

        ``history.to_pandas()`` is a data frame. It is read from ``metrics.jsonl`` and ``timing.jsonl`` each time.
        """
        return Table(join_records(RunFolder(self.folder)))

    @property
    def predictions(self) -> Table:
        """The evaluated images of a classifier, a row each: ``path``, ``true``, ``label`` and ``score``; read from
        ``predictions.csv``, and empty for other tasks.
        """
        path = RunFolder(self.folder).predictions
        if not path.exists():
            return Table()
        with open(path, encoding="utf-8", newline="") as file:
            return Table({**row, "score": float(row["score"])} for row in csv.DictReader(file))

    def plot(self) -> matplotlib.figure.Figure:
        """Returns the history as a figure of matplotlib, which a notebook displays; ``figure.savefig(path)`` writes it.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        try:
            from vitrail.reports.history_figure import plot_history
        except ImportError as missing:
            raise ConfigError("a figure needs matplotlib", "pip install 'vitrail[figure]'") from missing
        return plot_history(self.history, self.folder.name)

    def load(self) -> Any:
        """Returns the trained `Classifier`; without a head where it learned without labels."""
        from vitrail.weights import load

        return load(self.folder)


def train(
    run: Run,
    *,
    out: Path | None = None,
    data: Any = None,
    transform: Transform | None = None,
    quiet: bool = False,
    command: str = "",
    notes: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    ranks: Ranks | None = None,
    end: End | None = None,
) -> Result:
    """Trains ``run`` in the folder ``out``, or resumes the same run, which was stopped there.

    Args:
        run: the settings; automatic ones are decided before the first step and written to ``config.yaml``.
        out: the run directory; by default a new one under ``runs``.
        data: anything `vitrail.data.open_data` takes, in place of the path in ``run.data.source``.
        transform: a callable or module from a decoded picture to a (C, h, w) tensor in [0, 1], in place of the recipe's crops.
        quiet: no progress on stderr.
        command: the command that started this, for the report.
        notes: first lines of the log, such as those on the choice of the weights.
        callbacks: called after steps and evaluations, and at the end.
        ranks: the processes that train together, each of which calls this; by default those that torch's launcher started.
        end: called after the last step, on every rank, in place of evaluating the model and writing it; it returns the figures of
            the result. ``built.model`` then has its final weights, averaged or of the best evaluation, and `Prepared.evaluate`
            evaluates it.

    With ``end`` the folder gets the settings, the split, metrics, timing, log, checkpoints and, with the figures, the status; it
    gets no ``model/``, report, card or mistakes. A run that is stopped in ``end`` calls it again when it is resumed; a finished
    run returns the figures of its status.

    Raises the classes of `vitrail.errors`; `Preempted` and `Interrupted` come once the state is saved.
    """
    given = nullcontext(ranks) if ranks is not None else join(run.compute.device, run.compute.timeout)
    with given as ranks:
        quiet = quiet or not ranks.first
        run, path, warnings, result = ranks.run_on_rank0(lambda: _begin(run, out, data, transform))
        if result is not None:
            for note in () if quiet else warnings:
                to_stderr(f"warning  {note}")
            return result
        folder = RunFolder(path) if ranks.first else FollowerFolder(path, ranks.rank)
        ranks.run_on_rank0(folder.open)
        if not ranks.first:
            folder.open()
        log = partial(_log_and_print, folder, quiet)
        for note in (*notes, *(f"warning  {warning}" for warning in warnings)):
            log(note)
        if not folder.status() and (folder.path / "status.json").exists():
            log("warning  status.json is damaged; resuming from the newest checkpoint")
        if out is None and (data is None or isinstance(data, FoundData)) and (unfinished := find_unfinished(run)):
            verb = "train" if run.objective.name == "supervised" else "pretrain"
            log(f"note     {unfinished} is unfinished; continue it with: vitrail {verb} --resume {unfinished}")
        started = time.perf_counter()
        try:
            with keep_generators(), note_stops() as stop, lost_ranks():
                if recipe := recipe_of(run):
                    log(f"recipe   {run.recipe}: {recipe.expect}; {recipe.source.removeprefix('ours: ')}")
                if rates := run.optim.rates:
                    losses = {rate: "diverged" if loss is None else f"{loss:.4f}" for rate, loss in rates.items()}
                    tried = ", ".join(f"{rate}: {loss}" for rate, loss in losses.items())
                    log(f"rate     {run.optim.lr:g}, chosen by validation losses: {tried}")
                prepared = prepare(run, folder, data=data, transform=transform, log=log, quiet=quiet, ranks=ranks)
                prepared.training.callbacks, prepared.training.model = callbacks, prepared.built.model
                with use_threads(max((prepared.training.run.compute.threads or 1) // ranks.local_world, 1)):
                    # a program that evaluates for itself, as a study does, has its own record of its data
                    _run_steps(prepared, stop, quiet, log, stamped=end is None)
                    ending = Ending(command, time.perf_counter() - started, quiet)
                    outcome = ranks.broadcast(_finish(prepared, ending, log, end))
                result = Result(folder.path, outcome.report, outcome.figures, outcome.split)
                for callback in callbacks if ranks.first else ():
                    callback.on_end(result)
                return result
        except BaseException as error:
            if folder.path.is_dir() and folder.status().get("state") != "finished":
                folder.write_status(why_stopped(error), error=str(error))
                if isinstance(error, VitrailError):
                    folder.remove_if_unused()
            raise
        finally:
            folder.close()


def _begin(
    run: Run, out: Path | None, data: Any, transform: Transform | None
) -> tuple[Run, Path, list[str], Result | None]:
    """Returns the run to train, its folder, warnings, and the result of a run that is finished.

    Raises `ConfigError` for the settings of another run, `DataError` where a finished run was trained on other data, and
    `CheckpointError` for a teacher or tokenizer that does not exist.
    """
    given = {"teacher": run.objective.teacher, "tokenizer": run.objective.tokenizer}
    # full paths, because `latest` may be another one when the run is resumed
    paths: dict[str, Any] = {name: resolve_model(path).origin for name, path in given.items() if path}
    run, extended, notes = replace(run, objective=replace(run.objective, **paths)), False, []
    folder = RunFolder(out or default_folder(run))
    finished = folder.status().get("state") == "finished"
    if folder.config.exists():
        stored = folder.read_config()
        run, extended = continue_run(run, stored, folder.path)
        before, now = stored.data.micro_batch, run.data.micro_batch
        if finished and not extended and (run.save.best, run.save.patience) != (stored.save.best, stored.save.patience):
            notes.append("save.best and save.patience are those of the finished run; give another --out for others")
        if before not in (None, now):
            notes.append(f"micro-batches of {now} images in place of {before}: the run may differ in the last bits")
    if extended or not finished:
        if run.track.to:
            check_installed(run.track.to)
        return run, folder.path, notes, None
    try:
        opened = GOALS.get(run.objective.name, ENCODER).open(run, data, folder, transform, None)
    except DataError as error:
        notes = [f"the data are not compared with those of this finished run: {error.what}"]
    else:
        check_finished(folder, opened)
    status = folder.status()
    return (
        run,
        folder.path,
        notes,
        Result(folder.path, folder.report, status.get("figures", {}), status.get("split", "")),
    )


def _log_and_print(folder: RunFolder, quiet: bool, text: str) -> None:
    for line in text.splitlines():
        folder.log(line)
        if not quiet:
            to_stderr(line)


def _run_steps(prepared: Prepared, stop: StopRequests, quiet: bool, log: LogFunction, *, stamped: bool) -> None:
    """Trains from the newest checkpoint, where there is one, to the last step."""
    training, folder = prepared.training, prepared.training.folder
    saved = checkpoint.load_newest(folder.checkpoints, training.ranks)
    training.ranks.run_on_rank0(lambda: record_or_check(training, saved, log, stamped=stamped))
    if saved is not None:
        resume(training, saved, log)
    progress = training.progress
    if training.run.track.to:
        # the records of the checkpoint's own step are kept with it
        first = progress.step + 1 if progress.metrics_bytes else 0
        training.ranks.run_on_rank0(lambda: folder.start_trackers(training.run, step=first, log=log))
    # in this order: a finished run with the settings of a longer one would pass for the longer one
    folder.write_status("running", steps=training.steps)
    folder.write_config(training.run)
    folder.start_metrics(progress.metrics_bytes)
    for damage in folder.find_damage():
        log(f"warning  {damage}")
    training.operations = training.ranks.run_on_rank0(lambda: run_operations(training))
    if training.operations is not None:
        each = training.operations / training.steps / training.run.data.batch
        log(f"cost     {large(training.operations, 'FLOP')} in all, {large(each, 'FLOP')} an image")
    epochs = f"{training.steps / training.steps_an_epoch:.3g} epochs"
    log(f"training {plural(training.steps, 'step')} of {training.run.data.batch} images = {epochs}, in {folder.path}")
    with ProgressBar("training", training.steps, quiet=quiet) as show:
        fit(training, stop, show)
    choice, rate = prepared.threads, speed(folder, waiting=False)
    if choice is not None and rate and forget_if_stale(choice, 1 / rate):
        took = f"an image took {1e3 / rate:.3g} ms, more than twice what was measured for the number of threads"
        log(f"tuned    {took}: the next command measures again")


def _finish(prepared: Prepared, ending: Ending, log: LogFunction, end: End | None) -> Outcome:
    """Evaluates the averaged or the best weights, and writes the model, the report and the card; or calls ``end``."""
    training = prepared.training
    if training.run.save.compares:
        for line in describe_choice(training):
            log(f"chosen   {line}")
    fault_injection.hit("run.before_model")
    with use_average(training, best=True):
        if end is None:
            outcome = prepared.goal.finish(training, prepared.built, ending)
        else:
            figures = dict(end(prepared))
            summary = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
            outcome = Outcome(training.folder.report, figures, summary)
    fault_injection.hit("run.before_finished")
    facts = {"seconds": round(ending.seconds, 1), "operations": training.operations}
    facts |= {"device_hours": device_hours(training), "figures": outcome.figures, "split": outcome.split}
    training.folder.write_status("finished", steps=training.steps, **facts)
    if outcome.warning:
        log(f"warning  {outcome.warning}")
    log(f"done     {outcome.summary} after {duration(ending.seconds)}")
    return outcome
