"""`vitrail train --dry-run`, and `vitrail pretrain`'s: what a run would do, and from a few measured steps what it would take."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe, peak_memory
from vitrail.runtime.process import keep_generators, use_threads
from vitrail.runtime.progress import Say, duration
from vitrail.text import large
from vitrail.training.network import BuiltModel
from vitrail.training.operations import run_operations
from vitrail.training.prepare import prepare
from vitrail.training.state import Training
from vitrail.training.time_budget import measure_cost

SAMPLE = 512  # small images that are decoded, in place of all of them


def dry_run(run: Run, *, data: Any = None, say: Say) -> None:
    """Gives ``say`` the plan of ``run`` line by line, then what its steps take, which is measured within seconds.

    Nothing is left on the disk, and no weights are built.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.open()
        try:
            with keep_generators():
                prepared = prepare(run, folder, data=data, say=say, sample=SAMPLE)
                _describe(prepared.training, prepared.built, say)
                with use_threads(prepared.training.run.compute.threads or 1):
                    _measure(prepared.training, say)
        finally:
            folder.close()


def _describe(training: Training, built: BuiltModel, say: Say) -> None:
    sums = f", {built.multiply_adds / 1e9:.3f} G multiply-adds an image" if built.multiply_adds is not None else ""
    say(f"machine  {describe()}")
    say(f"model    {built.parameters:,} parameters{sums}")
    if (operations := run_operations(training)) is not None:
        say(f"flops    {large(operations, 'FLOP')} in all steps")
    say(f"length   {training.steps:,} steps, {training.steps / training.steps_an_epoch:.3g} epochs\n")
    say(yaml.safe_dump(plain(training.run), sort_keys=False))


def _measure(training: Training, say: Say) -> None:
    cost = measure_cost(training)
    run = training.run  # if a step ran out of memory, its micro-batch is smaller than before
    waiting = _measure_reading(training)
    total = training.steps * cost.step + run.save.evaluations * cost.evaluation
    bottleneck = "the data" if waiting > cost.step - waiting else "the model"
    largest = _find_largest_batch(training)
    say(f"speed    {cost.step * 1000:.1f} ms a step, {run.data.batch / cost.step:.3g} images/s")
    say(f"takes    about {duration(total)}, {run.save.evaluations} evaluations of {duration(cost.evaluation)} included")
    say(f"memory   {_read_memory(training) / 2**30:.2f} GiB so far")
    say(f"batch    {run.data.batch} in micro-steps of {run.data.micro_batch}; largest micro-batch that ran: {largest}")
    say(f"slowest  {bottleneck}: reading a batch alone takes {waiting * 1000:.1f} ms")


def _measure_reading(training: Training, *, images: int = 64, seconds: float = 1.0) -> float:
    """Seconds that reading one batch takes when nothing else runs; from smaller batches, for at most ``seconds``."""
    images = min(images, training.run.data.batch)
    count = 0
    with closing(replace(training.batches, batch=images)(0, training.steps)) as batches:
        next(batches)
        started = time.perf_counter()
        for batch in batches:
            count += len(batch)
            if count >= 8 * training.run.data.batch or time.perf_counter() - started > seconds:
                break
        elapsed = time.perf_counter() - started
    return elapsed * training.run.data.batch * training.objective.views / max(count, 1)


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
