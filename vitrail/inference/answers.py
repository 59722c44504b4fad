"""Answers and features of images, batch by batch: what `vitrail predict` and `vitrail embed` compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.analysis.pictures import to_rgb, to_uint8
from vitrail.data.loader import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.files import make_folder, replace_file
from vitrail.images.decode import MODES, BadImage, decode
from vitrail.inference.inputs import name_files
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import Verb, outputs
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


Decoded = Iterator[tuple[list[str], list[Answer], list[int]]]  # keys, answers, and positions in the source


def decode_batches(task: Task, outputs: Iterator[tuple[Batch, Tensor]], wanted: Mapping[str, Any]) -> Decoded:
    """The answers for each batch; ``wanted`` is what `Task.answer_options` gives."""
    for batch, raw in outputs:
        # an answer in the coordinates of a picture may be as large as the picture, so there is one of these at a time
        for rows in np.array_split(np.arange(len(batch)), len(batch) if task.draws_answers else 1):
            keys = [batch.keys[row] for row in rows]
            answers = task.decode(raw[rows], batch.frames.take(rows), **wanted)
            yield keys, [replace(answer, key=key) for key, answer in zip(keys, answers)], batch.ids[rows, 1].tolist()


def draw_batches(batches: Decoded, source: Source, out: Path, preprocessing: Preprocessing, max_pixels: int) -> Decoded:
    """Passes the answers on, and writes each picture with its answer drawn on it to ``out``, as ``NAME.drawn.jpg``."""
    make_folder(out)
    names = name_files(list(map(str, source.keys)))
    for keys, answers, positions in batches:
        for key, answer, position in zip(keys, answers, positions):
            assert isinstance(answer, PlacedAnswer)
            file = BytesIO()
            content = source.contents[position]
            if isinstance(content, bytes):
                content = _decode_to_draw(key, content, preprocessing, max_pixels)
            answer.draw(content).save(file, "JPEG", quality=QUALITY, subsampling=0)
            replace_file(out / f"{names[key]}.drawn.jpg", file.getvalue())
        yield keys, answers, positions


def _decode_to_draw(key: str, content: bytes, preprocessing: Preprocessing, max_pixels: int) -> Image.Image:
    """An image file as a person looks at it: of images of more than 8 bits or four bands what the model sees, in RGB."""
    try:
        if preprocessing.pixel_range is None and preprocessing.channels in MODES:
            return Image.fromarray(np.asarray(decode(content, max_pixels=max_pixels)))
        pixels = np.asarray(preprocessing.decode(content, max_pixels=max_pixels))
    except BadImage as error:
        raise DataError(f"{key} cannot be drawn: {error.reason}", "leave --overlay out") from error
    return Image.fromarray(np.ascontiguousarray(to_rgb(to_uint8(pixels))))


@torch.inference_mode()
def compute_outputs(
    title: str,
    task: Task,
    verb: Verb | None,
    source: Source,
    options: InferenceOptions,
    bad: BadImages,
    *,
    fast: bool = False,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yields the outputs of each batch of the images that can be read, under a progress bar with ``title``."""
    with ProgressBar(title, len(source), quiet=options.quiet) as progress:
        yield from outputs(task, source, verb, options, bad=bad, fast=fast, progress=progress)
