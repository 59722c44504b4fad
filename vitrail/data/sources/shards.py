"""Tar shards with an index, as `vitrail data shard` and `vitrail data index` write it.

The images of a set that vitrail wrote have the order and the names that they had before, so a training on it is, bit for bit,
the training on the original.

Axes: n images, K classes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from glob import has_magic
from hashlib import blake2b
from pathlib import Path
from typing import Literal, overload

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources.contents import Strings
from vitrail.data.sources.labels import SPLIT_ORDER, SPLITS, Labels, RawSplit
from vitrail.errors import DataError
from vitrail.shards.index import ShardIndex, has_index, open_index

BLOCK = 2**16  # names that are read at a time


class ShardKeys(Strings):
    """The names of images in an index, which stay on the disk."""

    def __init__(self, index: ShardIndex, rows: np.ndarray | None) -> None:
        self.shards, self.rows = index, rows

    def load(self) -> Strings:
        return Strings(self)

    def __len__(self) -> int:
        return self.shards.images if self.rows is None else len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return next(self._read(np.array([place if self.rows is None else self.rows[place]])))

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            last = min(first + BLOCK, len(self))
            yield from self._read(np.arange(first, last) if self.rows is None else self.rows[first:last])

    def _read(self, rows: np.ndarray) -> Iterator[str]:
        ends, names = self.shards.mapped.name_ends, self.shards.mapped.names.data
        starts = np.where(rows > 0, ends[rows - 1], 0).tolist()
        return (str(names[start:end], "utf-8") for start, end in zip(starts, ends[rows].tolist()))

    def take(self, rows: np.ndarray) -> ShardKeys:
        return ShardKeys(self.shards, rows if self.rows is None else self.rows[rows])


@dataclass(frozen=True, eq=False)
class ShardImages:
    """Images in tar shards; ``rows`` (n,) int64 are those of the index, None stands for all."""

    index: ShardIndex
    rows: np.ndarray | None = None
    kind: Literal["files"] = "files"
    units: None = None

    @property
    def keys(self) -> ShardKeys:
        return ShardKeys(self.index, self.rows)

    def __getitem__(self, row: int) -> bytes:
        try:
            return self.index.read(row if self.rows is None else int(self.rows[row]))
        except OSError as error:
            raise BadImage(f"its shard cannot be read: {error.strerror}: {error.filename}") from error
        except ValueError as error:
            raise BadImage(str(error)) from error

    def take(self, rows: np.ndarray) -> ShardImages:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def fingerprints(self) -> list[Hashable]:
        """Length and CRC-32; for images that have both in common also a hash of the content."""
        tables, rows = self.index.mapped, slice(None) if self.rows is None else self.rows
        brief = list(zip(tables.lengths[rows].tolist(), tables.checksums[rows].tolist()))
        occurrences = Counter(brief)
        return [pair if occurrences[pair] == 1 else (pair, self._hash(row)) for row, pair in enumerate(brief)]

    def _hash(self, row: int) -> Hashable:
        try:
            return blake2b(self[row], digest_size=12).digest()
        except BadImage:
            return row


def find_shards(path: Path) -> dict[str, Path] | None:
    """The indexed folders of shards at a folder, by split, or the folder itself under ""; None if there are none."""
    if has_index(path):
        return {"": path}
    inside = sorted(path.iterdir()) if path.is_dir() else []
    found = {SPLITS[name]: folder for folder in inside if (name := folder.name.lower()) in SPLITS and has_index(folder)}
    return {split: found[split] for split in SPLIT_ORDER if split in found} or None


def read_shards(folders: dict[str, Path]) -> tuple[str, dict[str, RawSplit]]:
    """A description of the layout, and the splits, of what `find_shards` found.

    Raises:
        DataError: an index is damaged; only some shards of a folder are named after a split.
    """
    if "" in folders:
        return _read_folder(folders[""], "*")
    splits = {split: _read_split(ShardImages(open_index(folder))) for split, folder in folders.items()}
    return f"tar shards in {', '.join(splits)}", splits


def read_shard_pattern(pattern: Path) -> tuple[str, dict[str, RawSplit]]:
    """The same for the shards of one folder whose names match a pattern, as ``shards/train-*.tar``, or for one archive.

    Raises `DataError` as `read_shards` does, and where nothing matches or the shards have no index.
    """
    folder = pattern.parent
    if has_magic(str(folder)):
        raise DataError(f"the pattern {pattern} has a '*' in the name of a folder", "give one folder of shards")
    if not has_index(folder):
        if folder.is_dir() and any(folder.glob(pattern.name)):
            raise missing_index(folder)
        raise DataError(f"no file matches {str(pattern)!r}", "quote the pattern, and check the folder")
    return _read_folder(folder, pattern.name)


def missing_index(folder: Path) -> DataError:
    """The error for tar archives without an index."""
    remedy = f"vitrail data index {folder}, which reads them once and writes it"
    return DataError(f"the tar archives in {folder} have no index of their images", remedy)


def _read_folder(folder: Path, pattern: str) -> tuple[str, dict[str, RawSplit]]:
    """The shards in a folder whose names match; the names give the splits, as in ``cifar10-train-000000.tar``."""
    index = open_index(folder)
    chosen = [number for number, shard in enumerate(index.shards) if fnmatch(shard.name, pattern)]
    if not chosen:
        what = f"none of the {len(index.shards):,} shards in {folder} matches {pattern!r}"
        raise DataError(what, f"the first is {index.shards[0].name!r}" if index.shards else "the index is empty")
    by_split: dict[str, list[int]] = {}
    for number in chosen:
        by_split.setdefault(_split_of(index.shards[number].name), []).append(number)
    if "" in by_split and len(by_split) > 1:
        example, named = (index.shards[by_split[split][0]].name for split in ("", max(by_split)))
        raise DataError(f"{named!r} in {folder} names a split, and {example!r} does not", "rename or move one of them")
    layout = f"{len(chosen):,} tar shard{'s' if len(chosen) > 1 else ''}"
    if len(chosen) == len(index.shards) and len(by_split) == 1:
        return layout, {next(iter(by_split)) or "train": _read_split(ShardImages(index))}
    of = index.find_shards(slice(None))
    splits = {
        split or "train": _read_split(ShardImages(index, np.flatnonzero(np.isin(of, by_split[split]))), by_split[split])
        for split in sorted(by_split, key=("", *SPLIT_ORDER).index)
    }
    return layout + (f" for {', '.join(splits)}" if "" not in by_split else ""), splits


def _split_of(name: str) -> str:
    """The split that a word in the name of an archive stands for; empty if none does, or several do."""
    found = {SPLITS[word] for word in re.split(r"[-_.]", Path(name).stem.lower()) if word in SPLITS}
    return found.pop() if len(found) == 1 else ""


def _read_split(images: ShardImages, shards: list[int] | None = None) -> RawSplit:
    index, targets = images.index, images.index.mapped.targets
    notes = index.find_faults(range(len(index.shards)) if shards is None else shards)
    if targets is None:
        return RawSplit(images, None, tuple(notes))
    values = targets if images.rows is None else targets[images.rows]
    values = values.astype(np.float32) if values.ndim == 2 else values
    return RawSplit(images, Labels(index.classes, values, declared=True), tuple(notes))
