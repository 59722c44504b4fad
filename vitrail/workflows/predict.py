"""`vitrail predict` and `vitrail embed`: answers for files, folders, globs, manifests or standard input, streamed to a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
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
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.files import make_folder, replace_file
from vitrail.images.decode import MODES, BadImage, decode
from vitrail.inference.inputs import find_inputs, name_files
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import Verb, outputs
from vitrail.inference.results import Results, build_rows
from vitrail.inference.tuning import tune
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tables import TABLES, open_table
from vitrail.tasks.answer import Answer
from vitrail.tasks.answer_files import AnswerFiles
from vitrail.tasks.dense.answer import PlacedAnswer
from vitrail.tasks.task import Task
from vitrail.text import plural

QUALITY = 90  # of JPEGs with answers drawn on them
INDEX = "index.csv"


class Embedding(NamedTuple):
    """The features (D,) float32 of one image; ``key`` names it."""

    key: str
    features: np.ndarray

    def row(self) -> dict[str, Any]:
        return {"path": self.key, "features": self.features}


def predict(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    top: int = 5,
    threshold: float | None = None,
    fast: bool = False,
    overlay: Path | None = None,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    say: Say = to_stderr,
) -> Results[Answer]:
    """Answers in the order of the inputs, computed batch by batch as they are taken.

    Args:
        threshold: the least score of an object; by default that of the detector.
        fast: decodes JPEGs at a reduced scale where the model's input is much smaller; pixels then differ slightly.
        overlay: a folder for the pictures with the answers drawn over them, ``NAME.drawn.jpg``.
    """
    task = options.load(model, classes, say)
    wanted = task.answer_options(top=top, threshold=threshold)
    if overlay is not None and not task.draws_answers:
        what = f"pictures of answers of the task {task.name}, which do not lie in the picture"
        raise ConfigError(what, "leave --overlay out; `vitrail explain` shows what an answer rests on")
    check_fast(fast, options)
    images = find_inputs(inputs)
    options = tune(options, task, say, images=len(images.source))
    bad = options.record_bad(images.source, bad_list)
    outputs = _compute_outputs(task, None, images.source, options, bad, fast=fast)
    batches = decode_batches(task, outputs, wanted)
    if overlay is not None:
        how = {"preprocessing": task.preprocessing, "max_pixels": options.max_pixels}
        batches = _draw_batches(batches, images.source, overlay, **how)
    answers = ((keys, answers) for keys, answers, _ in batches)
    return Results(answers, images, bad, done="predicted", say=say, task=task)


def check_fast(fast: bool, options: InferenceOptions) -> None:
    """Raises `ConfigError` for ``fast`` together with a zoom."""
    if fast and options.zoom != 1:
        what = f"zoom is {options.zoom:g}, and fast decodes large pictures at a reduced scale"
        raise ConfigError(what, "leave one of them out")


Decoded = Iterator[tuple[list[str], list[Answer], list[int]]]  # keys, answers, and places in the source


def decode_batches(task: Task, outputs: Iterator[tuple[Batch, Tensor]], wanted: Mapping[str, Any]) -> Decoded:
    """The answers for each batch; ``wanted`` is what `Task.answer_options` gives."""
    for batch, raw in outputs:
        # an answer that lies in a picture may have its size, so there is one of these at a time
        for rows in np.array_split(np.arange(len(batch)), len(batch) if task.draws_answers else 1):
            keys = [batch.keys[row] for row in rows]
            answers = task.decode(raw[rows], batch.frames.take(rows), **wanted)
            yield keys, [replace(answer, key=key) for key, answer in zip(keys, answers)], batch.ids[rows, 1].tolist()


def _draw_batches(
    batches: Decoded, source: Source, out: Path, *, preprocessing: Preprocessing, max_pixels: int
) -> Decoded:
    make_folder(out)
    names = name_files(list(map(str, source.keys)))
    for keys, answers, places in batches:
        for key, answer, place in zip(keys, answers, places):
            assert isinstance(answer, PlacedAnswer)
            file = BytesIO()
            content = source.contents[place]
            if isinstance(content, bytes):
                content = _decode_to_draw(key, content, preprocessing, max_pixels)
            answer.draw(content).save(file, "JPEG", quality=QUALITY, subsampling=0)
            replace_file(out / f"{names[key]}.drawn.jpg", file.getvalue())
        yield keys, answers, places


def _decode_to_draw(key: str, content: bytes, preprocessing: Preprocessing, max_pixels: int) -> Image.Image:
    """An image file as a person looks at it: of images of more than 8 bits or four bands what the model sees, in RGB."""
    try:
        if preprocessing.pixel_range is None and preprocessing.channels in MODES:
            return Image.fromarray(np.asarray(decode(content, max_pixels=max_pixels)))
        pixels = np.asarray(preprocessing.decode(content, max_pixels=max_pixels))
    except BadImage as error:
        raise DataError(f"{key} cannot be drawn: {error.reason}", "leave --overlay out") from error
    return Image.fromarray(np.ascontiguousarray(to_rgb(to_uint8(pixels))))


def embed(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    classes: Path | None = None,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    say: Say = to_stderr,
) -> Results[Embedding]:
    """The key and features (D,) float32 of every image: what the network's pooling gives to its head."""
    task = options.load(model, classes, say)
    images = find_inputs(inputs)
    options = tune(options, task, say, images=len(images.source))
    bad = options.record_bad(images.source, bad_list)
    outputs = _compute_outputs(task, task.features, images.source, options, bad)
    batches = ((batch.keys, list(map(Embedding, batch.keys, features.cpu().numpy()))) for batch, features in outputs)
    return Results(batches, images, bad, done="embedded", say=say)


