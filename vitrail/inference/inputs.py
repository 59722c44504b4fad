"""Which images a verb is given: files, folders and tables by name, and the split of data to judge."""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.data.sources.folders import EXTENSIONS
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, choose_split, fingerprint
from vitrail.errors import DataError, nearest
from vitrail.runtime.progress import Say
from vitrail.tasks.task import Task

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".npy", ".npz")


def find_inputs(inputs: Sequence[str]) -> Source:
    """A source of everything that ``inputs`` name: files, folders, globs, one manifest or array file, ``-`` for paths on stdin.

    Raises `DataError` for a path that is not there or names that match nothing.
    """
    if len(inputs) == 1 and Path(inputs[0]).suffix.lower() in TABLE_SUFFIXES:
        splits = open_data(inputs[0], labelled=False, validation=0)
        return choose_split(splits)[1]
    paths = [path for each in inputs for path in _expand(each)]
    found = open_data(paths, labelled=False, validation=0).train
    assert found is not None
    return found


def _expand(name: str) -> list[Path]:
    if name == "-":
        return [Path(line.strip()) for line in sys.stdin if line.strip()]
    path = Path(name)
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.suffix[1:].lower() in EXTENSIONS and each.is_file())
        if not inside:
            raise DataError(f"the folder {name} holds no images", "name files, or a folder that holds some")
        return inside
    if any(mark in name for mark in "*?[") and not path.exists():
        found = sorted(each for each in map(Path, glob.glob(name, recursive=True)) if each.is_file())
        if not found:
            raise DataError(f"nothing matches {name!r}", "quote the pattern, and check the folder before it")
        return found
    if not path.exists():
        beside = [each.name for each in path.absolute().parent.iterdir()] if path.absolute().parent.is_dir() else []
        raise DataError(
            f"there is no image {path.absolute()}", nearest(path.name, beside) if beside else "check the path"
        )
    return [path]


def split_to_judge(model: Task, data: Any, split: str | None, say: Say, *, labelled: bool = True) -> tuple[str, Source]:
    """The split to judge, carved as it was for the training where the data have none of their own."""
    trained = model.provenance.get("split", {})
    # data without splits of their own are carved as for the training, or judged whole if they are not those of a training
    validation = trained.get("validation", 0.0) if trained.get("held_out") else 0.0
    splits = open_data(
        data,
        seed=trained.get("seed", 0),
        validation=validation,
        classes=model.classes or None,
        channels=model.config.in_channels,
        labelled=labelled,
    )
    name, source = choose_split(splits, split)
    held_out = splits.held_out and name == "val"
    say(f"split    {'held out of train when the model was trained' if held_out else name}: {len(source):,} images")
    if held_out and trained.get("sha256") != fingerprint(source):
        say("warning  this held-out part is not the one the model was trained without; the figures may flatter it")
    return name, source
