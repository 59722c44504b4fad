"""Loading batches from a source: in the order of a `TrainStream` for training, in the source's order for evaluation.

A batch is a function of the source, the policy, the seed and the step, independent of the number of workers.

Axes: B images, C channels, H and W, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.augment.policy import Augment, LocalViews
from vitrail.data.prepare import Evaluated, Picture, TrainingCrop, Transformed, TwoSizes
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sample_order import Balance, TrainStream
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.contents import UserDataset
from vitrail.data.sources.shards import fetch_ahead, fetched
from vitrail.data.sources.source import Source
from vitrail.data.to_device import to_device
from vitrail.data.windows import Windows
from vitrail.data.workers import Made, Make, Workers, in_order, make_all
from vitrail.errors import DataError
from vitrail.untrusted.limits import PIXELS

DEVICE_BYTES = 2**32  # arrays up to this size are kept on the device
Bad = Callable[[str, str], None]  # (key, reason); may raise to stop
Collate = Callable[[Any], Any]  # collates targets of a source to those of a batch, as `TargetKind.collate`


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of examples.

    Args:
        images: (B, C, H, W) uint8, or float32 in [0, 1]; of a picture in `Windows` (1, V, C, H, W).
        local: the images of `LocalViews` where they were cropped to their size, and so are not among ``images``.
        targets: as returned by `TargetKind.collate`: (B,) int64 class indices, -1 for unlabelled images, or (B, K) float32 zeros
            and ones; for other tasks any tensor or tuple of tensors, with the images on the first axis.
        keys: names of the samples.
        ids: (B, 3) int64: epoch, sample and view of each image.
        frames: the region of its picture that each image shows.
        lead: (1, 3) the id of the first image of the update, if this is a part of it: the update shares some random numbers.
        halo: 1 if the first image is the last one of the part before, with which the second is mixed, otherwise 0.
    """

    images: Tensor
    targets: Any
    keys: list[str]
    ids: np.ndarray
    frames: Frames
    lead: np.ndarray | None = None
    halo: int = 0
    local: Tensor | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device | str) -> Batch:
        """Copies the batch to a device; copies to a GPU are asynchronous."""
        device = torch.device(device)
        if isinstance(self.targets, tuple):
            targets: Any = tuple(to_device(part, device) for part in self.targets)
        else:
            targets = to_device(self.targets, device)
        local = None if self.local is None else to_device(self.local, device)
        return replace(self, images=to_device(self.images, device), targets=targets, local=local)