@torch.inference_mode()
def _compute_outputs(
    task: Task, verb: Verb | None, source: Source, options: InferenceOptions, bad: BadImages, *, fast: bool = False
) -> Iterator[tuple[Batch, Tensor]]:
    title = "predicting" if verb is None else "embedding"
    with ProgressBar(title, len(source), quiet=options.quiet) as progress:
        yield from outputs(task, source, verb, options, bad=bad, fast=fast, progress=progress)


def write_answers(results: Results[Answer], out: Path | None = None, kind: str | None = None) -> None:
    """Writes the answers for all images in a format of the model's task, or else as `write_rows` does.

    A folder also gets ``index.csv``: the rows of every image, with the name of its file.

    Args:
        out: the file or the folder; None for a table on stdout.
        kind: the format; by default that of the ending of ``out``, and for a folder that of the task.

    Raises:
        ConfigError: a format that the task does not have; a folder in which answers would replace images that were given.
        DataError: as `write_rows`.
    """
    task = results.task
    assert task is not None
    chosen = _choose_format(task, out, kind)
    if chosen is None:
        write_rows(results, out, kind)
        return
    if out is None:
        raise ConfigError(f"the format {kind} cannot be written to stdout", "give --out")
    names = name_files(list(map(str, results.images.source.keys)))
    is_folder = not chosen.suffix
    if is_folder:
        _check_apart(names, out, chosen.each)
    files = chosen(out, task.classes)
    with open_table(out / INDEX) if is_folder else nullcontext() as index:
        for row in build_rows(results, _write_each(results, files, names)):
            if index is not None:
                file = "" if row["error"] else names[row["path"]] + chosen.each
                index.write({"path": row["path"], "file": file, **row})
    files.close()
    results.say(f"written  {out}: {plural(results.count + len(results.failed), 'image')}")
    results.check()


def _choose_format(task: Task, out: Path | None, kind: str | None) -> type[AnswerFiles] | None:
    """The format that is named, or that of the ending of ``out``; None for a table."""
    if kind is not None:
        if kind in task.formats or kind in TABLES:
            return task.formats.get(kind)
        raise ConfigError(
            f"there is no format {kind!r} for the task {task.name}", nearest(kind, [*task.formats, *TABLES])
        )
    if out is None:
        return None
    suffix = "" if out.is_dir() else out.suffix.lower()
    return next((each for each in task.formats.values() if each.suffix == suffix), None)


def _check_apart(names: Mapping[str, str], out: Path, suffix: str) -> None:
    """Raises `ConfigError` if a file of an answer would replace an image."""
    given = {Path(key).resolve() for key in names}
    if replaced := sorted(given & {(out / f"{name}{suffix}").resolve() for name in names.values()}):
        what = f"{out} has images that the answers would replace, such as {replaced[0].name}"
        raise ConfigError(what, "give another folder")


def _write_each(
    results: Results[Answer], files: AnswerFiles, names: Mapping[str, str]
) -> Iterator[tuple[str, Answer | None]]:
    for key, answer in results.pairs():
        files.write(names[key], key, answer)
        yield key, answer


def write_rows(results: Results[Any], out: Path | None = None, kind: str | None = None) -> None:
    """Writes the rows of every image to the table ``out``, and says so, or to stdout; see `open_table` for the kinds.

    Raises `DataError` as `Results.check`, after the table is complete.
    """
    with open_table(out, kind) as table:
        for row in build_rows(results):
            table.write(row)
    if out is not None:
        results.say(f"written  {out}: {plural(results.count + len(results.failed), 'image')}")
    results.check()
