"""The training loop: steps, and the evaluations, logs and checkpoints between them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from vitrail.data.loader import Batch
from vitrail.errors import DataError
from vitrail.runtime.process import StopRequests, stopped_by
from vitrail.runtime.progress import ProgressBar
from vitrail.training.callbacks import TrainingEvent
from vitrail.training.schedule import learning_rate
from vitrail.training.state import Training, collect_evaluated, collect_state, collect_tensors, use_average
from vitrail.training.step import read_pending, take_step
from vitrail.training.validation import TaskValidator


def fit(training: Training, stop: StopRequests, show: ProgressBar) -> None:
    """Runs the remaining steps, evaluating and saving between them and after the last one.

    Raises `Preempted` or `Interrupted` once the state is saved, and `DivergedError` before a non-finite update is made or, where
    the training defers reading, before anything is logged, evaluated or saved after it. However it ends, the workers are stopped
    and no checkpoint is being written.
    """
    with closing(training.saver), closing(training.batches(training.progress.step, training.steps)) as batches:
        _fit(training, batches, stop, show)


def _fit(training: Training, batches: Iterator[Batch], stop: StopRequests, show: ProgressBar) -> None:
    progress, ranks, saver = training.progress, training.ranks, training.saver
    saved = time.monotonic()
    clock = _Clock()
    cause = _find_cause(training, show)  # of a run that is resumed after its end
    ended = bool(cause)
    while True:
        # all ranks stop and save at the same step: any of them may receive a signal, and rank 0 has the clock
        late = time.monotonic() - saved >= training.run.save.every
        asked, due, failed = ranks.largest(stop.asked, ranks.first and late, saver.failed)
        if failed:
            saver.wait()  # raises
        if due:
            save(training)
            saved = time.monotonic()
        if _is_evaluation_due(training, ended) and not asked:
            asked = _evaluate(training, stop, show)
            if not asked:
                cause = _find_cause(training, show)
                ended = _ask(training, "on_evaluation", training.evaluated) or bool(cause) or ended
        if asked:
            save(training)
            saver.wait()
            raise ranks.collective_error(stopped_by(asked, f"run the same command with --out {training.folder.path}"))
        if ended or progress.step >= training.steps:
            break
        with clock.waiting():
            batch = next(batches)
        training.freeze_backbone()
        loss = take_step(training, batch)
        clock.count(len(batch.keys) // training.objective.views)
        rate = learning_rate(training.run.schedule, training.run.optim.lr, progress.step - 1, training.steps)
        ended = _ask(training, "on_step", {"loss": loss, "lr": rate})
        if progress.step % (training.run.save.log_every or 1) == 0 or progress.step == training.steps or ended:
            _log(training, clock, show)
        show.update(progress.step, loss=loss, **clock.figures())
    if progress.step < training.steps:
        show.log(f"ended by {cause or 'a callback'} at step {progress.step:,} of {training.steps:,}")
        if training.operations is not None:
            training.operations *= progress.step / training.steps
        training.steps = progress.step
    save(training)
    saver.wait()


def _ask(training: Training, moment: str, figures: Mapping[str, float]) -> bool:
    """Calls the callbacks of rank 0; returns on all ranks whether one of them ends the training."""
    if not training.callbacks:
        return False
    progress = training.progress

    def call() -> bool:
        seen = {"epoch": round(progress.step / training.steps_an_epoch, 4), **figures}
        about = {"model": training.model, "folder": training.folder.path, "log": training.folder.log}
        event = TrainingEvent(step=progress.step, steps=training.steps, figures=seen, **about)
        return any([bool(getattr(callback, moment)(event)) for callback in training.callbacks])

    return training.ranks.run_on_rank0(call)


def _is_evaluation_due(training: Training, ended: bool) -> bool:
    step = training.progress.step
    wanted = step % training.evaluate_every == 0 or step == training.steps or ended
    return wanted and (step > 0 or training.evaluate_first) and training.progress.evaluated < step


def _evaluate(training: Training, stop: StopRequests, show: ProgressBar) -> int:
    """Evaluates the averaged weights. If a stop is requested meanwhile, returns the signal and records nothing."""
    read_pending(training)
    started, asked = time.perf_counter(), 0

    def stopped() -> bool:
        nonlocal asked
        (asked,) = training.ranks.largest(stop.asked)
        return asked > 0

    with use_average(training):
        figures = training.evaluate(stopped)
    if figures is None:
        return asked
    training.progress.evaluated, training.evaluated = training.progress.step, figures
    if training.run.save.compares:
        _compare(training, figures)
    epoch = _write(training, figures, {"evaluation_seconds": round(time.perf_counter() - started, 3)})
    shown = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
    if shown:  # there may be no images to evaluate on
        show.log(f"epoch {epoch:.3g}  step {training.progress.step:,}  {shown}")
    return 0


def _compare(training: Training, figures: Mapping[str, float]) -> None:
    """Compares an evaluation with the best one so far, by its first figure on val, and keeps the weights of the better one.

    Of equal ones the last is kept, which was trained longer; for ``patience`` it is no gain.
    """
    assert isinstance(training.validator, TaskValidator), "checked by the goal"
    first = next(value for name, value in figures.items() if name.startswith("val_"))
    progress, value = training.progress, training.ranks.run_on_rank0(lambda: first)
    sign = 1 if training.validator.model.metric().higher_is_better else -1
    progress.compared, progress.waited = progress.compared + 1, progress.waited + 1
    if not math.isfinite(value):
        return
    gain = math.inf if progress.best is None else sign * (value - progress.best)
    if gain > 0:
        progress.waited = 0
    if gain >= 0:
        progress.best, progress.best_step = value, progress.step
        if training.run.save.best:
            training.best = collect_evaluated(training)


def _find_cause(training: Training, show: ProgressBar) -> str:
    """Returns the setting that ends the training by the evaluations so far, or ""."""
    save = training.run.save
    if save.patience is not None and training.progress.waited >= save.patience:
        return "save.patience"
    return "save.stop_below" if save.stop_below is not None and _has_fallen(training, save.stop_below, show) else ""


def _has_fallen(training: Training, limit: float, show: ProgressBar) -> bool:
    """Returns whether the nearest neighbours are worse than before the first step by more than ``limit``."""
    rates = training.ranks.run_on_rank0(lambda: [row["knn"] for row in training.folder.metrics() if "knn" in row])
    if not rates or not rates[-1] < rates[0] - limit:
        return False
    line = f"warning  knn fell from {rates[0]:.4f} to {rates[-1]:.4f}, by more than save.stop_below={limit:g}: try a lower --lr"
    training.folder.log(line)
    show.log(line)
    return True


def _log(training: Training, clock: _Clock, show: ProgressBar) -> None:
    read_pending(training)
    progress, run, objective = training.progress, training.run, training.objective
    rate = learning_rate(run.schedule, run.optim.lr, progress.step - 1, training.steps)
    means = progress.take_means()
    _write(training, {"images": progress.images, **means, "lr": rate}, clock.lap())
    if objective.can_collapse and not training.warned:
        found = objective.explain_collapse(means, progress.step / training.steps)
        if found is not None:
            training.warned = True
            training.folder.log(f"warning  {found}")
            show.log(f"warning  {found}")


def _write(training: Training, figures: Mapping[str, float], timing: Mapping[str, float]) -> float:
    """Writes a line of the metrics and one of the timing; returns the epoch."""
    progress, folder = training.progress, training.folder
    epoch = round(progress.step / training.steps_an_epoch, 4)
    progress.metrics_bytes = folder.write_metrics({"step": progress.step, "epoch": epoch, **figures})
    folder.write_timing({"step": progress.step, **timing})
    return epoch


def save(training: Training) -> None:
    """Begins to write a checkpoint of this moment. Raises the `DiskError` of the one before, on every rank."""
    read_pending(training)
    _share_bad(training)
    training.ranks.run_on_rank0(training.folder.sync_metrics)
    progress, folder = training.progress, training.folder.checkpoints
    how = {"keep": training.run.save.keep, "evaluated": progress.evaluated == progress.step}
    training.saver.save(folder, progress.step, collect_tensors(training), collect_state(training), **how)


def _share_bad(training: Training) -> None:
    """Tells every rank the bad images of the others. Raises `DataError` on all ranks if there are too many."""
    ranks, bad = training.ranks, training.batches.data.bad
    try:
        for reasons in () if ranks.is_single else ranks.gather(bad.reasons):
            bad.merge(reasons)
    except DataError as error:
        raise ranks.collective_error(error) from None


class _Clock:
    """Counts images, and the seconds spent waiting for data, since the last lap and in the last few seconds."""

    def __init__(self) -> None:
        self._lap = self._recent = (0, 0.0, time.perf_counter())  # images, seconds waited, when it began
        self.images, self.waited = 0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    def count(self, images: int) -> None:
        self.images += images

    def figures(self) -> dict[str, float | str]:
        """Returns the figures of the last few seconds, for the bar."""
        seconds, images, waited = self._since(self._recent)
        if seconds > 5:
            self._recent = self.images, self.waited, time.perf_counter()
        return {"images/s": images / seconds, "waiting for data": f"{waited / seconds:.0%}"}

    def lap(self) -> dict[str, float]:
        """Returns the figures for ``timing.jsonl`` since the last lap, which ends here."""
        seconds, images, waited = self._since(self._lap)
        self._lap = self.images, self.waited, time.perf_counter()
        rate, data_wait = round(images / seconds, 2), round(waited / seconds, 4)
        return {"seconds": round(seconds, 4), "images_per_second": rate, "data_wait": data_wait}

    def _since(self, then: tuple[int, float, float]) -> tuple[float, int, float]:
        images, waited, began = then
        return max(time.perf_counter() - began, 1e-9), self.images - images, self.waited - waited
