"""Sources: where pictures and their targets come from, whatever their layout; `open_data` finds out which it is.

Axes: n items, H, W, C as an image has them, K classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from vitrail.data.sources.contents import Arrays, Contents, Strings
from vitrail.data.sources.labels import counts
from vitrail.errors import DataError


@dataclass(frozen=True, eq=False)
class Item:
    """One example: the bytes of an image file, or an array (H, W, C) uint8 or float32; its target; and its name."""

    content: bytes | np.ndarray
    target: int | np.ndarray | None  # the number of a class; (K,) float32 of zeros and ones; None: unlabelled
    key: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Examples by number. Small to pickle, opens files as they are read, and is never changed."""

    contents: Contents
    targets: np.ndarray  # (n,) int64, or (n, K) float32; (0,) where unlabelled
    classes: tuple[str, ...] = ()
    multi_label: bool = False

    def __len__(self) -> int:
        return len(self.contents.keys)

    @property
    def keys(self) -> Strings:
        """A name for each item: its path relative to the root of the data, or e.g. "train.parquet#17"."""
        return self.contents.keys

    @property
    def kind(self) -> Literal["files", "arrays"]:
        """`arrays`: all images are in memory, of one size. `files`: each is read, and mostly decoded, when needed."""
        return self.contents.kind

    @property
    def images(self) -> np.ndarray:
        """All images (n, H, W, C) of a source whose kind is `arrays`."""
        assert isinstance(self.contents, Arrays), "only a source of arrays has its images in memory"
        return self.contents.images

    @property
    def labelled(self) -> bool:
        return len(self.targets) > 0

    def read(self, index: int) -> Item:
        """One item. Raises `BadImage` where it cannot be read; decoding comes later."""
        index = range(len(self))[index]
        target = self.targets[index] if self.labelled else None
        if isinstance(target, np.integer):
            target = int(target)
        return Item(self.contents[index], target, self.keys[index])

    def subset(self, indices: Sequence[int] | np.ndarray) -> Source:
        """The items of these numbers, in this order."""
        rows = np.asarray(indices, np.int64)
        targets = self.targets[rows] if self.labelled else self.targets
        return replace(self, contents=self.contents.take(rows), targets=targets)

    def pick(self, keys: Sequence[str]) -> Source:
        """The items of these keys, e.g. those that a run recorded as held out. Raises `DataError` for one not there."""
        number = {key: index for index, key in enumerate(self.keys)}
        if missing := [key for key in keys if key not in number]:
            fact = f"{len(missing):,} of {len(keys):,} recorded images are not in the data, e.g. {missing[0]!r}"
            raise DataError(fact, "give the data that the record was made of")
        return self.subset([number[key] for key in keys])

    def counts(self) -> np.ndarray:
        """How many items each class has: (K,) int64."""
        return counts(self.targets, len(self.classes))


@dataclass(frozen=True, kw_only=True)
class Splits:
    """What data hold. Data that do not say which split they are count as train."""

    train: Source | None = None
    val: Source | None = None
    test: Source | None = None
    classes: tuple[str, ...] = ()
    layout: str = ""  # what was found, in words
    held_out: bool = False  # val was carved out of train here
    seed: int = 0  # of that carving


def fingerprint(source: Source) -> str:
    """SHA-256 of the keys of a source, in sorted order: tells whether two parts hold the same images."""
    return hashlib.sha256("\n".join(sorted(map(str, source.keys))).encode()).hexdigest()


def parts_of(splits: Splits) -> dict[str, Source]:
    """The splits that are there, by name."""
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    return {name: part for name, part in parts.items() if part is not None}


def describe_data(splits: Splits) -> str:
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in parts_of(splits).items())
    shown = ", ".join(splits.classes[:8]) + (", ..." if len(splits.classes) > 8 else "")
    held = f" (val held out of train{', stratified' if splits.classes else ''})" if splits.held_out else ""
    classes = f"{len(splits.classes)}: {shown}" if splits.classes else "none: the images have no labels"
    return f"data     {splits.layout}: {sizes}{held}\nclasses  {classes}"


def choose_split(splits: Splits, asked: str | None = None) -> tuple[str, Source]:
    """The split asked for, else test, else val, else everything. Raises `DataError` where it is not there."""
    there = {
        name: part for name in ("test", "val", "train") if (part := getattr(splits, name)) is not None and len(part)
    }
    if asked is not None:
        if asked not in there:
            raise DataError(f"there is no split {asked!r} in the data", f"choose one of: {', '.join(there)}")
        return asked, there[asked]
    if not there:
        raise DataError("the data hold no images", "see `vitrail data check`")
    return next(iter(there.items()))
