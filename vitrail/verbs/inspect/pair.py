"""`vitrail inspect --against`: two models side by side, as one page and as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.errors import DataError
from vitrail.files import dump_json, make_folder, replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.inspection.pair import pair_numbers, write_pair
from vitrail.runtime.progress import Say, to_stderr
from vitrail.tasks import Task
from vitrail.verbs.inspect.measurements import (
    MOST,
    measure_filters,
    measure_heads,
    measure_positions,
    name_of,
    open_images,
    to_inspection,
)


def inspect_pair(
    models: tuple[str | Path | Task, str | Path | Task],
    out: Path,
    data: Any = None,
    *,
    most: int = MOST,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    command: str = "",
    say: Say = to_stderr,
) -> tuple[Path, dict[str, Any]]:
    """Measures heads, positions and filters of two models, and writes ``report.html``, ``numbers.json`` and the pictures into
    ``out``.
    """
    tasks = [options.load(model, classes, say) for model in models]
    make_folder(out)
    one, other = (
        _measure(task, title, out, data, most, options, command) for task, title in zip(tasks, _titles(models))
    )
    pair = replace(one, notes=_write_notes((one, other), tasks, data)), other
    figures = pair_numbers(pair)
    replace_file(out / "numbers.json", dump_json(figures))
    return write_pair(out, pair), figures


def _titles(models: Sequence[str | Path | Task]) -> list[str]:
    """Returns a name of each: the last part of a path, the whole where both end alike, and a number where that is not enough."""
    names = [name_of(model) for model in models]
    if len(set(names)) < len(names):
        names = [name if isinstance(model, Task) else str(model) for name, model in zip(names, models)]
    return names if len(set(names)) == len(names) else [f"{name} ({place})" for place, name in enumerate(names, 1)]


def _measure(
    task: Task, title: str, out: Path, data: Any, most: int, options: InferenceOptions, command: str
) -> Inspection:
    """Measures one model. Images are read only if it has attention."""
    results: dict[str, Any] = {"filters": measure_filters(task), "positions": measure_positions(task)}
    if data is not None and task.attention_grids(task.preprocessing.size):
        results["data"], source = open_images(task, data, most)
        bad_list = out / "bad_images.csv"
        results["heads"], results["images"] = measure_heads(task, source, options, options.record_bad(source, bad_list))
        if not results["images"]:
            raise DataError("none of the images could be read", f"the reasons are in {bad_list}")
    return to_inspection(task, title, results, command)


def _write_notes(pair: tuple[Inspection, Inspection], tasks: Sequence[Task], data: Any) -> list[str]:
    """Notes on what cannot be compared, and why."""
    notes = []
    if data is None:
        notes.append("No images were given, so attention could not be measured; --data adds it.")
    for each, task in zip(pair, tasks):
        if not task.attention_grids(task.preprocessing.size):
            what = "it has no heads to compare, and the findings about them cannot be tested on it"
            notes.append(f"{each.title} has no attention: {what}.")
    if len({task.config.about for task in tasks}) > 1:
        notes.append(f"The models are of different kinds: {' and '.join(task.config.about for task in tasks)}.")
    if len({each.image_size for each in pair}) > 1:
        sizes = (f"{' × '.join(map(str, each.image_size))} ({each.title})" for each in pair)
        notes.append(f"The models take images of different sizes: {', '.join(sizes)} pixels.")
    return notes
