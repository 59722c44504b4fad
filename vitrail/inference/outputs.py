"""A model applied to the images of a source: batches are read, normalised and computed in one loop, `run_model`; the answers and
features that `vitrail predict` and `vitrail embed` give are made of its outputs.

B images, C channels, H and W their size, V views of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.analysis.render import to_rgb, to_uint8
from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Bad, Batch, eval_batches, stop_at_bad
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.data.windows import Windows
from vitrail.errors import ConfigError, DataError
from vitrail.files import make_folder, replace_file
from vitrail.images.decode import MODES, BadImage, decode
from vitrail.inference.inputs import name_files
from vitrail.inference.options import InferenceOptions
from vitrail.inference.views import average_views
from vitrail.models.backbone import device_of
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.progress import ProgressBar
from vitrail.tasks.answer import Answer
from vitrail.tasks.dense.answer import PlacedAnswer
from vitrail.tasks.task import WINDOWS, Task, choose_windows

Change = Callable[[Tensor, np.ndarray], Tensor]  # pictures (B, C, H, W) uint8 and their numbers (B,) -> (B, C, H, W)
QUALITY = 90  # of JPEGs with answers drawn on them


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
    compute = compute if options.tta is None else average_views(compute, options.tta)
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
    """Returns the batches of `eval_batches` with ``options``; one picture each where it is cut into windows.

    Targets that are not those of the model's task, such as classes of images for a detector, are left out.
    """
    try:
        model.targets.check(source, model.name)
    except DataError:
        source = source.drop_targets()
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


class Embedding(NamedTuple):
    """The features (D,) float32 of one image; ``key`` names it."""

    key: str
    features: np.ndarray

    def row(self) -> dict[str, Any]:
        return {"path": self.key, "features": self.features}


def check_fast(fast: bool, options: InferenceOptions) -> None:
    """Raises `ConfigError` for ``fast`` together with a zoom."""
    if fast and options.zoom != 1:
        what = f"zoom is {options.zoom:g}, and fast decodes large pictures at a reduced scale"
        raise ConfigError(what, "leave one of them out")


def answer_images(
    task: Task,
    source: Source,
    options: InferenceOptions,
    wanted: Mapping[str, Any],
    *,
    bad: Bad,
    verb: Callable[[Tensor], Tensor] | None = None,
    fast: bool = False,
    spans: Iterable[range] | None = None,
    draw: Callable[[int, Answer], None] | None = None,
) -> Generator[tuple[int, Answer]]:
    """Yields the place in the source and the answer for each image that can be read, in the order of ``source``.

    Args:
        wanted: what `choose_decode_options` returns.
        verb: computes the outputs, as `run_model` takes it.
        spans: the images to answer for, as `run_model` takes them.
        draw: called with each place and answer.
    """
    with ProgressBar("predicting", len(source), quiet=options.quiet) as progress:
        how: Any = {"verb": verb, "bad": bad, "fast": fast, "progress": progress, "spans": spans}
        for batch, outputs in run_model(task, source, options, **how):
            # an answer that lies in a picture may have its size, so there is one of these at a time
            for rows in np.array_split(np.arange(len(batch)), len(batch) if task.draws_answers else 1):
                answers = task.decode(outputs[rows], batch.frames.take(rows), **wanted)
                for row, answer in zip(rows, answers):
                    place = int(batch.ids[row, 1])
                    answer = replace(answer, key=batch.keys[row])
                    if draw is not None:
                        draw(place, answer)
                    yield place, answer


def prepare_drawing(
    source: Source, out: Path, preprocessing: Preprocessing, max_pixels: int
) -> Callable[[int, Answer], None]:
    """Returns a function that writes the picture of an answer into the folder ``out``."""
    make_folder(out)
    names = name_files(list(map(str, source.keys)))

    def draw(place: int, answer: Answer) -> None:
        assert isinstance(answer, PlacedAnswer)
        file = BytesIO()
        content = source.contents[place]
        if isinstance(content, bytes):
            content = _decode_to_draw(answer.key, content, preprocessing, max_pixels)
        answer.draw(content).save(file, "JPEG", quality=QUALITY, subsampling=0)
        replace_file(out / f"{names[answer.key]}.drawn.jpg", file.getvalue())

    return draw


def _decode_to_draw(key: str, content: bytes, preprocessing: Preprocessing, max_pixels: int) -> Image.Image:
    """Decodes an image file for a person: of more than 8 bits or four bands what the model sees, in RGB."""
    try:
        if preprocessing.pixel_range is None and preprocessing.channels in MODES:
            return Image.fromarray(np.asarray(decode(content, max_pixels=max_pixels)))
        pixels = np.asarray(preprocessing.decode(content, max_pixels=max_pixels))
    except BadImage as error:
        raise DataError(f"{key} cannot be drawn: {error.reason}", "leave --overlay out") from error
    return Image.fromarray(np.ascontiguousarray(to_rgb(to_uint8(pixels))))


def embed_images(
    task: Task, source: Source, options: InferenceOptions, *, bad: Bad, spans: Iterable[range] | None = None
) -> Generator[tuple[int, Embedding]]:
    """Yields the place in the source and the features of each image that can be read; arguments as of `answer_images`."""
    with ProgressBar("embedding", len(source), quiet=options.quiet) as progress:
        how = {"bad": bad, "progress": progress, "spans": spans}
        for batch, features in run_model(task, source, options, verb=task.features, **how):
            yield from zip(batch.ids[:, 1].tolist(), map(Embedding, batch.keys, features.cpu().numpy()))
