"""What is watched while learning without labels: what the features are worth and how they fare, or what codes can tell.

N images whose features are known, M that are asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.config.schema import Run
from vitrail.data.loader import Bad, eval_batches
from vitrail.data.rng import permutation
from vitrail.data.sources.source import Source, Splits
from vitrail.evaluation.feature_health import measure
from vitrail.evaluation.probes import knn
from vitrail.inference.outputs import features_of_batches
from vitrail.models.backbone import at_rest
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.tokenizer import perplexity, psnr
from vitrail.tasks.classification import Classifier

NEIGHBOURS = 20
FEWEST = 30  # images to ask about
Stopped = Callable[[], bool]


class FeatureWatch:
    """Figures of an encoder: ``effective_rank`` and ``spread`` of its features, and with labels the accuracy ``knn`` of the
    nearest neighbours among training images, with that of the most frequent class, ``chance``.

    The same images each time: two thirds of ``save.watched`` from train, one third from val, or from train too where that
    holds too few to ask. Health is that of all of them.
    """

    def __init__(self, classifier: Classifier, splits: Splits, run: Run, bad: Bad) -> None:
        train = splits.train
        assert train is not None, "there are no training images"
        self.classifier, self.run, self.bad = classifier, run, bad
        known, asked = 2 * run.save.watched // 3, run.save.watched // 3
        order = permutation(run.seed, 0, len(train))
        self.known = train.subset(order[:known])
        other = splits.val
        if other is None or len(other) < FEWEST:
            half = len(order) // 2  # too few images for both parts are halved
            first = min(known, half)
            self.known, self.asked = train.subset(order[:first]), train.subset(order[first : first + asked])
        else:
            self.asked = other.subset(permutation(run.seed, 0, len(other))[:asked])

    def __call__(self, stopped: Stopped) -> dict[str, float] | None:
        """The figures of now; None if it was told to stop on the way."""
        known, asked = (self._features(part, stopped) for part in (self.known, self.asked))
        if known is None or asked is None:
            return None
        health = measure(np.concatenate([known[0], asked[0]]))
        figures = {"effective_rank": health.rank, "spread": health.spread}
        if not self.known.labelled or not self.asked.labelled or self.known.multi_label:
            return figures
        classes, targets = len(self.known.classes), asked[1]
        votes = knn(*known, asked[0], classes=classes, k=min(NEIGHBOURS, len(known[0])))
        chance = np.bincount(targets, minlength=classes).max() / len(targets)
        return {"knn": float((votes.argmax(1) == targets).mean()), "chance": float(chance), **figures}

    @torch.inference_mode()
    def _features(self, source: Source, stopped: Stopped) -> tuple[np.ndarray, np.ndarray] | None:
        """The features (N, D) of a source and its targets (N,), without bad images."""
        features, targets = [], []
        how = {"precision": self.run.compute.precision or "fp32", **reading(self.run, self.bad)}
        with at_rest(self.classifier):
            for some, found in features_of_batches(self.classifier, source, **how):
                if stopped():
                    return None
                features.append(found)
                targets.append(some.targets.numpy())
        return np.concatenate(features), np.concatenate(targets)


class CodeWatch:
    """Figures of a tokenizer on images it did not learn from: ``psnr_held_out`` in decibels, beside that of telling each
    patch by its mean colour, ``psnr_mean_colour``; and ``codes_in_use``, the perplexity of its codes.
    """

    def __init__(self, tokenizer: Tokenizer, preprocessing: Any, splits: Splits, run: Run, bad: Bad) -> None:
        self.tokenizer, self.preprocessing, self.run, self.bad = tokenizer, preprocessing, run, bad
        source = splits.val if splits.val is not None and len(splits.val) else splits.train
        assert source is not None, "there are no images"
        self.asked = source.subset(permutation(run.seed, 0, len(source))[: run.save.watched // 3])

    @torch.inference_mode()
    def __call__(self, stopped: Stopped) -> dict[str, float] | None:
        """The figures of now; None if it was told to stop on the way."""
        patch = self.tokenizer.config.patch_size
        codes, errors, flat = [], [], []
        with at_rest(self.tokenizer) as device:
            for some in eval_batches(self.asked, self.preprocessing, **reading(self.run, self.bad)):
                if stopped():
                    return None
                images = self.preprocessing.normalise(some.images.to(device))  # (B, C, H, W)
                made, found = self.tokenizer(images)
                pictures = self.preprocessing.denormalise(images)
                means = nn.functional.avg_pool2d(pictures, patch)  # (B, C, h, w)
                mean_colours = means.repeat_interleave(patch[0], 2).repeat_interleave(patch[1], 3)
                codes.append(found)
                errors.append(_size(self.preprocessing.denormalise(made) - pictures))
                flat.append(_size(mean_colours - pictures))
        return {
            "psnr_held_out": psnr(torch.cat(errors)).item(),
            "psnr_mean_colour": psnr(torch.cat(flat)).item(),
            "codes_in_use": perplexity(torch.cat(codes), self.tokenizer.config.vocabulary).item(),
        }


def _size(errors: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of each image's errors (B, C, H, W): (B,), of which `psnr` makes what it would of them."""
    return errors.square().mean((1, 2, 3)).sqrt()


def reading(run: Run, bad: Bad) -> dict[str, Any]:
    """How images are read between steps: what training has memory for, evaluation has too."""
    return {"batch": min(run.data.micro_batch or 128, 128), "workers": run.data.workers or 0, "bad": bad}
