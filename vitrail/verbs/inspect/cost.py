"""`vitrail inspect --cost` of several models: speed, memory and largest batch over image sizes, as one page and as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import torch

from vitrail.analysis.cost import bound_bytes, measure_memory, measure_speeds, run_largest_batch
from vitrail.analysis.equivariance import Model, Pair
from vitrail.errors import ConfigError
from vitrail.files import dump_json, make_folder, replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.models import MODELS, cost_of, create_backbone
from vitrail.models.config import changed
from vitrail.reports.inspection.comparison import MAX_MODELS, ComparedCost, Comparison, spell_size, write_comparison
from vitrail.runtime.device import find_device, in_precision
from vitrail.runtime.machine import available_memory, describe, versions
from vitrail.runtime.progress import LogFunction, ProgressBar, to_stderr
from vitrail.tables import open_table
from vitrail.tasks import Task
from vitrail.weights.onnx import ExportedBackbone

SIZES = ((64, 64), (128, 128), (224, 224), (384, 384), (512, 512))  # pixels
REPEATS = 5  # timed passes of each model at each size
BATCH, BATCH_ON_CPU = 64, 8
SPARE = 0.5  # of the available memory that a pass on a CPU may be expected to need


def compare_costs(
    models: Sequence[str | Path | Task],
    out: Path,
    *,
    sizes: Sequence[Pair] = SIZES,
    batch: int | None = None,
    options: InferenceOptions = InferenceOptions(),
    command: str = "",
    log: LogFunction = to_stderr,
) -> tuple[Path, dict[str, Any]]:
    """Measures all models at all sizes, and writes ``report.html``, ``numbers.json``, ``cost.csv`` and charts."""
    _check(models, sizes, batch)
    device = find_device(options.device)
    loaded = {
        f"{model.config.about} ({number})" if isinstance(model, Task) else str(model): _load(model, options, log)
        for number, model in enumerate(models, 1)
    }
    counted, notes = _count(loaded, sizes)
    make_folder(out)
    if batch is None:
        batch = BATCH_ON_CPU if device.type == "cpu" else BATCH
    with (
        ProgressBar("measuring", len(counted) * (REPEATS + 2), quiet=options.quiet) as show,
        in_precision(options.precision, device),
    ):
        limited = _limit(loaded, counted, device, show, notes)
        costs = _measure(loaded, limited, device, batch, show)
    what = {"precision": options.precision, "device": device.type, "notes": notes}
    facts = {"command": command, "machine": describe(), "versions": versions(), "date": date.today().isoformat()}
    comparison = Comparison(costs=costs, **what, **facts)
    rows = [cost.to_row() for cost in comparison.costs]
    figures = {**what, "costs": rows}
    replace_file(out / "numbers.json", dump_json(figures))
    with open_table(out / "cost.csv") as write:
        for row in rows:
            write(row)
    return write_comparison(out, comparison), figures


def _check(models: Sequence[Any], sizes: Sequence[Pair], batch: int | None) -> None:
    if not 1 <= len(models) <= MAX_MODELS:
        raise ConfigError(f"{len(models)} models cannot be compared", f"give 1 to {MAX_MODELS}")
    for what, given in (("model", list(map(str, models))), ("size", list(sizes))):
        twice = [each for at, each in enumerate(given) if each in given[:at]]
        if twice:
            raise ConfigError(f"the {what} {twice[0]} is given twice", "give each once")
    if not sizes or min(min(size) for size in sizes) < 1:
        raise ConfigError(f"sizes are {list(sizes)}", "give pixels, such as --sizes 64,128,224")
    if batch is not None and batch < 1:
        raise ConfigError(f"batch is {batch}", "give 1 or more")


def _load(model: str | Path | Task, options: InferenceOptions, log: LogFunction) -> Model:
    if isinstance(model, str) and model in MODELS and not Path(model).exists():
        return create_backbone(model).eval()  # random weights take the same time and memory
    task = options.load(model, log)
    if isinstance(task.backbone, ExportedBackbone):
        what = f"{model} is an exported graph, whose operations and memory are those of its runtime"
        raise ConfigError(what, "give the model that it was exported from")
    return task.cpu()


def _count(models: Mapping[str, Model], sizes: Sequence[Pair]) -> tuple[list[ComparedCost], list[str]]:
    """Returns what is known without running a model, and notes on what is not supported."""
    costs, notes = [], []
    for size in sizes:
        for name, model in models.items():
            try:
                counted = cost_of(changed(model.config, image_size=size))
            except ConfigError as error:
                notes.append(f"{name} was left out at {spell_size(size)} pixels: {error.what}.")
                continue
            named = {"tokens": counted.tokens, "parameters": counted.parameters, "multiply_adds": counted.multiply_adds}
            costs.append(ComparedCost(model=name, size=size, **named))
    if not costs:
        raise ConfigError("none of the models supports any of the sizes", notes[0])
    return costs, notes


def _limit(
    models: Mapping[str, Model],
    costs: Sequence[ComparedCost],
    device: torch.device,
    show: ProgressBar,
    notes: list[str],
) -> list[ComparedCost]:
    """Adds memory and the largest batch, one model on the device at a time; leaves out what does not fit, with a note."""
    limited = []
    for done, cost in enumerate(costs, 1):
        show.update(done, model=cost.model, size=spell_size(cost.size))
        model = models[cost.model].to(device)
        known = _measure_limit(model, cost, device)
        models[cost.model].to("cpu")
        if known.largest_batch == 0:
            left_out = f"{cost.model} was left out at {spell_size(cost.size)} pixels"
            notes.append(f"{left_out}: one image may not fit in memory.")
        else:
            limited.append(known)
    if not limited:
        raise ConfigError("none of the models fits in memory at any of the sizes", "give smaller sizes or models")
    return limited


def _measure_limit(model: Model, cost: ComparedCost, device: torch.device) -> ComparedCost:
    """Measures the largest batch on CUDA. On a CPU, where running out of memory ends processes, it is predicted, and nothing
    is run that may need more than `SPARE` of the available memory.
    """
    if device.type == "cuda":
        largest = run_largest_batch(model, cost.size)
        each = measure_memory(model, cost.size).each if largest > 1 else None
        return replace(cost, bytes_per_image=each, largest_batch=largest, largest_batch_is="measured")
    free = available_memory() if device.type == "cpu" else None
    if free is not None and bound_bytes(model.config, cost.size) > SPARE * free:
        return replace(cost, largest_batch=0, largest_batch_is="predicted")
    memory = measure_memory(model, cost.size)
    if free is None:
        return replace(cost, bytes_per_image=memory.each)
    predicted = memory.largest_batch(free)
    return replace(cost, bytes_per_image=memory.each, largest_batch=predicted, largest_batch_is="predicted")


def _measure(
    models: Mapping[str, Model], costs: Sequence[ComparedCost], device: torch.device, batch: int, show: ProgressBar
) -> list[ComparedCost]:
    """Adds images per second, size by size."""
    measured, passes = [], count(len(costs) + 1)
    for size in dict.fromkeys(cost.size for cost in costs):
        here = [cost for cost in costs if cost.size == size]
        # half of what fits, as all models are on the device
        batches = {cost.model: max(min(batch, (cost.largest_batch or 2 * batch) // 2), 1) for cost in here}
        speeds = measure_speeds(
            {name: models[name].to(device) for name in batches},
            size,
            batches,
            repeats=REPEATS,
            on_pass=lambda size=size: show.update(next(passes), size=spell_size(size)),
        )
        measured += [replace(cost, speed=speeds[cost.model]) for cost in here]
    return measured
