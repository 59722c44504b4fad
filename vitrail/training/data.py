"""The data of a run: opened, checked against what it began with, and batched for training."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import torch

from vitrail.config.schema import Run
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.loader import Batch, train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, list_splits
from vitrail.runs.folder import RunFolder
from vitrail.tasks.classification import Classifier

Transform = Callable[[Any], Any]


def opened(
    run: Run, folder: RunFolder, data: Any, start: Classifier | None, *, labels: bool = True
) -> tuple[Splits, BadImages]:
    """The data, ``data`` or those that the run names, with sets of small images decoded once, into memory; and what becomes of
    bad images.
    """
    channels = run.data.channels or (start.config.in_channels if start else None)
    source = run.data.source if data is None else data
    splits = open_data(source, seed=run.seed, validation=run.data.validation, channels=channels, labelled=labels)
    parts = list_splits(splits)
    total = sum(map(len, parts.values()))
    bad = BadImages(run.data.on_bad, run.data.max_bad, folder.path / "bad_images.csv", total=total)
    kept: dict[str, Any] = {name: keep_decoded(part, channels=channels, bad=bad) for name, part in parts.items()}
    return replace(splits, **kept), bad


def training_batches(
    run: Run,
    train: Source,
    preprocessing: Preprocessing,
    device: torch.device,
    bad: BadImages,
    transform: Transform | None,
    views: int = 1,
) -> Callable[[int, int], Generator[Batch, None, None]]:
    """From the first step and the last to the batches between them, each image in so many views."""

    def batches(start: int, stop: int) -> Generator[Batch, None, None]:
        return train_batches(
            train,
            policy=run.augment,
            size=preprocessing.size,
            batch=run.data.batch,
            seed=run.seed,
            start=start,
            stop=stop,
            workers=run.data.workers or 0,
            repeats=run.data.repeats,
            views=views,
            channels=preprocessing.channels,
            transform=transform,
            bad=bad,
            device=device,
        )

    return batches