def collate_labels(rows: np.ndarray) -> Tensor:
    """Stacks class indices (B,), or rows of zeros and ones (B, K)."""
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
    balance: bool = False,
    views: int = 1,
    local: LocalViews | None = None,
    share: slice | None = None,
    channels: int = 3,
    transform: Callable[[Any], Any] | None = None,
    collate: Collate = collate_labels,
    bad: Bad = stop_at_bad,
    device: torch.device | None = None,
    max_pixels: int = PIXELS,
) -> Generator[Batch, None, None]:
    """Yields the batches of the steps in [``start``, ``stop``), in the order of `TrainStream`.

    Images of files are cropped by ``policy`` and resized to ``size``; arrays are returned unchanged and cropped in
    augmentation. With ``transform``, each image is its result; the random generators are seeded for each image.

    Args:
        workers: number of worker processes. With 0, images are prepared in this process: one batch ahead in a thread, or
            synchronously with a ``transform`` or a user's Dataset, whose code may not be thread-safe.
        views: number V of consecutive views of each sample of a step, so that a batch has B V images, B ``batch``. With
            ``repeats``, the numbering of the views of a repeated sample continues.
        balance: draw a class in proportion to the square root of its images, as `Balance`.
        local: those of the views that are smaller, by ``policy.local``; a ``transform`` does not make them.
        share: the part of each step's samples that this process reads, if it is one of several; by default all of them. If
            ``policy`` mixes images, the one before the part is read too (`Batch.halo`), so that no images are exchanged.
        transform: a callable or module from a Pillow image (or an array (H, W, C), if Pillow has no mode for it) to
            (channels, *size), uint8 or float in [0, 1].
        collate: converts the targets of the source to those of a batch.
        bad: called for each bad image, in order; if it does not raise, all views of the image are left out of the batch.
        device: device on which arrays are stored, if they fit in 4 GiB.
        max_pixels: of an image file; a larger one is bad.

    Raises:
        DataError: arrays with another number of channels; no image of a step is good; a worker died.
        ConfigError: ``transform`` returns something else, or it or the Dataset cannot be sent to a worker.
    """
    how = {"units": source.units, "balance": Balance(source.labels) if balance else None}
    stream = TrainStream(images=len(source), batch=batch, seed=seed, repeats=repeats, **how)
    halo = share is not None and policy.mixes and views == 1
    part = np.arange(batch) if share is None else np.arange(share.start - halo, share.stop)
    ahead = fetch_ahead(source.contents, map(stream.ids, range(start, stop)))
    steps = (_repeat_views(ids[part], views) for ids in ahead)
    if source.kind == "arrays" and transform is None:
        _check_channels(source, channels)
        batches = _read_arrays(source, steps, device, collate)
    else:
        make: Any = TrainingCrop(source.contents, policy, size, seed, channels, _annotations(source), max_pixels)
        if local is not None:
            small = replace(make, policy=policy.local, size=local.size)
            make = TwoSizes(make, small, views, views - local.count)
        if transform is not None:
            make = Transformed(source.contents, transform, size, seed, channels, max_pixels)
        how = {"collate": collate, "workers": workers, "bad": bad, "views": views}
        batches = _read_pictures(source, make, steps, users=transform is not None, **how)
    with closing(batches):
        for step, result in enumerate(batches, start):
            if share is not None:
                ids = stream.ids(step)
                has_halo = halo and len(result) > 0 and np.array_equal(result.ids[0], ids[part[0]])
                result = replace(result, lead=ids[:1], halo=int(has_halo))
            if len(result) == result.halo:
                raise DataError(f"all images of step {step} are bad", "see `vitrail data check`")
            yield result


def eval_batches(
    source: Source,
    preprocessing: Preprocessing | Windows,
    *,
    batch: int,
    workers: int = 0,
    bad: Bad = stop_at_bad,
    fast: bool = False,
    collate: Collate = collate_labels,
    spans: Iterable[range] | None = None,
    max_pixels: int = PIXELS,
) -> Generator[Batch, None, None]:
    """Yields every item once, in order, preprocessed but not normalised; epoch and view are 0.

    Args:
        preprocessing: how pictures become inputs; with `Windows`, whose number depends on the picture, ``batch`` is 1.
        workers, bad, collate: as for `train_batches`.
        fast: decode JPEG files at a reduced size, if it is at least the size to which preprocessing scales them.
        spans: the items to read, run by run, in place of all: taken while reading runs ahead, in the thread that takes the
            batches. No batch has items of two spans.
        max_pixels: of an image file; a larger one is bad.

    Raises `DataError` for arrays with another number of channels, and if a worker died.
    """
    spans = [range(len(source))] if spans is None else spans
    parts = (span[first : first + batch] for span in spans for first in range(0, len(span), batch))
    jobs = (np.array([(0, sample, 0) for sample in part], np.int64) for part in parts)
    if source.kind == "arrays":
        _check_channels(source, preprocessing.channels)
        size = source.images.shape[1:3]
        if preprocessing.resized(*size) == size == preprocessing.size:
            yield from _read_arrays(source, jobs, None, collate)
            return
    make = Evaluated(source.contents, preprocessing, fast, _annotations(source), max_pixels)
    batches = _read_pictures(source, make, jobs, collate=collate, workers=workers, bad=bad)
    with closing(batches):
        yield from filter(len, batches)


def _repeat_views(ids: np.ndarray, views: int) -> np.ndarray:
    """Repeats every row (B, 3) for consecutive views of its sample: (B V, 3)."""
    rows = ids.repeat(views, axis=0)
    rows[:, 2] = rows[:, 2] * views + np.tile(np.arange(views), len(ids))
    return rows


def _check_channels(source: Source, channels: int) -> None:
    if (found := source.images.shape[3]) != channels:
        fact = f"the images have {found} channels, but the model requires {channels}"
        raise DataError(fact, f"give images with {channels} channels, or a model for these images")


