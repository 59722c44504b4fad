"""Tar shards with an index, as `vitrail data shard` and `vitrail data index` write it.

The images of a set that vitrail wrote have the order and the names that they had before, so a training on it is, bit for bit,
the training on the original. Axes: n images, K classes.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from functools import cached_property
from glob import has_magic
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from vitrail.checksums import sha256_of
from vitrail.data.sources.contents import Contents, StoredUnits, Strings
from vitrail.data.sources.labels import Labels, RawData, RawSplit
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.errors import DataError, DiskError
from vitrail.images.decode import BadImage
from vitrail.shards.cache import cache_limit, is_remote
from vitrail.shards.index import ShardIndex, find_index
from vitrail.stamps import Stamped
from vitrail.text import plural

Result = TypeVar("Result")

BLOCK = 2**16  # names that are read at a time
MAX_SORTED = 10_000_000  # names that are sorted for a digest; that of more is made of the checksums of the index
WINDOW = 64  # shards that are shuffled together where they have to be fetched; fixed, because the order depends on it


class ShardKeys(Strings):
    """The names of images in an index, which stay on the disk."""

    def __init__(self, index: ShardIndex, rows: np.ndarray | None) -> None:
        self.shards, self.rows = index, rows

    def __len__(self) -> int:
        return self.shards.images if self.rows is None else len(self.rows)

    def _get(self, index: int) -> str:
        return next(self._read(index, index + 1))

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            yield from self._read(first, min(first + BLOCK, len(self)))

    def _read(self, first: int, last: int) -> Iterator[str]:
        rows = np.arange(first, last) if self.rows is None else self.rows[first:last]
        ends, names = self.shards.mapped.name_ends, self.shards.mapped.names.data
        starts = np.where(rows > 0, ends[rows - 1], 0).tolist()
        return (str(names[start:end], "utf-8") for start, end in zip(starts, ends[rows].tolist()))

    def digest(self) -> str:
        if len(self) <= MAX_SORTED:
            return super().digest()
        tables = {name: self.shards.tables[name] for name in ("names", "name_ends")}
        rows = b"" if self.rows is None else np.ascontiguousarray(self.rows, np.int64).tobytes()
        return sha256_of(repr(tables).encode() + rows)

    def take(self, rows: np.ndarray) -> ShardKeys:
        return ShardKeys(self.shards, rows if self.rows is None else self.rows[rows])


@dataclass(frozen=True, eq=False)
class ShardImages(Contents):
    """Images in tar shards; ``rows`` (n,) int64 are those of the index, None stands for all."""

    index: ShardIndex
    rows: np.ndarray | None = None
    to_join = (
        "train on the files that the shards were made of, or put all shards into one folder and `vitrail data index` it"
    )

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

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

    @cached_property
    def units(self) -> StoredUnits | None:
        """The shards where they have to be fetched and are many; None also where ``rows`` do not rise."""
        counts = np.array([shard.images for shard in self.index.shards], np.int64)
        if not is_remote(self.index.root) or len(counts) <= WINDOW:
            return None
        if self.rows is not None:
            if (np.diff(self.rows) <= 0).any():
                return None
            counts = np.bincount(self.index.find_shards(self.rows), minlength=len(counts))
        return StoredUnits(counts, WINDOW, self._list_items)

    def _list_items(self, shard: int) -> np.ndarray:
        """The rows of this source that are in a shard, in the order of storage."""
        images = self.index.list_images(shard)
        if self.rows is None:
            return images
        places = np.searchsorted(self.rows, images)
        places[places == len(self.rows)] = 0
        return places[self.rows[places] == images]

    def fetch(self, rows: np.ndarray) -> None:
        """Fetch the shards of these rows, where they are elsewhere; what cannot be fetched is named when it is read."""
        if is_remote(self.index.root):
            self.index.fetch(np.unique(self.index.find_shards(rows if self.rows is None else self.rows[rows])))

    def take(self, rows: np.ndarray) -> ShardImages:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def fingerprints(self) -> list[Hashable]:
        """Length and CRC-32; for images that have both in common also a hash of the content."""
        tables, rows = self.index.mapped, slice(None) if self.rows is None else self.rows
        brief = list(zip(tables.lengths[rows].tolist(), tables.checksums[rows].tolist()))
        occurrences = Counter(brief)
        return [pair if occurrences[pair] == 1 else (pair, self.hash_file(row)) for row, pair in enumerate(brief)]

    def checksum(self, row: int) -> str:
        tables, row = self.index.mapped, row if self.rows is None else int(self.rows[row])
        return f"{tables.lengths[row]}-{tables.checksums[row]:08x}"

    def stamp(self) -> Stamped:
        """Lengths and checksums, which are those of the index."""
        tables, rows = self.index.mapped, slice(None) if self.rows is None else self.rows
        return Stamped(self.keys, tables.lengths[rows].astype(np.int64), tables.checksums[rows].astype(np.int64))


def fetched(contents: Contents, make: Callable[[np.ndarray], Result]) -> Callable[[np.ndarray], Result]:
    """``make``, called with ids (B, 3), after the shards of their images were fetched, if they are elsewhere."""
    if not isinstance(contents, ShardImages):
        return make

    def fetch_and_make(ids: np.ndarray) -> Result:
        contents.fetch(ids[:, 1])
        return make(ids)

    return fetch_and_make


def fetch_ahead(contents: Contents, steps: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The ids (B, 3) of steps, while a thread fetches what will be needed a window later, if shards are fetched in windows."""
    if not isinstance(contents, ShardImages) or contents.units is None:
        yield from steps
        return
    images, waiting = int(contents.units.counts.max()) * WINDOW, deque[np.ndarray]()
    requests = SimpleQueue[np.ndarray | None]()

    def fetch() -> None:
        while (ids := requests.get()) is not None:
            # a full disk is raised where the image is read; a process that ends starts no threads
            with suppress(DiskError, RuntimeError):
                contents.fetch(ids[:, 1])

    # a daemon, so that a process that ends does not wait for a download
    Thread(target=fetch, name="vitrail-fetch", daemon=True).start()
    try:
        for ids in steps:
            requests.put(ids)
            waiting.append(ids)
            if len(waiting) * len(ids) > images:
                yield waiting.popleft()
        yield from waiting
    finally:
        requests.put(None)


