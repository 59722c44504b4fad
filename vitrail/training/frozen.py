"""Training of a head alone on features that are computed once, before the first step.

A backbone that is not trained gives an image the same features in every epoch, if the image is not augmented.

N images, F features, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from vitrail.config.schema import Run
from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Batch
from vitrail.data.sample_order import Balance, TrainStream
from vitrail.errors import DataError
from vitrail.evaluation.own_metrics import OwnMetrics
from vitrail.inference.features import Features, default_cache, features_of
from vitrail.models.backbone import eval_mode
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.progress import LogFunction, duration
from vitrail.tasks.classification.classifier import Classifier
from vitrail.text import plural
from vitrail.training.data import RunData, TrainingBatches
from vitrail.training.inputs import FeatureInputs
from vitrail.training.validation import Stopped, TaskValidator, read_options

TRIED = 64  # images of a dry run


def has_fixed_features(run: Run, data: RunData, model: Any) -> bool:
    """Returns whether each image has the same features in every step: the head of a classifier alone is trained, by labels, and
    nothing is drawn for an image but its place in the order.
    """
    augment = run.augment
    is_plain = augment.only_flips and not augment.flip and not augment.mixes and run.data.repeats == 1
    by_labels = run.objective.name == "supervised" and run.objective.teacher is None
    return run.model.head_only and is_plain and by_labels and isinstance(model, Classifier) and data.transform is None


@dataclass(frozen=True, kw_only=True)
class FeatureBatches(TrainingBatches):
    """Batches of features (B, F) in the order of `TrainingBatches`, without the images that could not be read."""

    features: Features

    def __call__(self, start: int, stop: int) -> Generator[Batch, None, None]:
        source, (rows, values) = self.source, (self.features.rows, torch.from_numpy(self.features.values))
        places = np.full(len(source), -1)
        places[rows] = np.arange(len(rows))
        how = {"units": source.units, "balance": Balance(source.labels) if self.run.data.balance else None}
        stream = TrainStream(images=len(source), batch=self.batch, seed=self.run.seed, **how)
        part = slice(None) if self.ranks.is_single else self.ranks.share(self.batch)
        for step in range(start, stop):
            ids = stream.ids(step)[part]
            ids = ids[places[ids[:, 1]] >= 0]
            if not len(ids):
                raise DataError(f"all images of step {step} are bad", "see `vitrail data check`")
            targets = self.collate(source.labels[ids[:, 1]])
            keys = [source.keys[row] for row in ids[:, 1].tolist()]
            yield Batch(values[places[ids[:, 1]]], targets, keys, ids, Frames.whole(len(ids), (1, 1)))


class HeadValidator(TaskValidator):
    """The figures of `TaskValidator` from the features of each part, all of which every rank computes."""

    def __init__(self, validator: TaskValidator, features: Mapping[str, Features]) -> None:
        self.model, self.bad, self.parts, self.features = validator.model, validator.bad, validator.parts, features

    def count_images(self, ranks: Ranks) -> float:
        return sum(map(len, self.features.values()))

    def __call__(self, run: Run, stopped: Stopped, ranks: Ranks = SINGLE) -> dict[str, float] | None:
        figures: dict[str, float] = {}
        for part, features in self.features.items():
            if stopped():
                return None
            own = OwnMetrics(run.save.metrics, self.model) if run.save.metrics else None
            metric, targets = self.model.metric(features.source), self.model.targets.collate(features.targets)
            with eval_mode(self.model) as device:
                logits = self.model.backbone.head(torch.from_numpy(features.values).to(device)).float()
            metric.update(logits, targets, features.keys, Frames.whole(len(features), (1, 1)))
            if own is not None:
                own.add(logits.cpu(), targets)
            measured = {**metric.summarize(), **(own.compute() if own else {})}
            figures |= {f"{part}_{name}": value for name, value in measured.items()}
        return figures


def compute_features_once(
    batches: TrainingBatches, validator: TaskValidator, *, is_trial: bool, quiet: bool, log: LogFunction
) -> tuple[FeatureInputs, FeatureBatches, HeadValidator]:
    """Computes the features of the images that are learned from and evaluated, and returns what trains on them.

    They are kept in the cache of `vitrail probe`. With ``is_trial``, for a dry run, a few training images are computed and the
    time of all is estimated; nothing is kept.

    Raises as `features_of`.
    """
    run, data, count = batches.run, batches.data, len(batches.source)
    options = replace(read_options(run), quiet=quiet, on_bad=run.data.on_bad, max_bad=run.data.max_bad)
    cache = None if is_trial else default_cache()
    how: dict[str, Any] = {"options": options, "cache": cache, "bad": data.bad, "log": log, "ranks": batches.ranks}
    source = batches.source.subset(np.arange(min(TRIED, count))) if is_trial else batches.source
    started = time.perf_counter()
    train = features_of(validator.model, source, title="features of train", **how)
    if is_trial:
        needed = duration((time.perf_counter() - started) / len(source) * count)
        log(f"features of {plural(count, 'image')} are computed once, in about {needed}")
        parts = {}
    else:
        parts = {
            part: features_of(validator.model, source, title=f"features of {part}", **how)
            for part, source in validator.parts.items()
        }
        total = plural(count + sum(map(len, parts.values())), "image")
        log(f"features of {total}, computed once in {duration(time.perf_counter() - started)}")
    given: dict[str, Any] = {field.name: getattr(batches, field.name) for field in fields(batches)} | {"source": source}
    on_features = FeatureBatches(**given, features=train)
    return FeatureInputs(validator.model.targets, run.augment), on_features, HeadValidator(validator, parts)
