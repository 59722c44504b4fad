"""Explanations of predictions, as pictures in the resolution of the image and as numbers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.analysis.explanation import (
    ExplainOptions,
    Explanation,
    PreparedImage,
    draw_heads,
    explain_image,
    prepare_image,
    resolve_options,
)
from vitrail.analysis.render import find_light_range, overlay, save_png
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.files import dump_json, make_folder, replace_file
from vitrail.images.decode import BadImage
from vitrail.inference.inputs import find_inputs, name_files
from vitrail.inference.options import InferenceOptions
from vitrail.inference.results import Results
from vitrail.runtime.device import in_precision
from vitrail.runtime.progress import LogFunction, ProgressBar, to_stderr
from vitrail.tasks import Task
from vitrail.tasks.dense.answer import Subject
from vitrail.text import plural


def explain_inputs(
    model: str | Path | Task,
    inputs: Sequence[str],
    out: Path,
    *,
    options: ExplainOptions = ExplainOptions(),
    inference: InferenceOptions = InferenceOptions(),
    log: LogFunction = to_stderr,
) -> Results[Explanation]:
    """Explains one image after another and writes into the folder ``out``: ``NAME.METHOD.png``, the picture lit by what
    counts; ``NAME.heads.png``, all heads of the layer; ``NAME.METHOD.npz``, the numbers; and at the end ``METHOD.json``.
    """
    task = inference.load(model, log)
    images = find_inputs(inputs)
    options = resolve_options(task, options)
    make_folder(out)
    bad = inference.record_bad(images.source, out / "bad_images.csv")
    explanations = _explain_each(task, images.source, bad, out, options, inference, log)
    return Results(explanations, images, bad, done="explained", log=log)


def _explain_each(
    task: Task,
    source: Source,
    bad: BadImages,
    out: Path,
    options: ExplainOptions,
    inference: InferenceOptions,
    log: LogFunction,
) -> Iterator[tuple[int, Explanation]]:
    rows: list[dict[str, Any]] = []
    names = name_files(list(map(str, source.keys)))
    with ProgressBar("explaining", len(source), quiet=inference.quiet) as show:
        for place, prepared in prepare_inputs(task, source, bad, inference.max_pixels):
            key = str(source.keys[place])
            with in_precision(inference.precision, prepared.images.device):
                explanation = explain_image(task, key, prepared, options, inference.batch)
            files = _write(out, names[key], explanation, prepared.picture, options)
            rows.append({**explanation.row(), **files, "box": [round(length, 3) for length in explanation.box]})
            yield place, replace(explanation, files=files)
            show.update(len(rows))
    if not rows:
        return
    chosen = {"patch": options.patch or "centre"} if options.method == "similarity" else {}
    facts = {"method": options.method, "layer": options.layer, "head": options.head, **chosen, "images": rows}
    replace_file(out / f"{options.method}.json", dump_json(facts))
    log(f"written  {out}: {plural(len(rows), 'image')}")


def prepare_inputs(model: Task, source: Source, bad: BadImages, max_pixels: int) -> Iterator[tuple[int, PreparedImage]]:
    """Yields the place of each image that can be read and the image, one by one: each may have any size."""
    for place in range(len(source)):
        try:
            prepared = prepare_image(model, source.read(place).content, max_pixels=max_pixels)
        except BadImage as error:
            bad(str(source.keys[place]), error.reason)
            continue
        yield place, prepared


def _write(
    out: Path, name: str, explanation: Explanation, picture: np.ndarray, options: ExplainOptions
) -> dict[str, str]:
    """Writes what belongs to one image; returns the names of the files by what they are."""
    files = {"overlay": f"{name}.{options.method}.png", "numbers": f"{name}.{options.method}.npz"}
    light = {"reach": explanation.reach, "range": find_light_range(explanation.heat)}
    lit = overlay(picture, explanation.heat, box=explanation.box, **light)
    if isinstance(explanation.answer, Subject):
        lit = np.asarray(explanation.answer.draw_over(Image.fromarray(lit)))
    save_png(out / files["overlay"], lit)
    numbers = {"heat": explanation.heat, "box": np.array(explanation.box), "reach": np.array(explanation.reach)}
    if explanation.heads is not None:
        numbers["heads"] = explanation.heads
        files["heads"] = f"{name}.heads.png"
        save_png(out / files["heads"], draw_heads(picture, explanation, options))
        if options.method == "attention" and options.head == "all":
            for head, heat in enumerate(explanation.heads):
                light = {"reach": explanation.heads_reach, "range": find_light_range(heat)}
                lit = overlay(picture, heat, box=explanation.box, **light)
                save_png(out / f"{name}.attention.head{head}.png", lit)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **numbers)
    replace_file(out / files["numbers"], buffer.getvalue())
    return files
