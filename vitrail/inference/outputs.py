"""A model applied to the images of a source: batches are read, normalised and computed in one loop, `run_model`.

B images, C channels, H and W their size, V views of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Bad, Batch, eval_batches, stop_at_bad
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.data.windows import Windows
from vitrail.inference.options import InferenceOptions
from vitrail.models.backbone import device_of
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.progress import ProgressBar
from vitrail.tasks.task import WINDOWS, Task, choose_windows

Change = Callable[[Tensor, np.ndarray], Tensor]  # pictures (B, C, H, W) uint8 and their numbers (B,) -> (B, C, H, W)


def read_inputs(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    bad: Bad = stop_at_bad,
    preprocessing: Preprocessing | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yields every batch of ``source`` in order, and its images (B, C, H, W) as ``model`` takes them, on its device.

    Args:
        bad: called with the key of each bad image and the reason.
        preprocessing: in place of the model's own.
    """
    preprocessing, device = preprocessing or model.preprocessing, device_of(model)
    for batch in _read_batches(model, source, options, preprocessing, bad=bad):
        yield batch, preprocessing.normalise(batch.images.to(device))


@torch.inference_mode()
def run_model(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    verb: Callable[[Tensor], Tensor] | None = None,
    bad: Bad = stop_at_bad,
    fast: bool = False,
    change: Change | None = None,
    progress: ProgressBar | None = None,
    spans: Iterable[range] | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yields every batch of ``source`` in order, and what ``verb`` gives for its images, in fp32.

    ``options.precision`` and ``options.plan`` are those of the verb. With ``options.zoom`` every batch is a picture, and the
    outputs are what `DenseTask.join_windows` makes of those for its windows.

    Args:
        verb: by default the call of the model.
        bad: called with the key of each bad image and the reason.
        fast: decodes large JPEGs at a reduced scale.
        change: applied to the pictures before they are normalised.
        spans: the items to read, as `eval_batches` takes them.
    """
    windows, device, done = choose_windows(model, options.zoom), device_of(model), 0
    preprocessing = windows or model.preprocessing
    compute = partial(options.compute, verb or model)
    for batch in _read_batches(model, source, options, preprocessing, bad=bad, fast=fast, spans=spans):
        pictures = batch.images.to(device)  # (B, C, H, W), or (1, V, C, H, W) of windows
        if change is not None:
            pictures = change(pictures, batch.ids[:, 1])
        images = preprocessing.normalise(pictures)
        if windows is None:
            yield batch, compute(images)
        else:
            frames = Frames.of_windows(windows, batch.frames.pictures[0])
            parts = images[0].split(min(options.batch, WINDOWS))
            yield batch, model.join_windows(map(compute, parts), frames)  # type: ignore[not-callable]
        done += len(batch)
        if progress is not None:
            progress.update(done)


def _read_batches(
    model: Task, source: Source, options: InferenceOptions, preprocessing: Preprocessing | Windows, **how: Any
) -> Generator[Batch]:
    """Returns the batches of `eval_batches` with ``options``; one picture each where it is cut into windows."""
    size = 1 if isinstance(preprocessing, Windows) else options.batch
    how |= {"workers": options.workers, "collate": model.targets.collate, "max_pixels": options.max_pixels}
    return eval_batches(source, preprocessing, batch=size, **how)


def rows_of_rank(count: int, batch: int, ranks: Ranks) -> np.ndarray:
    """Returns which of ``count`` rows this rank computes, in rising order: whole batches of a single process, in turn."""
    rows = np.arange(count)
    return rows[rows // batch % ranks.world == ranks.rank]


def share_bad_images(noted: Mapping[str, str], source: Source, bad: Bad, ranks: Ranks) -> None:
    """Calls ``bad`` on every rank with the images that any of them ``noted`` (key to reason), in the order of the source.

    What ``bad`` raises on one rank is raised on all.
    """
    reasons = {key: reason for each in ranks.gather(dict(noted)) for key, reason in each.items()}
    with ranks.share_errors():
        for key in filter(reasons.__contains__, source.keys if reasons else ()):
            bad(key, reasons[key])
