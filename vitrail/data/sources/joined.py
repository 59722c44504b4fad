"""Two sources as one, e.g. the training and the validation split of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vitrail.data.sources.contents import Arrays, Contents, Files, Strings
from vitrail.data.sources.source import Source
from vitrail.errors import DataError


@dataclass(frozen=True, eq=False)
class Joined(Contents):
    """Items of several contents; ``parts`` (n,) and ``rows`` (n,) say where each item is."""

    contents: tuple[Contents, ...]
    parts: np.ndarray
    rows: np.ndarray
    keys: Strings

    def __getitem__(self, row: int) -> bytes | np.ndarray:
        return self.contents[self.parts[row]][int(self.rows[row])]

    def take(self, rows: np.ndarray) -> Joined:
        return Joined(self.contents, self.parts[rows], self.rows[rows], self.keys.take(rows))


def join_sources(first: Source, second: Source) -> Source:
    """The items of two sources with the same classes, the first ones first.

    Raises `DataError` for images in memory that differ in size or type.
    """
    assert (first.classes, first.multi_label) == (second.classes, second.multi_label), "the classes differ"
    targets = np.concatenate([first.labels, second.labels])
    return replace(first, contents=_join_contents(first.contents, second.contents), targets=targets)


def _join_contents(first: Contents, second: Contents) -> Contents:
    keys = Strings.join([first.keys, second.keys])
    match first, second:
        case Files(root=root), Files(root=other) if root == other:
            return Files(root, keys)
        case Arrays(images=images), Arrays(images=others):
            if (images.shape[1:], images.dtype) != (others.shape[1:], others.dtype):
                what = f"images of {images.shape[1:]} {images.dtype} and of {others.shape[1:]} {others.dtype}"
                raise DataError(f"the splits have {what}", "give all splits the same size and type")
            return Arrays(np.concatenate([images, others]), keys)
        case _:
            lengths = len(first.keys), len(second.keys)
            rows = np.concatenate([np.arange(length) for length in lengths])
            return Joined((first, second), np.repeat([0, 1], lengths), rows, keys)
