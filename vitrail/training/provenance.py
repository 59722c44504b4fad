"""The end of a run: the model for use, its judgement, the report and the card."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.config.parse import plain
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Splits, fingerprint, list_splits
from vitrail.errors import DataError
from vitrail.files import dump_json, replace_file
from vitrail.reports.wording import plural
from vitrail.runs.folder import RunFolder
from vitrail.runs.history import joined_records, speed
from vitrail.runtime.machine import describe, versions
from vitrail.training.state import Training


def record_split(folder: RunFolder, splits: Splits) -> None:
    """Writes which images there are and which were held out, by key, to ``split.json``.

    Raises `DataError` where the run began with others: their order, and so every batch, would be another one.
    """
    path = folder.path / "split.json"
    held = [str(key) for key in splits.val.keys] if splits.held_out and splits.val is not None else []
    images = {name: fingerprint(part) for name, part in list_splits(splits).items() if name != "test"}
    before = json.loads(path.read_text()).get("images", images) if path.exists() else images
    if before != images:
        raise DataError(
            f"the images for {' and '.join(images)} are not those with which the run {folder.path} began",
            "put them back as they were, or start a new run with another --out (--init takes this one's weights)",
        )
    replace_file(path, dump_json({"seed": splits.seed, "images": images, "held_out": held}))


def provenance(training: Training, splits: Splits) -> dict[str, Any]:
    """Where the weights come from: data, split, recipe, versions."""
    run = training.run
    held = fingerprint(splits.val) if splits.val is not None else None
    return {
        "data": run.data.source,
        "layout": splits.layout,
        "split": {"held_out": splits.held_out, "seed": run.seed, "validation": run.data.validation, "sha256": held},
        "recipe": run.recipe,
        "init": run.model.init,
        "objective": run.objective.name,
        "teacher": run.objective.teacher,
        "tokenizer": run.objective.tokenizer,
        "steps": training.steps,
        "date": date.today().isoformat(),
        "versions": versions(),
    }


def run_facts(training: Training, splits: Splits, bad: BadImages, command: str, seconds: float) -> dict[str, Any]:
    """What any run has to say, of `RunFacts`, but for its network."""
    run = training.run
    return {
        "title": training.folder.path.name,
        "command": command,
        "config": plain(run),
        "data": run.data.source,
        "layout": splits.layout,
        "images": {name: len(part) for name, part in list_splits(splits).items()},
        "recipe": run.recipe,
        "records": joined_records(training.folder),
        "seconds": seconds,
        "images_per_second": speed(training.folder),
        "machine": describe(),
        "versions": versions(),
        "date": date.today().isoformat(),
        "notes": unread(len(bad)),
    }


def model_name(training: Training) -> str:
    """The network in a word: its name, or where its weights came from."""
    model = training.run.model
    return model.name or (Path(model.init).stem if model.init else "vit")


def unread(count: int) -> list[str]:
    """What a report notes of images that were passed over."""
    if not count:
        return []
    return [
        f"{plural(count, 'image')} could not be read; {'they are' if count > 1 else 'it is'} listed in bad_images.csv"
    ]
