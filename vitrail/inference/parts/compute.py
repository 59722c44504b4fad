"""Parts computed in this process: what is asked of each image, and the loop over the parts that nobody else has."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.checksums import sha256_of
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.inference.features import digest_of
from vitrail.inference.inputs import ImageInputs
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import answer_images, check_fast, embed_images
from vitrail.inference.parts.folder import MAX_PARTS, PartFolder, Plan, hash_names
from vitrail.inference.results import list_rows
from vitrail.runtime.progress import LogFunction
from vitrail.tables import open_table, save_array
from vitrail.tasks.task import Task, choose_decode_options

CONTINUE = "the parts that are done stay; the same command computes the others"
OFTEN = 32  # images after which progress is told
TYPES = {"text": str, "number": float, "flag": bool, "numbers": np.ndarray}
Pairs = Iterator[tuple[str, Any]]  # the key of every image with its result, None if it could not be read
# from missing parts to the number of images that were computed; the function is told how many more are done
Compute = Callable[[Sequence[int], Callable[[int], None]], int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is computed for each image: all that a process needs besides the images.

    Args:
        asked: ``top``, ``threshold`` and ``fast`` of `vitrail.predict`; nothing for features.
    """

    verb: Literal["predict", "embed"]
    model: str | Path | Task
    options: InferenceOptions = InferenceOptions()
    asked: Mapping[str, Any] = field(default_factory=dict)

    def load(self, log: LogFunction) -> Task:
        """Loads the model. Raises `ConfigError` if it does not support the options."""
        task = self.options.load(self.model, log)
        if self.verb == "predict":
            check_fast(self.asked["fast"], self.options)
            self.decode_options(task)
        return task

    def decode_options(self, task: Task) -> dict[str, Any]:
        return choose_decode_options(task, top=self.asked["top"], threshold=self.asked["threshold"])


