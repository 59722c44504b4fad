"""One cell: trained, judged once, and kept as a result of a few kilobytes.

N judged images.
"""

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

from vitrail.config.schema import Run
from vitrail.data.sources.holdout import take_part
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import DivergedError
from vitrail.evaluation.result import EvaluationResult
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe, peak_memory
from vitrail.training.prepare import Prepared
from vitrail.training.train import train
from vitrail.workflows.study.cells import Cell, settings_of
from vitrail.workflows.study.findings import measure_findings
from vitrail.workflows.study.results import CellResult, write_result
from vitrail.workflows.study.study import LIMIT, RATE, SAMPLE

RUNS = "runs"  # the folder of trainings that are under way, inside that of a study


@dataclass(frozen=True)
class Computing:
    """What computes the cells of the study in ``folder``; it keeps the images over many cells."""

    folder: Path
    splits: Splits

    def compute(self, cell: Cell, rate: float, attempt: int) -> None:
        """Trains a cell and writes its result, which its settings alone determine: a cell that was stopped goes on from its last
        checkpoint to the same bits. A training that diverged is a result too.

        Args:
            rate: the learning rate.
            attempt: the number of this attempt, from 1.

        Raises the classes of `vitrail.errors`.
        """
        run, started = self._run(cell, rate), time.perf_counter()
        place = self.folder / RUNS / cell.key

        def facts() -> dict[str, Any]:
            seconds, peak = time.perf_counter() - started, peak_memory()
            return {"seconds": seconds, "peak_bytes": peak, "attempts": attempt, **describe_place()}

        def end(prepared: Prepared) -> dict[str, float]:
            write_result(self.folder, replace(self._judge(cell, prepared), **facts()))
            return {}

        try:
            train(run, out=place, data=self.watched, quiet=True, end=end)
        except DivergedError as error:
            write_result(self.folder, replace(begin_result(cell, run), state="diverged", error=error.what, **facts()))
        shutil.rmtree(place, ignore_errors=True)

    @cached_property
    def watched(self) -> Splits:
        """What a training sees: without the test images, and with `SAMPLE` validation images for the curve."""
        assert self.splits.val is not None, "a study has all splits"
        return replace(self.splits, val=choose_sample(self.splits.val, seed=0), test=None)

    def _run(self, cell: Cell, rate: float) -> Run:
        assert self.watched.val is not None, "a study has all splits"
        save = replace(cell.run.save, train_images=len(self.watched.val))  # the curve watches as many of either
        return replace(cell.run, optim=replace(cell.run.optim, lr=rate), save=save)

    def _judge(self, cell: Cell, prepared: Prepared) -> CellResult:
        training, built = prepared.training, prepared.built
        run, train = training.run, prepared.data.train
        assert self.splits.test is not None and self.splits.val is not None, "a study has all splits"
        parts = {"validation": self.splits.val, "train": choose_sample(train, seed=run.seed)}
        if cell.kind == "final":
            parts["test"] = self.splits.test
        judged = prepared.judge(parts)
        figures: dict[str, Any] = {name: summarise(judgement) for name, judgement in judged.items()}
        right = judged["test" if cell.kind == "final" else "validation"].metric.samples()
        assert right is not None, "a classifier is right or wrong"
        images = training.steps * run.data.batch
        return replace(
            begin_result(cell, run),
            limit=len(train),
            steps=training.steps,
            images=images,
            right=right > 0.5,
            curve=read_curve(training.folder),
            flops=training.operations or 0.0,
            macs6=6.0 * (built.multiply_adds or 0) * images,
            parameters=built.parameters,
            findings=measure_findings(cell.measure, built.model, self.splits.test, run.seed),
            **figures,
        )


def begin_result(cell: Cell, run: Run) -> CellResult:
    """The result of a cell before anything is known but what was asked."""
    settings = {**settings_of(cell.run), RATE: run.optim.lr}
    how: dict[str, Any] = {"settings": settings, "seed": run.seed, "rate": run.optim.lr}
    how |= {"limit": settings[LIMIT] or 0, "steps": run.schedule.steps or 0}
    return CellResult(key=cell.key, kind=cell.kind, state="done", **how)


def choose_sample(source: Source, *, seed: int) -> Source:
    """`SAMPLE` of the images, stratified; of training images those that its curve watches."""
    return take_part(source, count=min(SAMPLE, len(source)), seed=seed)


def summarise(judgement: EvaluationResult) -> dict[str, float]:
    figures = judgement.metric.summarize()
    return {"accuracy": figures["top1"], "nll": figures["nll"]}


def read_curve(folder: RunFolder) -> tuple[dict[str, float], ...]:
    """What the evaluations during a training recorded."""
    names = {
        "validation_accuracy": "val_top1",
        "validation_nll": "val_nll",
        "train_accuracy": "train_top1",
    }
    return tuple(
        {"step": record["step"], **{name: record[column] for name, column in names.items()}}
        for record in folder.metrics()
        if "val_top1" in record
    )


@cache
def describe_place() -> dict[str, Any]:
    """The machine and the version of the code, which are recorded with a result and never decide it."""
    return {
        "host": socket.gethostname(),
        "device": describe(),
        "version": importlib.metadata.version("vitrail"),
        "commit": find_commit(),
    }


def find_commit() -> str:
    """The commit of this source, with ``+`` where files were changed since; empty outside of a repository of its own."""
    here = Path(__file__).parents[2]

    def ask(*words: str) -> str:
        asked = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
        return asked.stdout.strip() if asked.returncode == 0 else ""

    try:
        if not ask("ls-files", "--", "__init__.py"):
            return ""
        return ask("rev-parse", "--short", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except OSError:  # there is no git
        return ""
