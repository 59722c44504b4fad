"""`vitrail train --dry-run`, and `vitrail pretrain`'s: what a run would do, and from a few measured steps what it would take."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import yaml

from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe, peak_memory
from vitrail.runtime.process import keep_generators, use_threads
from vitrail.runtime.progress import duration
from vitrail.training.network import Kept
from vitrail.training.prepare import prepare
from vitrail.training.state import Training
from vitrail.training.time_budget import measure_evaluation, measure_step


def dry_run(run: Run, *, data: Any = None) -> str:
    """The plan of ``run`` as text. Nothing is left on the disk, and no weights are kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.open()
        try:
            lines: list[str] = []
            with keep_generators():
                prepared = prepare(run, folder, data=data, say=lines.append)
                with use_threads(prepared.training.run.compute.threads or 1):
                    measured = _measure(prepared.training, prepared.kept)
            settings = yaml.safe_dump(plain(prepared.training.run), sort_keys=False)
            return "\n".join([*lines, *measured, "", settings])
        finally:
            folder.close()


def _measure(training: Training, kept: Kept) -> list[str]:
    step = measure_step(training)
    run = training.run  # if a step ran out of memory, its micro-batch is smaller than before
    waiting = _measure_reading(training)
    evaluation = measure_evaluation(training)
    total = training.steps * step + run.save.evaluations * evaluation
    bottleneck = "the data" if waiting > step - waiting else "the model"
    largest = _find_largest_batch(training)
    sums = f", {kept.multiply_adds / 1e9:.3f} G multiply-adds an image" if kept.multiply_adds is not None else ""
    return [
        f"machine  {describe()}",
        f"model    {kept.parameters:,} parameters{sums}",
        f"length   {training.steps:,} steps, {training.steps / training.steps_an_epoch:.3g} epochs",
        f"speed    {step * 1000:.1f} ms a step, {run.data.batch / step:.0f} images/s",
        f"takes    about {duration(total)}, {run.save.evaluations} evaluations of {duration(evaluation)} included",
        f"memory   {_read_memory(training) / 2**30:.2f} GiB so far",
        f"batch    {run.data.batch} in micro-steps of {run.data.micro_batch}; largest micro-batch that ran: {largest}",
        f"slowest  {bottleneck}: reading a batch alone takes {waiting * 1000:.1f} ms",
    ]


def _measure_reading(training: Training, steps: int = 8) -> float:
    """Seconds that reading one batch takes when nothing else runs."""
    with closing(training.batches(0, training.steps)) as batches:
        next(batches)
        started = time.perf_counter()
        count = sum(1 for _ in zip(range(min(steps, max(training.steps - 1, 1))), batches))
        elapsed = time.perf_counter() - started
    return elapsed / max(count, 1)


def _find_largest_batch(training: Training) -> str:
    """Doubles the micro-batch on the GPU until it no longer fits; on a CPU it follows from the memory."""
    if training.device.type != "cuda":
        return f"{training.run.data.micro_batch} (by the memory rule for a CPU)"
    with closing(training.batches(0, training.steps)) as batches:
        inputs = training.inputs(next(batches).to(training.device))
    images = len(inputs[0])
    size = fits = training.run.data.micro_batch or images  # it ran when the step was measured
    while size < 1 << 16:
        size *= 2
        rows = torch.arange(size, device=training.device) % images
        try:
            with training.autocast:
                training.working(*(tensor[rows] for tensor in inputs))[0].backward()
            fits = size
        except torch.OutOfMemoryError:
            break
        finally:
            training.working.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
    return str(fits)


def _read_memory(training: Training) -> int:
    if training.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return peak_memory()
