"""Data whose classes are not the model's: each stands for one or several of them, as ObjectNet's for ImageNet's.

Axes: n items, D classes of the data, K of the model.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitrail.data.imagenet import index_classes
from vitrail.data.sources.labels import BETWEEN
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.untrusted.files import read_text


def read_class_map(file: Path) -> dict[str, list[str]]:
    """The classes of the model by class of the data, from CSV lines ``class of the data,class of the model``, without a header.

    Several classes of the model stand on several lines, or on one, separated by `;`. Raises `ConfigError`.
    """
    try:
        rows = [row for row in csv.reader(read_text(file).splitlines()) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"the class map {file} cannot be read: {error}", "give a CSV file") from error
    mapping: dict[str, list[str]] = {}
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            remedy = "write `class of the data,class of the model`; quote names that contain a comma"
            raise ConfigError(f"{file}: row {number} has {len(row)} fields", remedy)
        known = mapping.setdefault(row[0].strip(), [])
        known += [name for part in row[1].split(BETWEEN) if (name := part.strip())]
    return mapping


def map_classes(source: Source, mapping: Mapping[str, Sequence[str]], classes: Sequence[str]) -> Source:
    """The items of ``source`` whose class is in ``mapping``, with targets among ``classes`` of a model.

    Where every class of the data stands for one of the model, items keep one label; else all labels of an item are acceptable.
    Raises `ConfigError` for a class that the model does not have, and `DataError` if no item has a class of the mapping.
    """
    number = index_classes(classes)
    stands_for = np.zeros((len(source.classes), len(classes)), np.float32)  # (D, K)
    for row, name in enumerate(source.classes):
        for wanted in mapping.get(name, ()):
            if wanted not in number:
                raise ConfigError(f"the class map names {wanted!r}, no class of the model", nearest(wanted, classes))
            stands_for[row, number[wanted]] = 1
    mapped = stands_for.sum(1) > 0  # (D,)
    kept = np.flatnonzero((source.labels > 0) @ mapped if source.multi_label else mapped[source.labels])
    if not len(kept):
        remedy = f"its names are matched with those of the data: {', '.join(source.classes[:5])}, ..."
        raise DataError("none of the images has a class of the class map", remedy)
    source = source.subset(kept)
    if source.multi_label:
        targets = (source.labels @ stands_for > 0).astype(np.float32)  # (n, K)
    elif stands_for.sum(1).max() == 1:
        targets = stands_for.argmax(1)[source.labels]  # (n,)
    else:
        targets = stands_for[source.labels]  # (n, K)
    return replace(source, targets=targets, classes=tuple(classes), multi_label=targets.ndim == 2)
