"""Judging a classifier on a source: the logits once, every figure from them.

N images, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from vitrail.config.schema import Run
from vitrail.data.loader import Bad, Batch, eval_batches, stop_at_bad
from vitrail.data.sources.source import Source
from vitrail.errors import DataError
from vitrail.evaluation.corruptions import corrupt
from vitrail.evaluation.judgement import Judgement, from_logits
from vitrail.models import device_of
from vitrail.models.backbone import at_rest
from vitrail.runtime.device import in_precision
from vitrail.runtime.progress import ProgressBar
from vitrail.tasks import metrics
from vitrail.tasks.classification import Classifier


def features_of_batches(
    classifier: Classifier, source: Source, *, precision: str, **how: Any
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Every batch of ``source`` as `eval_batches` gives it with ``how``, and what the head would read of it: (B, F) float32."""
    preprocessing, device = classifier.preprocessing, device_of(classifier)
    for some in eval_batches(source, preprocessing, **how):
        images = preprocessing.normalise(some.images.to(device))
        with in_precision(precision, device):
            features = classifier.features(images)
        yield some, features.float().cpu().numpy()


@torch.inference_mode()
def collect(
    classifier: Classifier,
    source: Source,
    *,
    batch: int,
    workers: int,
    precision: str = "fp32",
    bad: Bad = stop_at_bad,
    corruption: tuple[str, int] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    show: ProgressBar | None = None,
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]] | None:
    """Logits (N, K), targets and keys in the order of the source; None if ``stopped`` said so on the way.

    ``corruption`` is a kind and a level of `vitrail.evaluation.corruptions`, done to every picture before it is normalised.
    """
    logits, targets, keys = [], [], []
    with at_rest(classifier) as device:
        for some in eval_batches(source, classifier.preprocessing, batch=batch, workers=workers, bad=bad):
            if stopped():
                return None
            images = some.images.to(device)
            if corruption is not None:
                images = corrupt(images, *corruption, samples=some.ids[:, 1])
            with in_precision(precision, device):
                answers = classifier(classifier.preprocessing.normalise(images))
            logits.append(answers.float().cpu().numpy())
            targets.append(some.targets.cpu().numpy())
            keys.extend(some.keys)
            if show is not None:
                show.update(len(keys))
    if not keys:
        raise DataError("no image could be judged: the split is empty or all of it is bad", "see `vitrail data check`")
    return np.concatenate(logits), np.concatenate(targets), tuple(keys)


def quick_figures(
    classifier: Classifier, source: Source, run: Run, *, bad: Bad, stopped: Callable[[], bool]
) -> dict[str, float] | None:
    """The few figures of an evaluation during training, named ``val_...``; None if stopped on the way."""
    how = {"workers": run.data.workers or 0, "precision": run.compute.precision or "fp32"}
    batch = min(run.data.micro_batch or 128, 128)  # what training has memory for, evaluation has too
    found = collect(classifier, source, batch=batch, bad=bad, stopped=stopped, **how)
    if found is None:
        return None
    logits, targets, _ = found
    figures = metrics.summary(logits, targets, classifier.classes, multi_label=classifier.multi_label)
    first = ("map", "f1_micro") if classifier.multi_label else ("top1", "nll")
    return {f"val_{name}": figures[name] for name in first if name in figures}


def judge(classifier: Classifier, source: Source, *, split: str, seed: int = 0, **how: Any) -> Judgement:
    """Every figure of ``classifier`` on ``source``, with a 95 % bootstrap interval of the first one.

    ``how`` goes to `collect`. Raises `DataError` for an empty or unlabelled source.
    """
    if not len(source.targets):
        raise DataError(f"the split {split!r} has no labels", "use `vitrail predict` for unlabelled images")
    found = collect(classifier, source, **how)
    assert found is not None
    logits, targets, keys = found
    return from_logits(classifier, logits, targets, keys, split=split, seed=seed)