def _read_arrays(
    source: Source, jobs: Iterable[np.ndarray], device: torch.device | None, collate: Collate
) -> Generator[Batch, None, None]:
    """Yields batches of a source of arrays, unchanged."""
    images, kept = source.images, None
    if device is not None and device.type != "cpu" and images.nbytes <= DEVICE_BYTES:
        kept = torch.tensor(images, device=device)  # (n, H, W, C)
    annotations, size = _annotations(source), images.shape[1:3]
    for ids in jobs:
        rows = ids[:, 1]
        pixels = torch.from_numpy(images[rows]) if kept is None else kept[to_device(rows, kept.device)]
        maps = None if annotations is None else [annotations.read_map(row, size) for row in rows.tolist()]
        frames = Frames.whole(len(ids), size)
        yield _make_batch(source, pixels.permute(0, 3, 1, 2).contiguous(), ids, frames, collate, maps)


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
    """Yields batches of pictures that are prepared in this process or in workers, without bad images."""
    here = fetched(source.contents, partial(make_all, make))
    if workers:
        pool = Workers(make, workers, source.keys)
        work = partial(_stack_pictures, fetched(source.contents, pool.prepare), views=views)
        results = in_order(work, jobs, threads=workers, close=pool.close)
    elif users or isinstance(source.contents, UserDataset):
        results = (_stack_pictures(here, ids, views=views) for ids in jobs)
    else:
        results = in_order(partial(_stack_pictures, here, views=views), jobs, threads=1)
    with closing(results):
        for ids, images, frames, maps, reasons in results:
            by_sample = ids.reshape(-1, views, 3)
            for place in sorted(reasons):
                bad(source.keys[by_sample[place, 0, 1]], reasons[place])
            kept = np.delete(by_sample, list(reasons), axis=0).reshape(-1, 3)
            pixels, *local = map(torch.from_numpy, images)
            batch = _make_batch(source, pixels, kept, frames, collate, maps)
            yield replace(batch, local=local[0]) if local else batch


def _stack_pictures(
    make: Callable[[np.ndarray], AbstractContextManager[list[Made]]], ids: np.ndarray, *, views: int
) -> tuple[np.ndarray, list[np.ndarray], Frames, list[np.ndarray | None], dict[int, str]]:
    """Returns the ids of a job, its valid pictures (B, C, H, W) of each size, their frames and maps of classes, and the reasons
    of bad samples by index in the job.
    """
    with make(ids) as made:
        rows = [(row // views, picture) for row, picture in enumerate(made)]
        # in reverse, so that a sample has the reason of its first bad view
        reasons = {sample: reason for sample, reason in reversed(rows) if isinstance(reason, str)}
        pictures = [picture for sample, picture in rows if sample not in reasons and isinstance(picture, Picture)]
        pixels = [picture.pixels for picture in pictures]
        if len({image.dtype for image in pixels}) > 1:  # a user's Dataset may return either type
            pixels = [image if image.dtype == np.float32 else image / np.float32(255) for image in pixels]
        shapes = list(dict.fromkeys(image.shape for image in pixels))  # two with local views, which come last
        images = [np.stack([image for image in pixels if image.shape == shape]) for shape in shapes]
        images = images or [np.zeros((0, 0, 0, 0), np.uint8)]
        maps = [None if picture.map is None else picture.map.copy() for picture in pictures]
        return ids, images, Frames.of(pictures), maps, reasons


def _annotations(source: Source) -> Annotations | None:
    return source.targets if isinstance(source.targets, Annotations) else None


def _make_batch(
    source: Source,
    images: Tensor,
    ids: np.ndarray,
    frames: Frames,
    collate: Collate,
    maps: Sequence[np.ndarray | None] | None,
) -> Batch:
    rows = ids[:, 1]
    targets: Any = torch.full((len(rows),), -1)
    if source.labelled:
        annotations = _annotations(source)
        has_maps = annotations is not None and annotations.pixel_format is not None
        targets = collate(maps if has_maps else source.targets[rows])
    return Batch(images, targets, [source.keys[row] for row in rows.tolist()], ids, frames)
