"""Pictures of a data set with its annotation, for `vitrail data check --out`."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.analysis.render import to_rgb, to_uint8
from vitrail.data.sources.annotations import Objects, PixelMaps
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.deep_files import open_deep
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, list_splits
from vitrail.errors import ConfigError, DataError
from vitrail.files import make_folder, replace_file
from vitrail.images.decode import BadImage
from vitrail.inference.inputs import name_files
from vitrail.runtime.progress import LogFunction
from vitrail.tasks.dense.drawing import draw_annotation, scale_to_show
from vitrail.tasks.user_images import open_image
from vitrail.text import plural

SIDE, QUALITY = 1280, 90  # pixels of the longer side of a picture that is written, and of its JPEG


def draw_data(data: Any, out: Path, samples: int, log: LogFunction, task: str | None = None) -> None:
    """Writes ``out/SPLIT/NAME.jpg``: ``samples`` pictures of each split, spread evenly over it, with their annotation.

    It is that for ``task``, as `open_data` takes it, or as far as the data have it. Raises `ConfigError` for ``samples`` below 1,
    and `DataError` for data without boxes and masks.
    """
    if samples < 1:
        raise ConfigError(f"samples is {samples}", "ask for at least one picture of each split")
    how = {"validation": 0, "labelled": False}
    try:
        opened = open_data(data, task=task, **how)
    except DataError:  # which the check reports
        opened = open_data(data, **how)
    splits = list_splits(open_deep(opened))
    annotated = {
        name: part for name, part in splits.items() if isinstance(part.targets, Objects | PixelMaps) and len(part)
    }
    if not annotated:
        what = "the data have no boxes and no masks, so there is nothing to draw"
        raise DataError(what, "leave --out out, or give --model for a page of labels that may be wrong")
    for name, source in annotated.items():
        make_folder(out / name)
        drawn = draw_split(source, out / name, samples)
        log(f"drawn    {out / name}: {plural(drawn, 'picture')} of {len(source):,}; look whether the annotation fits")


def draw_split(source: Source, folder: Path, samples: int) -> int:
    """Writes the pictures of one split; returns their number. Those that cannot be read are left out: `check` names them."""
    rows = choose_evenly(len(source), samples).tolist()
    names, drawn = name_files([str(source.keys[row]) for row in rows]), 0
    for row in rows:
        try:
            item = source.read(row)
            content = item.content
            if isinstance(content, np.ndarray):
                picture = Image.fromarray(np.ascontiguousarray(to_rgb(to_uint8(content))))
            else:
                picture = open_image(content)
            assert isinstance(source.targets, Objects | PixelMaps)
            source.targets.read_map(row, (picture.height, picture.width))  # raises for a size that does not fit
        except BadImage:
            continue
        shown, file = scale_to_show(picture, SIDE), BytesIO()
        annotated = draw_annotation(shown, item.target, source.classes, (picture.height, picture.width))
        annotated.save(file, "JPEG", quality=QUALITY, subsampling=0)
        replace_file(folder / f"{names[str(source.keys[row])]}.jpg", file.getvalue())
        drawn += 1
    return drawn
