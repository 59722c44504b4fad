"""The provenance of a run: the origin of its data, its weights and its figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.data.sources.source import Splits, fingerprint, list_splits
from vitrail.errors import DataError
from vitrail.files import dump_json, replace_file
from vitrail.reports.wording import plural
from vitrail.runs.folder import RunFolder
from vitrail.runs.history import join_records, speed
from vitrail.runtime.machine import describe, versions
from vitrail.training.data import RunData
from vitrail.training.network import Kept


@dataclass(frozen=True)
class Ending:
    """How a run came to its end: the command that started it and the seconds it took; ``quiet`` shows no progress."""

    command: str
    seconds: float
    quiet: bool


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run: its report, the figures of its model, their summary, and a warning."""

    report: Path
    figures: dict[str, float]
    summary: str
    warning: str | None = None


def record_split(folder: RunFolder, splits: Splits) -> None:
    """Writes the fingerprints of the images, and the keys of those that were held out, to ``split.json``.

    Raises `DataError` where the run began with other images: their order, and so every batch, would be another one.
    """
    path = folder.path / "split.json"
    held_out = [str(key) for key in splits.val.keys] if splits.held_out and splits.val is not None else []
    images = {name: fingerprint(part) for name, part in list_splits(splits).items() if name != "test"}
    before = json.loads(path.read_text()).get("images", images) if path.exists() else images
    if before != images:
        raise DataError(
            f"the images for {' and '.join(images)} are not those with which the run {folder.path} began",
            "put them back as they were, or start a new run with another --out (--init takes this one's weights)",
        )
    replace_file(path, dump_json({"seed": splits.seed, "images": images, "held_out": held_out}))


def provenance(run: Run, steps: int, splits: Splits) -> dict[str, Any]:
    """Where the weights come from: data, split, recipe, versions."""
    held_out = fingerprint(splits.val) if splits.val is not None else None
    return {
        "data": run.data.source,
        "layout": splits.layout,
        "split": {"held_out": splits.held_out, "seed": run.seed, "validation": run.data.validation, "sha256": held_out},
        "recipe": run.recipe,
        "init": run.model.init,
        "objective": run.objective.name,
        "teacher": run.objective.teacher,
        "tokenizer": run.objective.tokenizer,
        "steps": steps,
        "date": date.today().isoformat(),
        "versions": versions(),
    }


def run_facts(run: Run, steps: int, folder: RunFolder, kept: Kept, data: RunData, ending: Ending) -> dict[str, Any]:
    """The fields of `RunFacts`: what the report and the card of every run say."""
    today = date.today().isoformat()
    return {
        "title": folder.path.name,
        "command": ending.command,
        "config": plain(run),
        "data": run.data.source,
        "layout": data.splits.layout,
        "images": {name: len(part) for name, part in list_splits(data.splits).items()},
        "model": kept.about,
        "parameters": kept.parameters,
        "multiply_adds": kept.multiply_adds,
        "image_size": kept.preprocessing.size,
        "preprocessing": kept.preprocessing.to_dict(),
        "recipe": run.recipe,
        "recipe_settings": plain(run.optim) | plain(run.schedule),
        "base": run.model.init or "",
        "records": join_records(folder),
        "seconds": ending.seconds,
        "images_per_second": speed(folder),
        "machine": describe(),
        "versions": versions(),
        "date": today,
        "provenance": versions() | {"seed": run.seed, "steps": steps, "date": today},
        "location": str(folder.path),
        "notes": note_unread(len(data.bad)),
    }


def note_unread(count: int) -> list[str]:
    """What a report notes of images that were skipped."""
    if not count:
        return []
    return [
        f"{plural(count, 'image')} could not be read; {'they are' if count > 1 else 'it is'} listed in bad_images.csv"
    ]
