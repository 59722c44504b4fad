"""The provenance of a run: the origin of its data, its weights and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.data.sources.source import Splits, fingerprint, list_splits
from vitrail.errors import CheckpointError, DataError
from vitrail.files import read_sealed, write_sealed
from vitrail.reports.wording import plural
from vitrail.runs.checkpoint import Checkpoint
from vitrail.runs.folder import RunFolder
from vitrail.runs.history import join_records, speed
from vitrail.runtime.machine import describe, versions
from vitrail.runtime.progress import Say
from vitrail.training.data import RunData
from vitrail.training.network import Kept


@dataclass(frozen=True)
class Ending:
    """How a run came to its end: the command that started it and the seconds it took; ``quiet`` shows no progress.

    ``operations`` are the floating-point operations of all steps, where they are known. ``device_hours`` is the time that steps
    and evaluations took on all devices together, before a stop and, where they were repeated, after it.
    """

    command: str
    seconds: float
    quiet: bool
    operations: float | None
    device_hours: float


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run: its report, the figures of its model, their summary, and a warning."""

    report: Path
    figures: dict[str, float]
    summary: str
    warning: str | None = None


def record_split(
    folder: RunFolder, splits: Splits, images: Mapping[str, str], saved: Checkpoint | None, say: Say
) -> None:
    """Writes the fingerprints of the images, and the keys of those that were held out, to ``split.json``.

    A damaged file is written again if the images are those of the checkpoint.

    Args:
        images: the fingerprint of each split.
        saved: the checkpoint to resume from, which has the fingerprints too.

    Raises:
        DataError: the run began with other images: their order, and so every batch, would be another one.
        CheckpointError: the file is damaged, and the checkpoint, of an earlier version, does not have them.
    """
    path = folder.path / "split.json"
    held_out = [str(key) for key in splits.val.keys] if splits.held_out and splits.val is not None else []
    stored = read_sealed(path)
    before = (stored or {}).get("images", images)
    if stored is None and path.exists() and saved is not None:
        before = saved.state.get("images")
        if before is None:
            what = f"{path} is damaged, and whether the images are still those of the run is unknown"
            raise CheckpointError(what, "start a new run with another --out (--init takes this one's weights)")
        say(f"warning  {path.name} was damaged; it is written again from the checkpoint and the seed")
    if before != images:
        raise DataError(
            f"the images for {' and '.join(images)} are not those with which the run {folder.path} began",
            "put them back as they were, or start a new run with another --out (--init takes this one's weights)",
        )
    write_sealed(path, {"seed": splits.seed, "images": dict(images), "held_out": held_out})


def provenance(run: Run, steps: int, splits: Splits, ending: Ending) -> dict[str, Any]:
    """Where the weights come from: data, split, recipe, compute, versions."""
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
        "operations": ending.operations,
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
        "operations": ending.operations,
        "device_hours": ending.device_hours,
        "seconds": ending.seconds,
        "images_per_second": speed(folder),
        "machine": describe(),
        "versions": versions(),
        "date": today,
        "provenance": versions() | {"seed": run.seed, "steps": steps, "date": today},
        "location": str(folder.path),
        "notes": [*note_unread(len(data.bad)), *folder.find_damage()],
    }


def note_unread(count: int) -> list[str]:
    """What a report notes of images that were skipped."""
    if not count:
        return []
    return [
        f"{plural(count, 'image')} could not be read; {'they are' if count > 1 else 'it is'} listed in bad_images.csv"
    ]
