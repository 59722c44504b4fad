"""Batches: from a source to tensors, for training in the order of a stream and for evaluation in the source's own.

A batch is a function of the source, the policy, the seed and the step; how many workers make it changes nothing in it.

Axes: B images, C channels, H and W, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.augment.policy import Augment
from vitrail.data.pictures import Evaluated, Picture, TrainingCrop, Transformed
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.contents import UserDataset
from vitrail.data.sources.source import Source
from vitrail.data.workers import Made, Make, Workers, in_order, make_all
from vitrail.errors import DataError

DEVICE_BYTES = 2**32  # arrays up to this size are kept on the device
Bad = Callable[[str, str], None]  # key, reason; raises to stop
Collate = Callable[[Any], Any]  # the rows of a source's targets as those of a batch: `Task.collate`


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of examples.

    Args:
        images: (B, C, H, W) uint8, or float32 in [0, 1].
        targets: what is known of each, as `Task.collate` made it: (B,) int64 of a class, -1 where unlabelled, or (B, K) float32
            of zeros and ones; of other tasks any tensor, or tuple of tensors, with the images first.
        keys: their names.
        ids: (B, 3) int64: epoch, sample and view of each.
        frames: what each shows of its picture.
    """

    images: Tensor
    targets: Any
    keys: list[str]
    ids: np.ndarray
    frames: Frames

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; to a GPU the copy runs beside what the processor does next."""
        device = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                return tensor.pin_memory().to(device, non_blocking=True)
            return tensor.to(device)

        several = isinstance(self.targets, tuple)
        targets = tuple(map(move, self.targets)) if several else move(self.targets)
        return replace(self, images=move(self.images), targets=targets)


def collate_labels(rows: np.ndarray) -> Tensor:
    """Numbers of classes (B,), or rows of zeros and ones (B, K), as they are."""
    return torch.from_numpy(rows)


def stop_at_bad(key: str, reason: str) -> None:
    """Raises `DataError` for a bad image: the default policy."""
    raise DataError(f"the image {key} is bad: {reason}", "repair or remove it")


def train_batches(
    source: Source,
    *,
    policy: Augment,
    size: tuple[int, int],
    batch: int,
    seed: int,
    start: int,
    stop: int,
    workers: int = 0,
    repeats: int = 1,
    views: int = 1,
    channels: int = 3,
    transform: Callable[[Any], Any] | None = None,
    collate: Collate = collate_labels,
    bad: Bad = stop_at_bad,
    device: torch.device | None = None,
) -> Generator[Batch, None, None]:
    """The batches of the steps from ``start`` up to and without ``stop``; see `TrainStream` for their order.

    Images of files are cropped by ``policy`` and scaled to ``size``; arrays come as they are, for augmentation to crop.
    With ``transform`` each image is what that makes of it. The generators it draws from are seeded for each image.

    Args:
        workers: processes that make the pictures; 0 makes them here: one batch ahead in a thread, or, with a
            ``transform`` or a user's Dataset, whose code no thread may run beside the training, when it is asked for.
        views: how often each sample of a step comes, next to one another, every time as another view: B V images, of B
            ``batch`` and V ``views``. With ``repeats`` the views of one that comes again go on counting.
        transform: a callable or module from a Pillow image (or an array (H, W, C), where Pillow has no mode for it) to
            (channels, *size), uint8 or float in [0, 1].
        collate: makes the batch's targets of the source's.
        bad: called for each bad image, in order; if it does not raise, all views of the image are left out of the batch.
        device: where arrays are kept, if they fit in 4 GiB, and their batches come from.

    Raises:
        DataError: arrays with another number of channels; no image of a step is good; a worker died.
        ConfigError: ``transform`` returns something else, or it or the Dataset cannot be sent to a worker.
    """
    stream = TrainStream(images=len(source), batch=batch, seed=seed, repeats=repeats)
    steps = (_repeat_views(ids, views) for ids in stream.steps(start, stop))
    if source.kind == "arrays" and transform is None:
        _check_channels(source, channels)
        yield from _read_arrays(source, steps, device, collate)
        return
    make: Make
    if transform is not None:
        make = Transformed(source.contents, transform, size, seed, channels)
    else:
        make = TrainingCrop(source.contents, policy, size, seed, channels)
    batches = _read_pictures(
        source, make, steps, collate=collate, workers=workers, bad=bad, views=views, users=transform is not None
    )
    with closing(batches):
        for step, result in enumerate(batches, start):
            if not len(result):
                raise DataError(f"all images of step {step} are bad", "see `vitrail data check`")
            yield result


def eval_batches(
    source: Source,
    preprocessing: Preprocessing,
    *,
    batch: int,
    workers: int = 0,
    bad: Bad = stop_at_bad,
    fast: bool = False,
    collate: Collate = collate_labels,
) -> Generator[Batch, None, None]:
    """Every item once, in order, as ``preprocessing`` has it before normalisation; epoch and view are 0.

    Args:
        workers, bad, collate: as for `train_batches`.
        fast: JPEG files are decoded at a half or less where that leaves the size that preprocessing scales them to.

    Raises:
        DataError: arrays with another number of channels; a worker died.
    """
    jobs = (_number_samples(first, min(first + batch, len(source))) for first in range(0, len(source), batch))
    if source.kind == "arrays":
        _check_channels(source, preprocessing.channels)
        size = source.images.shape[1:3]
        if preprocessing.resized(*size) == size == preprocessing.size:
            yield from _read_arrays(source, jobs, None, collate)
            return
    make = Evaluated(source.contents, preprocessing, fast)
    batches = _read_pictures(source, make, jobs, collate=collate, workers=workers, bad=bad)
    with closing(batches):
        yield from filter(len, batches)


def _number_samples(start: int, stop: int) -> np.ndarray:
    ids = np.zeros((stop - start, 3), np.int64)
    ids[:, 1] = np.arange(start, stop)
    return ids


def _repeat_views(ids: np.ndarray, views: int) -> np.ndarray:
    """Every row (B, 3) as so many views of its sample, next to one another: (B V, 3)."""
    if views == 1:
        return ids
    rows = ids.repeat(views, axis=0)
    rows[:, 2] = rows[:, 2] * views + np.tile(np.arange(views), len(ids))
    return rows


def _check_channels(source: Source, channels: int) -> None:
    if source.images.shape[3] != channels:
        fact = f"the images have {source.images.shape[3]} channels, the model takes {channels}"
        raise DataError(fact, "give images of as many channels, or a model made for these")


def _read_arrays(
    source: Source, jobs: Iterable[np.ndarray], device: torch.device | None, collate: Collate
) -> Generator[Batch, None, None]:
    """Batches of a source of arrays, as they are."""
    images, kept = source.images, None
    if device is not None and device.type != "cpu" and images.nbytes <= DEVICE_BYTES:
        kept = torch.tensor(images, device=device)  # (n, H, W, C)
    for ids in jobs:
        rows = ids[:, 1]
        pixels = torch.from_numpy(images[rows]) if kept is None else kept[torch.from_numpy(rows).to(device)]
        yield _make_batch(
            source, pixels.permute(0, 3, 1, 2).contiguous(), ids, Frames.whole(len(ids), images.shape[1:3]), collate
        )


def _read_pictures(
    source: Source,
    make: Make,
    jobs: Iterable[np.ndarray],
    *,
    collate: Collate,
    workers: int,
    bad: Bad,
    views: int = 1,
    users: bool = False,
) -> Generator[Batch, None, None]:
    """Batches of pictures that are made one by one, here or in workers, without the bad ones."""
    here = partial(make_all, make)
    if workers:
        pool = Workers(make, workers, source.keys)
        results = in_order(partial(_stack_pictures, pool, views=views), jobs, threads=workers, close=pool.close)
    elif users or isinstance(source.contents, UserDataset):
        results = (_stack_pictures(here, ids, views=views) for ids in jobs)
    else:
        results = in_order(partial(_stack_pictures, here, views=views), jobs, threads=1)
    with closing(results):
        for ids, images, frames, reasons in results:
            by_sample = ids.reshape(-1, views, 3)
            for place, reason in reasons.items():
                bad(source.keys[by_sample[place, 0, 1]], reason)
            kept = np.delete(by_sample, list(reasons), axis=0).reshape(-1, 3)
            yield _make_batch(source, torch.from_numpy(images), kept, frames, collate)


def _stack_pictures(
    make: Callable[[np.ndarray], list[Made]], ids: np.ndarray, *, views: int
) -> tuple[np.ndarray, np.ndarray, Frames, dict[int, str]]:
    """The ids of a job, its good pictures (B, C, H, W), what they show, and why the other samples are bad, by their place in
    the job.
    """
    made = make(ids)
    reasons: dict[int, str] = {}
    for row, picture in enumerate(made):
        if isinstance(picture, str):
            reasons.setdefault(row // views, picture)
    pictures = [
        picture for row, picture in enumerate(made) if row // views not in reasons and isinstance(picture, Picture)
    ]
    pixels = [picture.pixels for picture in pictures]
    if len({image.dtype for image in pixels}) > 1:  # a user's Dataset may give either kind
        pixels = [image if image.dtype == np.float32 else image / np.float32(255) for image in pixels]
    images = np.stack(pixels) if pixels else np.zeros((0, 0, 0, 0), np.uint8)
    return ids, images, Frames.of(pictures), reasons


def _make_batch(source: Source, images: Tensor, ids: np.ndarray, frames: Frames, collate: Collate) -> Batch:
    rows = ids[:, 1]
    targets = collate(source.targets[rows]) if source.labelled else torch.full((len(rows),), -1)
    return Batch(images, targets, [source.keys[row] for row in rows.tolist()], ids, frames)
