"""`vitrail train --dry-run`, and `vitrail pretrain`'s: what a run would do, and from a few measured steps what it would take."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.models import cost_of
from vitrail.models.tokenizer import Tokenizer
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe, peak_memory
from vitrail.runtime.process import keep_generators, use_threads
from vitrail.runtime.progress import Say, duration
from vitrail.training.goals.classifier import prepare
from vitrail.training.goals.encoder import prepare_pretraining
from vitrail.training.state import Training
from vitrail.training.time_budget import fix_evaluations, fix_length, measure_evaluation, measure_step


def dry_run(run: Run, *, data: Any = None) -> str:
    """The plan of ``run`` in words. Nothing is left on the disk, and no weights are kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.open()
        try:
            lines: list[str] = []
            with keep_generators():
                training, model = _prepared(run, folder, data, lines.append)
                with use_threads(training.run.compute.threads or 1):
                    fix_length(training, lines.append)
                    fix_evaluations(training)
                    lines += _measured(training, model)
            return "\n".join([*lines, "", yaml.safe_dump(plain(training.run), sort_keys=False)])
        finally:
            folder.close()


def _prepared(run: Run, folder: RunFolder, data: Any, say: Say) -> tuple[Training, str]:
    """The training, and its network in words."""
    if run.objective.name == "supervised":
        prepared = prepare(run, folder, data=data, say=say)
        training, kept = prepared.training, prepared.classifier
    else:
        pretraining = prepare_pretraining(run, folder, data=data, say=say)
        training, kept = pretraining.training, pretraining.kept
    if isinstance(kept, Tokenizer):
        return training, f"model    {sum(each.numel() for each in kept.parameters()):,} parameters"
    cost = cost_of(kept.config)
    words = f"model    {cost.parameters:,} parameters, {cost.multiply_adds / 1e9:.3f} G multiply-adds an image"
    return training, words


def _measured(training: Training, model: str) -> list[str]:
    run = training.run
    step = measure_step(training)
    waiting = _seconds_for_data(training)
    evaluation = measure_evaluation(training)
    total = training.steps * step + run.save.evaluations * evaluation
    bottleneck = "the data" if waiting > step - waiting else "the model"
    largest = _largest_batch(training)
    return [
        f"machine  {describe()}",
        model,
        f"length   {training.steps:,} steps, {training.steps / training.steps_an_epoch:.3g} epochs",
        f"speed    {step * 1000:.1f} ms a step, {run.data.batch / step:.0f} images/s",
        f"takes    about {duration(total)}, {run.save.evaluations} evaluations of {duration(evaluation)} included",
        f"memory   {_memory(training) / 2**30:.2f} GiB so far",
        f"batch    {run.data.batch} in micro-steps of {run.data.micro_batch}; largest micro-batch that ran: {largest}",
        f"slowest  {bottleneck}: reading a batch alone takes {waiting * 1000:.1f} ms",
    ]


def _seconds_for_data(training: Training, steps: int = 8) -> float:
    """Seconds that reading one batch takes when nothing else runs."""
    batches = training.batches(0, training.steps)
    next(batches)
    started = time.perf_counter()
    count = sum(1 for _ in zip(range(min(steps, max(training.steps - 1, 1))), batches))
    elapsed = time.perf_counter() - started
    batches.close()
    return elapsed / max(count, 1)


def _largest_batch(training: Training) -> str:
    """Doubles the micro-batch on the GPU until it no longer fits; a CPU is told by its memory instead."""
    if training.device.type != "cuda":
        return f"{training.run.data.micro_batch} (by the memory rule for a CPU)"
    batches = training.batches(0, training.steps)
    inputs = training.feed(next(batches).to(training.device))
    batches.close()
    images = len(inputs[0])
    size = fits = training.run.data.micro_batch or images  # it ran when the step was measured
    while size < 1 << 16:
        size *= 2
        rows = torch.arange(size, device=training.device) % images
        try:
            with training.autocast:
                training.working(*(each[rows] for each in inputs))[0].backward()
            fits = size
        except torch.OutOfMemoryError:
            break
        finally:
            training.working.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
    return str(fits)


def _memory(training: Training) -> int:
    if training.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return peak_memory()
