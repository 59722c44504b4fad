"""`vitrail predict` and `vitrail embed`: answers for files, folders, globs, manifests or standard input, streamed to a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.inference.inputs import find_inputs
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import Verb, outputs
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks.task import Answer, Task


@torch.inference_mode()
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
) -> Iterator[Answer]:
    """Answers in the order of the inputs, as they come.

    ``fast`` decodes JPEGs at a reduced scale where the model's input is much smaller; pixels then differ slightly.
    """
    task = options.load(model, classes, say)
    task.check_can_answer(top)
    for batch, raw in _compute_outputs(task, None, find_inputs(inputs), options, bad_list, fast=fast):
        for key, answer in zip(batch.keys, task.decode(raw, batch.frames, top=top)):
            yield replace(answer, key=key)


@torch.inference_mode()
def embed(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    say: Say = to_stderr,
) -> Iterator[tuple[str, np.ndarray]]:
    """(key, features (D,) float32) of every input: what the network's pooling gives to its head."""
    task = options.load(model, classes, say)
    for batch, features in _compute_outputs(task, task.features, find_inputs(inputs), options, bad_list):
        yield from zip(batch.keys, features.cpu().numpy())


def _compute_outputs(
    task: Task,
    verb: Verb | None,
    source: Source,
    options: InferenceOptions,
    bad_list: Path | None,
    *,
    fast: bool = False,
) -> Iterator[tuple[Batch, Tensor]]:
    bad = BadImages(options.on_bad, options.max_bad, bad_list, total=len(source))
    with ProgressBar("predicting", len(source), quiet=options.quiet) as progress:
        yield from outputs(task, source, verb, options, bad=bad, fast=fast, progress=progress)


def build_rows(answers: Iterable[Answer]) -> Iterator[dict[str, Any]]:
    """Flat rows of a table: the path, then what each answer says of itself."""
    for answer in answers:
        yield {"path": answer.key, **answer.row()}
