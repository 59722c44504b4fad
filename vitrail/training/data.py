"""The data of a run: opened, decoded into memory where that is small, and batched for training."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.config.schema import DataSettings, Run
from vitrail.config.units import parse_fold
from vitrail.data.augment.policy import LocalViews
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.loader import Batch, Collate, train_batches
from vitrail.data.sample_order import measure_mixing
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.deep_files import open_deep
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.source import Source, Splits, divide_folds, drop_conflicts, list_splits, take_part
from vitrail.errors import ConfigError, DataError
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.tasks import find_task
from vitrail.tasks.task import read_arguments
from vitrail.text import plural

Transform = Callable[[Any], Any]
CONFLICTS = {"drop": "left out", "keep": "kept, so that no model can learn them"}
WELL_MIXED = 0.8  # of the entropy of labels in random batches, below which a warning is due
UNTRAINED = "test"  # the split that no step and no evaluation between steps reads


@dataclass(frozen=True)
class RunData:
    """The images of a run, those that cannot be read, and the ``arguments`` that the task takes from its training images."""

    splits: Splits
    bad: BadImages
    transform: Transform | None = None
    channels: int | None = None  # of the run, or of the weights to start from
    decoded: Path | None = None  # where decoded small images are shared between processes
    undecoded: Splits | None = None  # before `keep_small`
    conflicts: Literal["drop", "keep"] | None = None  # what was done with images that have other labels elsewhere
    notes: tuple[str, ...] = ()  # warnings for the log
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"classes": ()})  # without classes there is no head

    @property
    def opened(self) -> Splits:
        """The splits as they are on the disk, before `keep_small`."""
        return self.undecoded or self.splits

    def keep_small(self, sample: int | None = None) -> RunData:
        """Returns the data with sets of small images decoded, into memory or the folder ``decoded``; see `keep_decoded`."""
        decoded: dict[str, Any] = {
            name: keep_decoded(part, channels=self.channels, bad=self.bad, sample=sample, shared=self.decoded)
            for name, part in list_splits(self.splits).items()
        }
        return replace(self, splits=replace(self.splits, **decoded), undecoded=self.opened)

    @property
    def train(self) -> Source:
        """The training images; a goal refuses data that have none."""
        assert self.splits.train is not None, "there are no training images"
        return self.splits.train

    @property
    def cropped(self) -> bool:
        """Whether images are read in the size of the network's input; else augmentation crops them."""
        return self.train.kind == "files" or self.transform is not None


def open_run_data(
    run: Run, data: Any, folder: RunFolder, transform: Transform | None, *, channels: int | None, labels: bool
) -> RunData:
    """Opens ``data``, anything `open_data` takes, or those that the run names; no image is read yet.

    Args:
        channels: of the weights to start from; the run's own come first.
        labels: whether images without one are an error.

    Raises `DataError` or `ConfigError` as `open_data`, and where the run asks for more training images than there are.
    """
    channels = run.data.channels or channels
    splits = open_data(
        find_data(run.data.source if data is None else data, run.data.columns, run.task if labels else None),
        seed=run.seed,
        validation=run.data.share_held_out,
        channels=channels,
        labelled=labels,
        task=run.task if labels else None,
        max_bad=run.data.max_bad if run.data.on_bad == "skip" else 0.0,
    )
    if run.data.fold:
        splits = divide_folds(splits, parse_fold(run.data.fold))
    notes, conflicts = [], None
    if labels:
        conflicts = run.data.conflicts or ("keep" if folder.config.exists() else "drop")
        found, keys = drop_conflicts(splits) if splits.suspects else (splits, ())
        if keys:
            count = f"{plural(len(keys), 'training image')} equal to others with another label, such as {keys[0]} and {keys[1]}"
            notes.append(f"{count}: {CONFLICTS[conflicts]}; `vitrail data check DATA --fix-list FILE` lists them")
        splits = found if conflicts == "drop" else splits
    splits = limit_training(splits, run.data, run.seed)
    splits = open_deep(splits, channels=channels, levels=run.data.pixel_range, max_pixels=run.data.max_pixels)
    total = sum(map(len, list_splits(splits).values()))
    bad = BadImages(run.data.on_bad, run.data.max_bad, folder.bad_images, total=total)
    decoded = None if run.data.decoded is None else Path(run.data.decoded)
    return RunData(splits, bad, transform, channels, decoded, conflicts=conflicts, notes=tuple(notes))


