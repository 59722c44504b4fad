"""`vitrail predict` and `vitrail embed`: answers for files, folders, globs, manifests or standard input, streamed to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loader import eval_batches
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.inference.inputs import find_inputs
from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of
from vitrail.runtime.device import in_precision
from vitrail.runtime.progress import ProgressBar, to_stderr
from vitrail.tasks.classification import Classifier
from vitrail.workflows.evaluate import Say


@dataclass(frozen=True)
class Answer:
    """One image: the best label, its probability, and the next ones."""

    key: str
    label: str
    score: float
    top: tuple[tuple[str, float], ...]


@torch.inference_mode()
def predict(
    model: str | Path | Classifier,
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
    classifier = options.load(model, classes, say)
    classifier.check_can_answer(top)
    for keys, logits in _answers(classifier, classifier, find_inputs(inputs), options, bad_list, fast=fast):
        scores = classifier.probabilities(logits)
        best, places = scores.topk(min(top, scores.shape[1]), dim=1)
        for key, some, where in zip(keys, best.tolist(), places.tolist()):
            ranked = tuple((classifier.classes[place], score) for place, score in zip(where, some))
            yield Answer(key, *ranked[0], ranked)


@torch.inference_mode()
def embed(
    model: str | Path | Classifier,
    inputs: Sequence[str],
    *,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    say: Say = to_stderr,
) -> Iterator[tuple[str, np.ndarray]]:
    """(key, features (D,) float32) of every input: what the network's pooling gives to its head."""
    classifier = options.load(model, classes, say)
    for keys, features in _answers(classifier, classifier.features, find_inputs(inputs), options, bad_list):
        yield from zip(keys, features.cpu().numpy())


def _answers(
    classifier: Classifier,
    verb: Callable[[Tensor], Tensor],
    source: Source,
    options: InferenceOptions,
    bad_list: Path | None,
    *,
    fast: bool = False,
) -> Iterator[tuple[list[str], Tensor]]:
    """Batch by batch the keys, and what ``verb`` of the classifier says of these images: (B, K) or (B, F), float32."""
    device = device_of(classifier)
    bad = BadImages(options.on_bad, options.max_bad, bad_list, total=len(source))
    done = 0
    with ProgressBar("predicting", len(source), quiet=options.quiet) as show:
        for batch in eval_batches(
            source, classifier.preprocessing, batch=options.batch, workers=options.workers, bad=bad, fast=fast
        ):
            images = classifier.preprocessing.normalise(batch.images.to(device))
            with in_precision(options.precision, device):
                answers = verb(images)
            yield batch.keys, answers.float()
            done += len(batch.keys)
            show.update(done)


def rows(answers: Iterable[Answer]) -> Iterator[dict[str, Any]]:
    """Flat rows of a predictions table: path, label, score, then label_2, score_2 and so on."""
    for answer in answers:
        row: dict[str, Any] = {"path": answer.key, "label": answer.label, "score": round(answer.score, 6)}
        for place, (label, score) in enumerate(answer.top[1:], start=2):
            row |= {f"label_{place}": label, f"score_{place}": round(score, 6)}
        yield row