def find_shards(place: str) -> dict[str, ShardIndex] | None:
    """The indexes of shards in a folder or at a URL, by split, or of all under "", if any. Raises `DataError` for damage."""
    if index := find_index(place):
        return {"": index}
    folders = {split: f"{place}/{split}" for split in SPLIT_ORDER}
    if not is_remote(place):
        names = [name for name in sorted(os.listdir(place)) if name.lower() in SPLITS]
        folders = {SPLITS[name.lower()]: os.path.join(place, name) for name in names}
    found = {split: find_index(folders[split]) for split in SPLIT_ORDER if split in folders}
    return {split: index for split, index in found.items() if index} or None


def read_shards(indexes: dict[str, ShardIndex]) -> RawData:
    """Reads what `find_shards` found. Raises `DataError` if only some shards of a folder are named after a split."""
    if "" in indexes:
        return _read_folder(indexes[""], "*")
    splits = {split: _read_split(ShardImages(index)) for split, index in indexes.items()}
    return f"tar shards in {', '.join(splits)}", splits


def read_shards_at(place: str) -> RawData:
    """Reads a URL, a pattern such as ``shards/train-*.tar``, or an archive. Raises `DataError`, also where there is no index."""
    folder, _, pattern = place.rpartition("/") if place.endswith(".tar") else (place.rstrip("/"), "", "*")
    if has_magic(folder):
        raise DataError(f"the pattern {place} has a '*' in the name of a folder", "give one folder of shards")
    if is_remote(place):
        if (indexes := find_shards(folder)) is None:
            remedy = f"copy what `vitrail data shard` wrote, with its index, or: vitrail data index {folder} NEW_FOLDER"
            raise DataError(f"there is no index of shards at {folder}/index/index.json", remedy)
        return read_shards(indexes) if pattern == "*" else _read_folder(next(iter(indexes.values())), pattern)
    if index := find_index(folder):
        return _read_folder(index, pattern)
    if os.path.isdir(folder) and any(Path(folder).glob(pattern)):
        raise missing_index(Path(folder))
    raise DataError(f"no file matches {place!r}", "quote the pattern, and check the folder")


def missing_index(folder: Path) -> DataError:
    """The error for tar archives without an index."""
    remedy = f"vitrail data index {folder}, which reads them once and writes it"
    return DataError(f"the tar archives in {folder} have no index of their images", remedy)


def _read_folder(index: ShardIndex, pattern: str) -> RawData:
    """The shards whose names match; the names give the splits, as in ``cifar10-train-000000.tar``."""
    chosen = [number for number, shard in enumerate(index.shards) if fnmatch(shard.name, pattern)]
    if not chosen:
        what = f"none of the {len(index.shards):,} shards in {index.root} matches {pattern!r}"
        raise DataError(what, f"the first is {index.shards[0].name!r}" if index.shards else "the index is empty")
    by_split: dict[str, list[int]] = {}
    for number in chosen:
        words = re.split(r"[-_.]", Path(index.shards[number].name).stem.lower())
        named = {SPLITS[word] for word in words if word in SPLITS}
        by_split.setdefault(named.pop() if len(named) == 1 else "", []).append(number)
    if "" in by_split and len(by_split) > 1:
        without, with_split = (index.shards[by_split[split][0]].name for split in ("", max(by_split)))
        what = f"{with_split!r} in {index.root} names a split, and {without!r} does not"
        raise DataError(what, "rename or move one of them")
    layout = plural(len(chosen), "tar shard")
    if len(chosen) == len(index.shards) and len(by_split) == 1:
        return layout, {next(iter(by_split)) or "train": _read_split(ShardImages(index))}
    of = index.find_shards(slice(None))
    splits = {
        split or "train": _read_split(ShardImages(index, np.flatnonzero(np.isin(of, by_split[split]))), by_split[split])
        for split in sorted(by_split, key=("", *SPLIT_ORDER).index)
    }
    return layout + (f" for {', '.join(splits)}" if "" not in by_split else ""), splits


def _read_split(images: ShardImages, shards: list[int] | None = None) -> RawSplit:
    index, targets = images.index, images.index.mapped.targets
    notes = index.find_faults(range(len(index.shards)) if shards is None else shards) + _find_thrashing(index)
    if targets is None:
        return RawSplit(images, None, tuple(notes))
    values = targets if images.rows is None else targets[images.rows]
    values = values.astype(np.float32) if values.ndim == 2 else values
    return RawSplit(images, Labels(index.classes, values, declared=True), tuple(notes))


def _find_thrashing(index: ShardIndex) -> list[str]:
    """A sentence if the cache cannot hold the shards that a training uses at a time: those of two windows."""
    limit = cache_limit() if is_remote(index.root) else None
    largest = sorted((shard.bytes for shard in index.shards), reverse=True)
    needed = sum(largest if len(largest) <= WINDOW else largest[: 2 * WINDOW])
    if limit is None or needed <= limit:
        return []
    much = f"{needed / 1e9:.3g} GB of shards at a time, and the cache holds {limit / 1e9:.3g} GB (VITRAIL_SHARDS_GB)"
    return [f"a training uses {much}, so they are fetched again and again"]
