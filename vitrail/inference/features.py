"""The features of a source's images, what a model's pooling gives to its head: computed once, and kept in a `FeatureCache`.

N good images, D features, K classes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch

from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, DataError
from vitrail.inference.feature_cache import FeatureCache, Found, identify_images
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import rows_of_rank, run_model, share_bad_images
from vitrail.inference.tuning import tune_options
from vitrail.models import device_of
from vitrail.models.backbone import at_rest
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks.task import Task

COUNTED = ("vitrail", "torch", "numpy", "pillow")  # packages whose other version may give other features


@dataclass(frozen=True, eq=False)
class Features:
    """The features (N, D) float32 of the good images of ``source``, and which these are: ``rows`` (N,), in its order."""

    source: Source
    rows: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> np.ndarray:
        """(N,) int64, or (N, K) float32; (0,) where the source is unlabelled."""
        return self.source.labels[self.rows] if self.source.labelled else self.source.labels

    @property
    def keys(self) -> list[str]:
        return [self.source.keys[row] for row in self.rows.tolist()]

    def only(self, rows: np.ndarray) -> Features:
        """Returns those of the images whose numbers in the source are in ``rows``."""
        kept = np.isin(self.rows, rows)
        return Features(self.source, self.rows[kept], self.values[kept])


def features_of(
    model: Task,
    source: Source,
    *,
    options: InferenceOptions = InferenceOptions(),
    cache: Path | None = None,
    title: str = "features",
    say: Say = to_stderr,
    ranks: Ranks = SINGLE,
) -> Features:
    """Returns the features of every good image of ``source``; a bad one is left out, or ends it, by the policy of ``options``.

    Args:
        model: on the device where it is to run; it needs no head.
        cache: a folder, see `FeatureCache`. What lies there for the same weights, preprocessing, precision, versions and
            image is taken as it is, bad images included. Pictures that a user's Dataset gives are never kept.
        title: the text beside the bar.
        ranks: each of them calls this, computes some of the batches, and gets all features; the first one uses the cache.

    Raises:
        DataError: no image is good, or too many are bad.
        CheckpointError: features that are not finite.
    """
    options = options.of_rank(ranks)
    bad = options.record_bad(source)
    images = None if cache is None else identify_images(source.contents)
    found, keep = Found.nothing(), None
    if cache is not None and images is not None:
        kept = FeatureCache(cache, _identify(model, options))
        found, keep = ranks.run_on_rank0(lambda: kept.find(images)), partial(kept.keep, images)
    with ranks.share_errors():
        bad.merge({source.keys[row]: reason for row, reason in found.reasons.items()})
    missing = np.setdiff1d(np.arange(len(source)), [*found.rows, *found.reasons])
    if len(missing):
        uncached = source.subset(missing) if len(missing) < len(source) else source
        options = tune_options(options, model, say, images=len(missing), ranks=ranks)
        computed = _compute(model, uncached, options, bad, title, ranks).at(missing)
        with ranks.share_errors():
            if broken := int((~np.isfinite(computed.values).all(1)).sum()):
                what = f"the model's features of {broken:,} of {len(source):,} images are not finite"
                raise CheckpointError(
                    what, "look for NaN in the weights with `vitrail inspect`, or leave out --precision"
                )
        if keep is not None:
            ranks.run_on_rank0(lambda: keep(computed, say))
        found = found.join(computed)
    if not len(found.rows):
        what = "no image could be read: the split is empty or all of it is bad"
        raise ranks.collective_error(DataError(what, "see `vitrail data check`"))
    return Features(source, found.rows, found.values)


@torch.inference_mode()
def _compute(model: Task, source: Source, options: InferenceOptions, bad: BadImages, title: str, ranks: Ranks) -> Found:
    """Returns the features of the images that can be read, and why others cannot; each rank computes some of the batches."""
    rows = rows_of_rank(len(source), options.batch, ranks)
    own = source if ranks.is_single else source.subset(rows)
    noted: dict[str, str] = {}
    values: list[np.ndarray] = []
    good: list[int] = []
    shown = {"processes": ranks.world, "quiet": options.quiet}
    with ranks.share_errors(), at_rest(model), ProgressBar(title, len(source), **shown) as progress:
        how = {"bad": bad if ranks.is_single else noted.__setitem__, "progress": progress}
        for batch, features in run_model(model, own, options, verb=model.features, **how):
            values.append(features.cpu().numpy())
            good.extend(rows[batch.ids[:, 1]].tolist())
    share_bad_images(noted, source, bad, ranks)
    by_rank = [
        Found(np.array(rows, np.int64), np.concatenate(found), {})
        for rows, found in ranks.gather((good, values))
        if rows
    ]
    found = reduce(Found.join, by_rank, Found.nothing())
    others = sorted(set(range(len(source))).difference(found.rows.tolist()))
    return replace(found, reasons={row: bad.reasons[source.keys[row]] for row in others})


def digest_of(model: Task) -> str:
    """SHA-256 of all that decides what the model makes of a picture: weights, config and preprocessing."""
    hashed = hashlib.sha256(f"{model.config!r}\n{model.preprocessing!r}\n".encode())
    for name, tensor in {**model.backbone.state_dict(), **model.own.state_dict()}.items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def _identify(model: Task, options: InferenceOptions) -> str:
    """SHA-256 of all that decides the features of an image, besides the image."""
    device = device_of(model).type
    counted = [version for name, version in versions().items() if name in COUNTED]
    return hashlib.sha256(json.dumps([digest_of(model), options.precision, device, counted]).encode()).hexdigest()