def choose_arguments(splits: Splits, task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the task for its training images, with the ``options`` of its head.

    Raises `DataError` for data without training images, or that the task cannot learn from.
    """
    if splits.train is None or not len(splits.train):
        raise DataError("the data hold no training images", "see `vitrail data check`", value=splits.layout)
    return read_arguments(find_task(task, options), splits.train, options)


def limit_training(splits: Splits, settings: DataSettings, seed: int) -> Splits:
    """Returns the data with the part of the training images that ``settings`` ask for; the other splits are as they were.

    Raises `DataError` where they ask for more than there are.
    """
    train, images = splits.train, len(splits.train or ())
    if train is None or not images or (settings.limit is None and settings.fraction is None):
        return splits
    count = max(round((settings.fraction or 0) * images), 1) if settings.limit is None else settings.limit
    if count == images:
        return splits
    if count > images:
        what = f"data.limit is {count:,}, and there are {images:,} training images"
        raise DataError(what, f"give --limit {images} or less, or leave it out", value=splits.layout)
    layout = f"{splits.layout}; {count:,} of {images:,} training images, drawn by seed {seed}"
    return replace(splits, train=take_part(train, count=count, seed=seed), layout=layout)


def warn_of_order(train: Source, seed: int) -> str:
    """Returns a warning where images can only be shuffled in part, and that leaves the classes badly mixed; else nothing."""
    labels = train.targets
    if train.units is None or isinstance(labels, Annotations) or labels.ndim != 1 or not train.labelled:
        return ""
    mixing = measure_mixing(labels, train.units, seed)
    if mixing >= WELL_MIXED:
        return ""
    return (
        f"the images seem to be sorted by class ({mixing:.0%} of the entropy of labels that random batches have), and data that "
        "do not fit in memory or have to be fetched are shuffled in parts: write them in random order, Parquet in smaller row "
        "groups, or shards with `vitrail data shard`"
    )


def check_rare_classes(train: Source, *, balance: bool) -> None:
    """Raises `ConfigError` for images that cannot be weighted by their class, or with ``balance`` drawn by it."""
    if train.multi_label:
        what = "the images have several labels each, and objective.class_weights and data.balance go by one"
        raise ConfigError(what, "leave both out")
    if balance and train.units is not None:
        what = "data.balance draws images in any order, and these are read in parts, as they do not fit in memory"
        raise ConfigError(what, "give a folder of images, or weigh the classes in the loss with --class-weights auto")


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """Called with two steps, yields this rank's part of the batches between them (`train_batches`).

    Each image comes in ``views`` views, some of them ``local``, with its target as ``collate`` makes it. Measurements and
    pictures of a few images take a smaller ``batch``, another ``source`` or fewer ``workers``.
    """

    run: Run
    data: RunData
    source: Source
    batch: int
    workers: int
    views: int
    local: LocalViews | None
    collate: Collate
    device: torch.device
    ranks: Ranks = SINGLE

    def __call__(self, start: int, stop: int) -> Generator[Batch, None, None]:
        run, ranks = self.run, self.ranks
        assert run.model.size is not None and run.data.channels is not None, "the run is not resolved"
        return train_batches(
            self.source,
            policy=run.augment,
            size=run.model.size,
            batch=self.batch,
            seed=run.seed,
            start=start,
            stop=stop,
            workers=-(-self.workers // ranks.local_world),
            repeats=run.data.repeats,
            balance=run.data.balance,
            views=self.views,
            local=self.local,
            share=None if ranks.is_single else ranks.share(self.batch),
            channels=run.data.channels,
            transform=self.data.transform,
            collate=self.collate,
            bad=self.data.bad,
            device=self.device,
            max_pixels=run.data.max_pixels,
        )
