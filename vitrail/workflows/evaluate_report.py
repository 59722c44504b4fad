"""The page of `vitrail evaluate --out`: what the report of a run shows, of any model and split."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.data.sources.source import Source
from vitrail.evaluation.judgement import Judgement
from vitrail.files import dump_json, replace_file
from vitrail.models import cost_of
from vitrail.reports.documents import write_report
from vitrail.reports.facts import JudgedRun
from vitrail.runtime.machine import describe, versions
from vitrail.tasks.task import Task
from vitrail.text import sentence


def write_evaluation(
    out: Path,
    model: str | Path | Task,
    data: Any,
    *,
    task: Task,
    source: Source,
    judgement: Judgement,
    command: str = "",
    notes: Sequence[str] = (),
) -> Path:
    """Writes ``report.html``, its charts and ``figures.json`` into ``out``; returns the path of the report.

    Args:
        model, data: as they were given, for the title.
        task: the model that was judged.
        source: the images of the split.
        notes: sentences on what the figures leave out.

    Raises:
        DiskError: ``out`` cannot be written.
    """
    counted = cost_of(task.config)
    facts = {
        "title": sentence(task.config.about) if isinstance(model, Task) else Path(str(model)).name,
        "command": command,
        "data": str(data) if isinstance(data, str | Path) else "",
        "images": {judgement.split: len(source)},
        "model": task.config.about,
        "parameters": counted.parameters,
        "multiply_adds": counted.multiply_adds,
        "image_size": task.preprocessing.size,
        "preprocessing": task.preprocessing.to_dict(),
        "operations": task.provenance.get("operations"),
        "machine": describe(),
        "versions": versions(),
        "date": date.today().isoformat(),
        "notes": notes,
    }
    splits = {judgement.split: source}
    judged = JudgedRun(facts=facts, model=task, splits=splits, source=source, judgement=judgement)
    replace_file(out / "figures.json", dump_json(judgement.to_dict()))
    return write_report(out, judged)
