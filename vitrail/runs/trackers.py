"""Experiment trackers: TensorBoard, Weights & Biases, MLflow and Trackio get the settings and metrics of a run as it trains.

Their environment variables say where they write. A training that has begun goes on without one that fails.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.config.parse import flatten, plain
from vitrail.config.schema import Run
from vitrail.errors import ConfigError
from vitrail.files import read_checksummed, write_checksummed
from vitrail.runtime.process import keep_generators
from vitrail.runtime.progress import LogFunction

STORED = "trackers.json"  # by tracker, the id of the run that a resumed training continues


class Tracker(NamedTuple):
    """A run of a library that has begun: where it is found, and what takes figures, or the last state, with their step."""

    id: str
    place: str
    write: Callable[[Mapping[str, float], int], Any]
    finish: Callable[[str, int], Any]


def start_tensorboard(run: Run, folder: Path, name: str, known: str | None, step: int) -> Tracker:
    # purge_step hides what was written beyond the checkpoint; files of the same second would have the same name
    place, suffix = str(folder / "tensorboard"), f".{time.time_ns()}"
    writer = import_module("tensorboardX").SummaryWriter(place, purge_step=step, filename_suffix=suffix)
    lines = (f"    {key}: {value}" for key, value in flatten(plain(run)).items())  # indented: code in Markdown
    writer.add_text("settings", "\n".join(lines), step)

    def write(figures: Mapping[str, float], step: int) -> None:
        for key, value in figures.items():
            writer.add_scalar(key, value, step)

    return Tracker(name, place, write, lambda state, step: writer.close())


def start_wandb(run: Run, folder: Path, name: str, known: str | None, step: int) -> Tracker:
    wandb = import_module("wandb")
    place = None if "WANDB_DIR" in os.environ else str(folder)
    how = {"id": known, "resume": "allow", "allow_val_change": True, "reinit": "create_new"}
    begun = wandb.init(project=run.track.project, name=name, dir=place, config=plain(run), **how)
    begun.define_metric("*", step_metric="step")  # of wandb's own step, what repeats an earlier one is dropped

    def finish(state: str, step: int) -> None:
        begun.summary["state"] = state
        begun.finish(exit_code=int(state != "finished"))

    place = begun.url or str(Path(begun.dir).parent)
    return Tracker(begun.id, place, lambda figures, step: begun.log({**figures, "step": step}), finish)


def start_mlflow(run: Run, folder: Path, name: str, known: str | None, step: int) -> Tracker:
    def rename(key: str) -> str:
        return re.sub(r"[^/\w.\- ]|(?<!\w)/|/(?!\w)|^\.", "_", key[:250])  # MLflow takes normalized paths

    client, entities = import_module("mlflow").MlflowClient(), import_module("mlflow.entities")
    if known is None:
        found = client.get_experiment_by_name(run.track.project)
        experiment = found.experiment_id if found else client.create_experiment(run.track.project)
        known = client.create_run(experiment, run_name=name).info.run_id
        settings = {rename(key): str(value)[:6000] for key, value in flatten(plain(run)).items()}  # for good
        client.log_batch(known, params=[entities.Param(key, value) for key, value in settings.items()])
    client.update_run(known, status="RUNNING")
    uri, page = client.tracking_uri, f"/#/experiments/{client.get_run(known).info.experiment_id}/runs/"

    def write(figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        client.log_batch(known, [entities.Metric(rename(key), value, now, step) for key, value in figures.items()])

    def finish(state: str, step: int) -> None:
        client.set_tag(known, "state", state)
        ends = {"finished": "FINISHED", "preempted": "KILLED", "interrupted": "KILLED"}
        client.set_terminated(known, ends.get(state, "FAILED"))

    return Tracker(known, f"{uri.rstrip('/')}{page if uri.startswith('http') else ', run '}{known}", write, finish)


def start_trackio(run: Run, folder: Path, name: str, known: str | None, step: int) -> Tracker:
    trackio = import_module("trackio")
    resume = "allow" if known else "never"
    with redirect_stdout(sys.stderr):
        begun = trackio.init(run.track.project, known or name, config=plain(run), resume=resume, embed=False)

    def finish(state: str, step: int) -> None:
        begun.log({"state": state}, step=step)
        with redirect_stdout(sys.stderr):
            trackio.finish()

    place = begun.url or str(trackio.utils.TRACKIO_DIR)
    return Tracker(begun.name, place, lambda figures, step: begun.log({**figures}, step=step), finish)


# by the name in ``track.to``: how it starts, what is imported, what pip installs, and what to do where it fails
LIBRARIES: dict[str, tuple[Callable[..., Tracker], str, str, str]] = {
    "tensorboard": (start_tensorboard, "tensorboardX", "'vitrail[track]'", "make room on the disk"),
    "wandb": (start_wandb, "wandb", "wandb", "run `wandb login`, or set WANDB_MODE=offline"),
    "mlflow": (start_mlflow, "mlflow", "mlflow", "check MLFLOW_TRACKING_URI; without a server: pip install mlflow"),
    "trackio": (start_trackio, "trackio", "trackio", "check TRACKIO_DIR, TRACKIO_SPACE_ID and TRACKIO_SERVER_URL"),
}


def check_installed(libraries: Sequence[str]) -> None:
    """Raises `ConfigError` for a library that is missing."""
    for library in libraries:
        _, module, package, _ = LIBRARIES[library]
        if find_spec(module) is None:
            raise ConfigError(f"track.to={library} needs {module}, which is not installed", f"pip install {package}")


class Trackers:
    """The trackers of a training; ``log`` takes where each is found, and a warning for one that fails."""

    def __init__(self, log: LogFunction) -> None:
        self._log, self._used, self._step = log, dict[str, Tracker](), 0

    def start(self, run: Run, folder: Path, step: int) -> None:
        """Starts the runs, or continues those of `STORED` from ``step``. Raises `ConfigError` for a library that fails."""
        self._step = max(step - 1, 0)
        stored = read_checksummed(folder / STORED) or {}
        if not stored and (folder / STORED).exists():
            self._log(f"warning  {STORED} is damaged: the trackers start new runs")
        # a fold, or a trial of --tune-lr, is a folder inside that of its run
        name = "/".join(folder.resolve().parts[-3 if folder.parent.name in ("folds", "tuning") else -1 :])
        for library in dict.fromkeys(run.track.to):
            try:
                with _keep_random_state():
                    tracker = LIBRARIES[library][0](run, folder, name, stored.get(library), step)
            except Exception as error:
                remedy = LIBRARIES[library][3]
                remedy += f"; for a new run, delete {folder / STORED}" if library in stored else ""
                raise ConfigError(f"{library} cannot track this run: {error}", remedy) from error
            self._used[library], stored[library] = tracker, tracker.id
            write_checksummed(folder / STORED, stored)
            self._log(f"tracker  {library}: {tracker.place}")

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes the numbers of a line of ``metrics.jsonl``."""
        self._step = record["step"]
        figures = {key: value for key, value in record.items() if key != "step" and isinstance(value, (int, float))}
        self._call_each(lambda tracker: tracker.write(figures, self._step))

    def finish(self, state: str, figures: Mapping[str, float]) -> None:
        """Ends the runs with the ``state`` of the training; its final ``figures`` are written as ``final/NAME``."""
        if figures:
            self.write({"step": self._step, **{f"final/{name}": value for name, value in figures.items()}})
        self._call_each(lambda tracker: tracker.finish(state, self._step))

    def _call_each(self, call: Callable[[Tracker], Any]) -> None:
        for library, tracker in list(self._used.items()):
            try:
                with _keep_random_state():
                    call(tracker)
            except Exception as error:
                del self._used[library]
                failed = " ".join(f"{type(error).__name__}: {error}".split())
                self._log(f"warning  {library} is switched off: {failed}; {LIBRARIES[library][3]}, then resume")


@contextmanager
def _keep_random_state() -> Iterator[None]:
    """Restores the states of Python, NumPy and torch after the context: gradio, which trackio imports, draws numbers."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with keep_generators():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
