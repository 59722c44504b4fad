"""One trial: trained, evaluated once, and kept as a result of a few kilobytes."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from vitrail.data.sources.source import Source, Splits, take_part
from vitrail.errors import DivergedError
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe, peak_memory
from vitrail.studies.design import RATE, SAMPLE
from vitrail.studies.findings import measure_findings
from vitrail.studies.plan import Trial, settings_of
from vitrail.studies.results import RUNS, TrialResult, write_result
from vitrail.training.prepare import Prepared
from vitrail.training.train import train

CURVE = {"validation_accuracy": "val_top1", "validation_nll": "val_nll", "train_accuracy": "train_top1"}


@dataclass(frozen=True)
class Trainer:
    """Computes the trials of the study in ``folder``, of which it measures ``measure``; it keeps the images over many trials."""

    folder: Path
    splits: Splits
    measure: tuple[str, ...]

    def compute(self, trial: Trial, rate: float, attempt: int) -> None:
        """Trains a trial at a learning rate and writes its result, which its settings alone determine: one that was stopped
        resumes from its last checkpoint to the same bits. A training that diverged is a result too.

        Raises the classes of `vitrail.errors`.
        """
        save = replace(trial.run.save, train_images=len(self.watched.val or ()))  # the curve watches as many of either
        run = replace(trial.run, optim=replace(trial.run.optim, lr=rate), save=save)
        settings, started, place = {**settings_of(run), RATE: rate}, time.perf_counter(), self.folder / RUNS / trial.key
        result = TrialResult(
            key=trial.key, kind=trial.kind, state="done", settings=settings, seed=run.seed, rate=rate,
            limit=int(run.data.limit or 0), steps=run.schedule.steps or 0, attempts=attempt, **describe_machine(),
        )  # fmt: skip

        def keep(**figures: Any) -> None:
            spent = {"seconds": time.perf_counter() - started, "peak_bytes": peak_memory()}
            write_result(self.folder, replace(result, **figures, **spent))

        def end(prepared: Prepared) -> dict[str, float]:
            keep(**self._evaluate(trial, prepared))
            return {}

        try:
            train(run, out=place, data=self.watched, quiet=True, end=end)
        except DivergedError as error:
            keep(state="diverged", error=error.what)
        shutil.rmtree(place, ignore_errors=True)

    @cached_property
    def watched(self) -> Splits:
        """What a training sees: without the test images, and with `SAMPLE` validation images for the curve."""
        assert self.splits.val is not None, "a study has all splits"
        return replace(self.splits, val=choose_sample(self.splits.val, seed=0), test=None)

    def _evaluate(self, trial: Trial, prepared: Prepared) -> dict[str, Any]:
        """Returns the figures of a result."""
        training, built = prepared.training, prepared.built
        seed, train_images = training.run.seed, prepared.data.train
        assert self.splits.test is not None and self.splits.val is not None, "a study has all splits"
        final = trial.kind == "final"
        sources = {"validation": self.splits.val, "train": choose_sample(train_images, seed=seed)}
        evaluated = prepared.judge({**sources, **({"test": self.splits.test} if final else {})})
        figures = {name: each.metric.summarize() for name, each in evaluated.items()}
        right = evaluated["test" if final else "validation"].metric.samples()
        assert right is not None, "a classifier is right or wrong"
        images = training.steps * training.run.data.batch
        return {
            **{name: {"accuracy": each["top1"], "nll": each["nll"]} for name, each in figures.items()},
            "limit": len(train_images),
            "steps": training.steps,
            "images": images,
            "right": right > 0.5,
            "curve": read_curve(training.folder),
            "flops": training.operations or 0.0,
            "macs6": 6.0 * (built.multiply_adds or 0) * images,
            "parameters": built.parameters,
            "findings": measure_findings(self.measure, built.model, self.splits.test, seed) if final else {},
        }


def choose_sample(source: Source, *, seed: int) -> Source:
    """Returns `SAMPLE` of the images, stratified; of training images those that its curve watches."""
    return take_part(source, count=min(SAMPLE, len(source)), seed=seed)


def read_curve(folder: RunFolder) -> tuple[dict[str, float], ...]:
    """Returns what the evaluations during a training recorded."""
    return tuple(
        {"step": record["step"], **{name: record[column] for name, column in CURVE.items()}}
        for record in folder.metrics()
        if "val_top1" in record
    )


@cache
def describe_machine() -> dict[str, Any]:
    """Returns the machine and the version of the code, which are recorded with a result and never decide it."""
    version = importlib.metadata.version("vitrail")
    return {"host": socket.gethostname(), "device": describe(), "version": version, "commit": find_commit()}


def find_commit() -> str:
    """Returns the commit of this source, with ``+`` where files were changed since; empty outside of a repository of its own."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *words]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return asked.stdout.strip() if asked.returncode == 0 else ""

    try:
        if not ask("ls-files", "--", "__init__.py"):
            return ""
        return ask("rev-parse", "--short", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except OSError:  # there is no git
        return ""
