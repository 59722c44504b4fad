"""The figures of an evaluation between steps: of a classifier, of the features of an encoder, of the codes of a tokenizer.

A validator is called on every rank, with the run as it stands, whether to stop, and the ranks that may share the work. It returns
None if it was stopped; every rank asks equally often. `count_images` returns the number of images that each rank reads.

N images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from vitrail.config.schema import Run
from vitrail.data.loader import Bad, eval_batches
from vitrail.data.rng import permutation
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source, Splits, take_part
from vitrail.evaluation.evaluate import compute_metric
from vitrail.evaluation.feature_health import measure as measure_health
from vitrail.evaluation.own_metrics import OwnMetrics
from vitrail.evaluation.probes import knn
from vitrail.inference.features import default_cache, features_of
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import run_model
from vitrail.models.backbone import eval_mode
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.tokenizer import perplexity, psnr
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.tasks import Task

NEIGHBOURS = 20
MIN_QUERIES = 30  # images to classify by their neighbours
Stopped = Callable[[], bool]


class TaskValidator:
    """The first figures of a model on each of its parts, named ``val_...`` on the validation split, and ``train_...`` on
    ``save.train_images`` training images without augmentation.
    """

    def __init__(self, model: Task, splits: Splits, run: Run, bad: Bad) -> None:
        self.model, self.bad, train = model, bad, splits.train
        self.parts = {} if splits.val is None else {"val": splits.val}
        if train is not None and (count := min(run.save.train_images, len(train))):
            self.parts["train"] = take_part(train, count=count, seed=run.seed)

    def count_images(self, ranks: Ranks) -> float:
        return sum(map(len, self.parts.values())) / ranks.world

    def __call__(self, run: Run, stopped: Stopped, ranks: Ranks = SINGLE) -> dict[str, float] | None:
        figures: dict[str, float] = {}
        for part, source in self.parts.items():
            own = OwnMetrics(run.save.metrics, self.model) if run.save.metrics else None
            how = {"bad": self.bad, "stopped": stopped, "ranks": ranks, "on_outputs": own.add if own else None}
            metric = compute_metric(self.model, source, read_options(run), **how)
            if metric is None:
                return None
            measured = {**metric.summarize(), **(own.compute() if own else {})}
            figures |= {f"{part}_{name}": value for name, value in measured.items()}
        return figures


class FeatureValidator:
    """Figures of an encoder: ``effective_rank`` and ``spread`` of its features, and with labels the accuracy ``knn`` of the
    nearest neighbours among training images, with that of the most frequent class, ``chance``, and of a ``teacher``'s features,
    ``teacher_knn``.

    The same images each time: two thirds of ``save.watched`` are training images with known labels; one third, from val, or from
    train if val has too few, is classified. They are few, so every rank computes all of them.
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("knn", "teacher_knn", "chance", "effective_rank", "spread")

    def __init__(self, model: Task, splits: Splits, run: Run, bad: BadImages, teacher: Task | None = None) -> None:
        train, val = splits.train, splits.val
        assert train is not None, "there are no training images"
        self.model, self.bad, self.teacher = model, bad, teacher
        if teacher is not None and teacher.preprocessing.channels != model.preprocessing.channels:
            self.teacher = None  # arrays have the student's channels
        self.of_teacher: dict[str, float] = {}
        known, queries = 2 * run.save.watched // 3, run.save.watched // 3
        order = permutation(run.seed, 0, len(train))
        if val is not None and len(val) >= MIN_QUERIES:
            self.queries = val.subset(permutation(run.seed, 0, len(val))[:queries])
        else:
            known = min(known, len(order) // 2)
            self.queries = train.subset(order[known : known + queries])
        self.known = train.subset(order[:known])

    def count_images(self, ranks: Ranks) -> float:
        return len(self.known) + len(self.queries)

    def __call__(self, run: Run, stopped: Stopped, ranks: Ranks = SINGLE) -> dict[str, float] | None:
        known, queries = (self._features(part, run, stopped) for part in (self.known, self.queries))
        if known is None or queries is None:
            return None
        health = measure_health(np.concatenate([known[0], queries[0]]))
        figures = {"effective_rank": health.rank, "spread": health.spread}
        if not self.has_classes:
            return figures
        classes, targets = len(self.known.classes), queries[1]
        chance = np.bincount(targets, minlength=classes).max() / len(targets)
        return {"knn": rate_knn(known, queries, classes), **self.of_teacher, "chance": float(chance), **figures}

    @property
    def has_classes(self) -> bool:
        """Whether every image has one label."""
        return self.known.labelled and self.queries.labelled and not self.known.multi_label

    def evaluate_teacher(self, run: Run, ranks: Ranks) -> None:
        """Measures the features of the teacher, if there is one, of the same images, which it sees in its own size."""
        if self.teacher is None or not self.has_classes:
            return
        how: dict[str, Any] = {"options": replace(read_options(run), quiet=True), "cache": default_cache()}
        known, queries = (
            features_of(self.teacher, part, bad=self.bad, log=lambda line: None, ranks=ranks, **how)
            for part in (self.known, self.queries)
        )
        seen, asked = (known.values, known.targets), (queries.values, queries.targets)
        self.of_teacher = {"teacher_knn": rate_knn(seen, asked, len(self.known.classes))}

    @torch.inference_mode()
    def _features(self, source: Source, run: Run, stopped: Stopped) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the features (N, D) of a source and its targets (N,), without bad images."""
        features, targets, model, options = [], [], self.model, read_options(run)
        with eval_mode(model):
            for batch, output in run_model(model, source, options, verb=model.features, bad=self.bad):
                if stopped():
                    return None
                features.append(output.cpu().numpy())
                targets.append(batch.targets.numpy())
        return np.concatenate(features), np.concatenate(targets)


def rate_knn(known: tuple[np.ndarray, np.ndarray], queries: tuple[np.ndarray, np.ndarray], classes: int) -> float:
    """Returns the share of the queries whose nearest neighbours have their class; both are features (N, D) and targets (N,)."""
    votes = knn(*known, queries[0], classes=classes, k=min(NEIGHBOURS, len(known[0])))
    return float((votes.argmax(1) == queries[1]).mean())


class CodeValidator:
    """Figures of a tokenizer on held-out images: ``psnr_held_out`` in decibels, beside that of replacing each patch by its
    mean colour, ``psnr_mean_colour``; and ``codes_in_use``, the perplexity of its codes.
    """

    FIGURES: ClassVar[tuple[str, ...]] = ("psnr_held_out", "psnr_mean_colour", "codes_in_use")

    def __init__(self, tokenizer: Tokenizer, preprocessing: Any, splits: Splits, run: Run, bad: Bad) -> None:
        self.tokenizer, self.preprocessing, self.bad = tokenizer, preprocessing, bad
        source = splits.val if splits.val is not None and len(splits.val) else splits.train
        assert source is not None, "there are no images"
        self.queries = source.subset(permutation(run.seed, 0, len(source))[: run.save.watched // 3])

    def count_images(self, ranks: Ranks) -> float:
        return len(self.queries)

    @torch.inference_mode()
    def __call__(self, run: Run, stopped: Stopped, ranks: Ranks = SINGLE) -> dict[str, float] | None:
        patch = self.tokenizer.config.patch_size
        codes, errors, flat = [], [], []
        with eval_mode(self.tokenizer) as device:
            options = read_options(run)
            how = {"batch": options.batch, "workers": options.workers, "max_pixels": options.max_pixels}
            for batch in eval_batches(self.queries, self.preprocessing, bad=self.bad, **how):
                if stopped():
                    return None
                images = self.preprocessing.normalise(batch.images.to(device))  # (B, C, H, W)
                rebuilt, batch_codes = self.tokenizer(images)
                pictures = self.preprocessing.denormalise(images)
                means = nn.functional.avg_pool2d(pictures, patch)  # (B, C, h, w)
                mean_colours = means.repeat_interleave(patch[0], 2).repeat_interleave(patch[1], 3)
                codes.append(batch_codes)
                # the root mean square of each image's errors, (B, C, H, W) to (B,), from which `psnr` is that of all pixels
                errors.append((self.preprocessing.denormalise(rebuilt) - pictures).square().mean((1, 2, 3)).sqrt())
                flat.append((mean_colours - pictures).square().mean((1, 2, 3)).sqrt())
        return {
            "psnr_held_out": psnr(torch.cat(errors)).item(),
            "psnr_mean_colour": psnr(torch.cat(flat)).item(),
            "codes_in_use": perplexity(torch.cat(codes), self.tokenizer.config.vocabulary).item(),
        }


Validator = TaskValidator | FeatureValidator | CodeValidator


def read_options(run: Run) -> InferenceOptions:
    """Returns the options of reading between steps: evaluation fits in memory with the micro-batch of training."""
    return InferenceOptions(
        batch=min(run.data.micro_batch or 128, 128),
        workers=run.data.workers or 0,
        precision=run.compute.precision or "fp32",
        max_pixels=run.data.max_pixels,
    )
