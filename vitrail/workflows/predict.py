"""`vitrail predict` and `vitrail embed`: answers for files, folders, globs, manifests or standard input, streamed to a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.inference.inputs import find_inputs
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import Verb, outputs
from vitrail.inference.results import Results, build_rows
from vitrail.reports.tables import open_table
from vitrail.reports.wording import plural
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks.answer import Answer
from vitrail.tasks.task import Task


class Embedding(NamedTuple):
    """The features (D,) float32 of one image; ``key`` names it."""

    key: str
    features: np.ndarray

    def row(self) -> dict[str, Any]:
        return {"path": self.key, "features": self.features}


def predict(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    top: int = 5,
    fast: bool = False,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    say: Say = to_stderr,
) -> Results[Answer]:
    """Answers in the order of the inputs, computed batch by batch as they are taken.

    ``fast`` decodes JPEGs at a reduced scale where the model's input is much smaller; pixels then differ slightly.
    """
    task = options.load(model, classes, say)
    task.check_can_answer(top)
    images = find_inputs(inputs)
    bad = options.record_bad(images.source, bad_list)
    batches = _answer_batches(task, images.source, options, bad, top=top, fast=fast)
    return Results(batches, images, bad, done="predicted", say=say)


def _answer_batches(
    task: Task, source: Source, options: InferenceOptions, bad: BadImages, *, top: int, fast: bool
) -> Iterator[tuple[list[str], list[Answer]]]:
    for batch, raw in _compute_outputs(task, None, source, options, bad, fast=fast):
        answers = task.decode(raw, batch.frames, top=top)
        yield batch.keys, [replace(answer, key=key) for key, answer in zip(batch.keys, answers)]


def embed(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    say: Say = to_stderr,
) -> Results[Embedding]:
    """The key and features (D,) float32 of every image: what the network's pooling gives to its head."""
    task = options.load(model, classes, say)
    images = find_inputs(inputs)
    bad = options.record_bad(images.source, bad_list)
    outputs = _compute_outputs(task, task.features, images.source, options, bad)
    batches = ((batch.keys, list(map(Embedding, batch.keys, features.cpu().numpy()))) for batch, features in outputs)
    return Results(batches, images, bad, done="embedded", say=say)


@torch.inference_mode()
def _compute_outputs(
    task: Task, verb: Verb | None, source: Source, options: InferenceOptions, bad: BadImages, *, fast: bool = False
) -> Iterator[tuple[Batch, Tensor]]:
    title = "predicting" if verb is None else "embedding"
    with ProgressBar(title, len(source), quiet=options.quiet) as progress:
        yield from outputs(task, source, verb, options, bad=bad, fast=fast, progress=progress)


def write_rows(results: Results[Any], out: Path | None = None, kind: str | None = None) -> None:
    """Writes a row for every image to the table ``out``, and says so, or to stdout; see `open_table` for the kinds.

    Raises `DataError` as `Results.check`, after the table is complete.
    """
    with open_table(out, kind) as table:
        for row in build_rows(results):
            table.write(row)
    if out is not None:
        results.say(f"written  {out}: {plural(results.count + len(results.failed), 'image')}")
    results.check()
