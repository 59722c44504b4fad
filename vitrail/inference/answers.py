"""Answers and features of images one by one: what `vitrail predict` and `vitrail embed` compute."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.analysis.pictures import to_rgb, to_uint8
from vitrail.data.loader import Bad
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.files import make_folder, replace_file
from vitrail.images.decode import MODES, BadImage, decode
from vitrail.inference.inputs import name_files
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import run_model
from vitrail.runtime.progress import ProgressBar
from vitrail.tasks.answer import Answer
from vitrail.tasks.dense.answer import PlacedAnswer
from vitrail.tasks.task import Task

QUALITY = 90  # of JPEGs with answers drawn on them


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
    fast: bool = False,
    spans: Iterable[range] | None = None,
    draw: Callable[[int, Answer], None] | None = None,
) -> Generator[tuple[int, Answer]]:
    """Yields the place in the source and the answer for each image that can be read, in the order of ``source``.

    Args:
        wanted: what `choose_decode_options` returns.
        spans: the images to answer for, as `run_model` takes them.
        draw: called with each place and answer.
    """
    with ProgressBar("predicting", len(source), quiet=options.quiet) as progress:
        for batch, outputs in run_model(task, source, options, bad=bad, fast=fast, progress=progress, spans=spans):
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
