"""`vitrail train --dry-run`, and `vitrail pretrain`'s: what a run would do, and from a few measured steps what it would take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from vitrail.analysis.cost import find_largest_batch
from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.runs.folder import RunFolder
from vitrail.runtime.machine import describe, peak_memory
from vitrail.runtime.process import keep_generators, use_threads
from vitrail.runtime.progress import LogFunction, duration
from vitrail.text import large, plural
from vitrail.training.cost import measure_cost, run_operations
from vitrail.training.network import BuiltModel
from vitrail.training.prepare import prepare
from vitrail.training.state import Training

GROUPS = ("model", "data", "objective", "optim", "augment", "save")  # what is compared with the defaults of its class
SAMPLE = 512  # small images that are decoded, in place of all of them
MAX_BATCH = 1 << 16  # where the search for the largest micro-batch ends
READING_IMAGES, READING_SECONDS = 64, 1.0  # of the measurement of reading


def dry_run(run: Run, *, data: Any = None, log: LogFunction) -> None:
    """Calls ``log`` with each line of the plan of ``run``, then of the measured cost of its steps. Leaves nothing on the disk."""
    with tempfile.TemporaryDirectory() as temporary, closing(RunFolder(Path(temporary) / "run")) as folder:
        folder.open()
        with keep_generators():
            prepared = prepare(run, folder, data=data, log=log, sample=SAMPLE)
            _describe(prepared.training, prepared.built, log)
            with use_threads(prepared.training.run.compute.threads or 1):
                _measure(prepared.training, log)


def _describe(training: Training, built: BuiltModel, log: LogFunction) -> None:
    sums = f", {built.multiply_adds / 1e9:.3f} G multiply-adds an image" if built.multiply_adds is not None else ""
    log(f"machine  {describe()}")
    log(f"model    {built.parameters:,} parameters{sums}")
    if (operations := run_operations(training)) is not None:
        log(f"cost     {large(operations, 'FLOP')} in all steps")
    epochs = f"{training.steps / training.steps_an_epoch:.3g} epochs"
    log(f"length   {plural(training.steps, 'step')} of {training.run.data.batch} images = {epochs}")
    recipe = training.run.recipe
    log(f"settings that are not the defaults (all of them: vitrail settings --recipe {recipe}):")
    defaults = plain(replace(training.run, **{group: type(getattr(training.run, group))() for group in GROUPS}))
    for line in yaml.safe_dump(
        _drop_equal(plain(training.run), defaults), sort_keys=False, default_flow_style=None
    ).splitlines():
        log(f"  {line}")


def _drop_equal(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are not as in ``defaults``, without groups that have none."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and isinstance(defaults.get(name), Mapping):
            value = _drop_equal(value, defaults[name])
            if not value:
                continue
        elif value == defaults.get(name, value) and name in defaults:
            continue
        kept[name] = value
    return kept


def _measure(training: Training, log: LogFunction) -> None:
    cost = measure_cost(training)
    run = training.run  # if a step ran out of memory, its micro-batch is smaller than before
    waiting = _measure_reading(training)
    evaluations = min(run.save.evaluations, training.steps)
    total = training.steps * cost.step + evaluations * cost.evaluation
    bottleneck = "the data" if waiting > cost.step - waiting else "the model"
    largest = _find_largest_batch(training)
    memory = torch.cuda.max_memory_allocated() if training.device.type == "cuda" else peak_memory()
    log(f"speed    {cost.step * 1000:.1f} ms a step, {run.data.batch / cost.step:.3g} images/s")
    log(
        f"takes    about {duration(total)}, {plural(evaluations, 'evaluation')} of {duration(cost.evaluation)} included"
    )
    log(f"memory   {memory / 2**30:.2f} GiB so far")
    log(f"batch    {run.data.batch} in micro-steps of {run.data.micro_batch}; largest micro-batch that ran: {largest}")
    log(f"slowest  {bottleneck}: reading a batch alone takes {waiting * 1000:.1f} ms")


def _measure_reading(training: Training) -> float:
    """Returns the seconds that reading one batch takes when nothing else runs, from smaller batches."""
    images = min(READING_IMAGES, training.run.data.batch)
    count = 0
    with closing(replace(training.batches, batch=images)(0, training.steps)) as batches:
        next(batches)
        started = time.perf_counter()
        for batch in batches:
            count += len(batch)
            if count >= 8 * training.run.data.batch or time.perf_counter() - started > READING_SECONDS:
                break
        elapsed = time.perf_counter() - started
    return elapsed * training.run.data.batch * training.objective.views / max(count, 1)


def _find_largest_batch(training: Training) -> str:
    """Returns the largest micro-batch that ran on the GPU; on a CPU it follows from the memory."""
    if training.device.type != "cuda":
        return f"{training.run.data.micro_batch} (by the memory rule for a CPU)"
    with closing(training.batches(0, training.steps)) as batches:
        inputs = training.inputs(next(batches).to(training.device))

    def step(size: int) -> None:
        if size <= (training.run.data.micro_batch or len(inputs[0])):  # ran when the step was measured
            return
        rows = torch.arange(size, device=training.device) % len(inputs[0])
        try:
            with training.autocast:
                training.compute_model(*(tensor[rows] for tensor in inputs))[0].backward()
        finally:
            training.compute_model.zero_grad(set_to_none=True)

    return str(find_largest_batch(step, MAX_BATCH))