def make_plan(job: Job, task: Task, source: Source, *, part_size: int, format: str) -> Plan:
    """The plan of a job for the images of ``source``; ``task`` is its model."""
    if (count := -(-len(source) // part_size)) > MAX_PARTS:
        remedy = f"give a larger --part-size: at most {MAX_PARTS:,}"
        raise ConfigError(f"{len(source):,} images are {count:,} parts", remedy)
    views = {} if job.options.tta is None else {"tta": job.options.tta}  # older folders have none
    described = json.dumps([digest_of(task), task.name, task.classes, task.describe()])
    return Plan(
        verb=job.verb,
        model=sha256_of(described.encode()),
        inputs=hash_names(source.keys),
        images=len(source),
        part_size=part_size,
        format=format,
        columns=list_columns(job, task),
        width=task.width if job.verb == "embed" else 0,
        settings={"precision": job.options.precision, "zoom": job.options.zoom, **views, **job.asked},
    )


def list_columns(job: Job, task: Task) -> dict[str, str]:
    """The columns of a table by name, with the kind of their values: those of the answer for a blank picture."""
    values = {"features": "numbers"}
    if job.verb == "predict":
        blank = np.zeros((*task.preprocessing.size, task.preprocessing.channels), np.uint8)
        asked = {name: job.asked[name] for name in ("top", "threshold")}
        row = task.predict(blank, **asked)[0].rows()[0]
        kinds = {bool: "flag", float: "number"}  # a picture without objects has None
        either = {name: "text" if name.startswith("label") else "number" for name in row}
        values = {name: kinds.get(type(value), either[name]) for name, value in row.items()}
    return {"path": "text", **values, "error": "text"}


def compute_parts(
    job: Job,
    task: Task,
    images: ImageInputs,
    folder: PartFolder,
    numbers: Sequence[int],
    on_images: Callable[[int], None] = lambda more: None,
) -> int:
    """Computes those of the parts that no other process has; returns how many images these are.

    Args:
        on_images: told now and then how many more images are done.
    """
    failed: dict[str, str] = {}
    done: list[int] = []
    # closed here after an error, and not by the garbage collector, which may run in a thread that is being joined
    with closing(_results_by_part(job, task, images.source, folder, numbers, failed)) as parts:
        for number, pairs in parts:
            _write(images, folder, number, pairs, failed, on_images)
            done.append(number)
    return folder.count_images(done)


def _results_by_part(
    job: Job, task: Task, source: Source, folder: PartFolder, numbers: Iterable[int], failed: dict[str, str]
) -> Generator[tuple[int, Pairs]]:
    """Every part that could be claimed, with the results of its images, which are to be taken before the next part.

    Parts are claimed as reading runs ahead, so the first images of a part are ready when the part before it is written.
    """
    claimed: deque[int] = deque()

    def spans() -> Iterator[range]:
        for number in numbers:
            if folder.claim(number):
                claimed.append(number)
                yield folder.plan.span(number)

    how: dict[str, Any] = {"bad": failed.__setitem__, "spans": spans()}
    options = replace(job.options, quiet=True)
    if job.verb == "predict":
        wanted, fast = job.decode_options(task), job.asked["fast"]
        computed: Generator[tuple[int, Any]] = answer_images(task, source, options, wanted, fast=fast, **how)
    else:
        computed = embed_images(task, source, options, **how)
    with closing(computed) as results:
        head = next(results, None)

        def pairs(number: int) -> Pairs:
            nonlocal head
            for place in folder.plan.span(number):
                result = None  # results come in the order of the claims, so an image that is passed over has none
                if head is not None and head[0] == place:
                    result, head = head[1], next(results, None)
                yield source.keys[place], result

        while claimed:
            number = claimed.popleft()
            yield number, pairs(number)


def _write(
    images: ImageInputs,
    folder: PartFolder,
    number: int,
    pairs: Pairs,
    failed: Mapping[str, str],
    on_images: Callable[[int], None],
) -> None:
    """Writes a part and its record."""
    began, unreadable = time.monotonic(), []

    def noted() -> Pairs:
        for place, (key, result) in enumerate(pairs, 1):
            if result is None:
                unreadable.append(key)
            yield key, result
            if place % OFTEN == 0:
                on_images(OFTEN)
        on_images(place % OFTEN)

    rows = write_part(folder.path, folder.plan, number, noted(), failed)
    named = [key for key in unreadable if key in images.named]
    facts = {
        "images": len(folder.plan.span(number)),
        "rows": rows,
        "unreadable": len(unreadable),
        "named": len(named),
        "first": [(key, failed[key]) for key in [*named, *unreadable][:1]],
        "seconds": round(time.monotonic() - began, 3),
        "process": f"{os.getpid()}@{socket.gethostname()}",
    }
    folder.commit(number, facts)


def write_part(
    folder: Path, plan: Plan, number: int, pairs: Iterable[tuple[str, Any]], failed: Mapping[str, str]
) -> int:
    """Writes the files of a part, each whole or not at all; returns the number of rows.

    Args:
        pairs: the key of every image of the part with its result, None if it could not be read.
        failed: why images could not be read; looked up when their row is made.

    Raises:
        ConfigError: pyarrow is missing.
        DiskError: a file cannot be written.
    """
    places = [folder / name for name in plan.files(number)]
    if plan.format == "npy":
        keys, values = places
        return _write_array(keys, values, plan, number, pairs, failed)
    columns = {name: TYPES[kind] for name, kind in plan.columns.items()}
    values = [name for name in columns if name not in ("path", "error")]
    count = 0
    with open_table(places[0], plan.format, columns) as write:
        for row in list_rows(pairs, failed, values):
            write(row)
            count += 1
    return count


def _write_array(
    keys: Path, values: Path, plan: Plan, number: int, pairs: Iterable[tuple[str, Any]], failed: Mapping[str, str]
) -> int:
    """An array (n, D) float32 with a row for every image, NaN where it could not be read, and a line of JSON for each row."""
    rows = np.full((len(plan.span(number)), plan.width), np.nan, np.float32)
    with open_table(keys, "jsonl") as write:
        for place, (key, result) in enumerate(pairs):
            if result is not None:
                rows[place] = result.features
            write({"path": key, "error": failed[key] if result is None else ""})
    save_array(values, rows)
    return len(rows)
