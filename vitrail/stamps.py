"""Finding out whether files or images have changed, without reading all of them.

A file is known by its length and the time of its last change; where only the time differs, its content decides.

Axes: n files or images of one split.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

HASHED = 100_000  # files of a split whose content is hashed when they are recorded, evenly spaced
ENDS = 2**15  # bytes at each end of a file that are read for its hash


@dataclass(frozen=True, eq=False)
class Stamps:
    """The recorded state of n files or images.

    Args:
        names: (n,) uint64 hashes of their names, in the order of the data.
        sizes: (n,) int64 bytes; -1 for a file that cannot be found.
        versions: (n,) int64: of files the time of the last change in ns, else a hash of the content.
        hashes: (n,) uint64 of the content of files, 0 where it was not read.
    """

    names: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    versions: NDArray[np.int64]
    hashes: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Stamped:
    """Files or images as they are now, whose content is read where that is asked for; sizes and versions as in `Stamps`.

    Names of files are relative to the folder ``root``, which is None where the versions are hashes of the content.
    """

    names: Sequence[str]
    sizes: NDArray[np.int64]
    versions: NDArray[np.int64]
    root: str | None = None

    @classmethod
    def of_files(cls, root: str, names: Sequence[str]) -> Stamped:
        """The state of files; none of them is opened."""
        table = np.array([stat_file(os.path.join(root, name)) for name in names], np.int64).reshape(-1, 2)
        return cls(names, table[:, 0], table[:, 1], root)

    @classmethod
    def of_hashes(cls, names: Sequence[str], hashes: NDArray[np.uint64]) -> Stamped:
        """The state of contents that are hashed already."""
        return cls(names, np.zeros(len(hashes), np.int64), hashes.view(np.int64))

    @cached_property
    def name_hashes(self) -> NDArray[np.uint64]:
        """(n,) uint64 hashes of the names."""
        return hash_each(name.encode() for name in self.names)

    def hash_contents(self, rows: NDArray[np.integer]) -> NDArray[np.uint64]:
        """(k,) uint64 hashes of these files, of each of which at most `ENDS` bytes are read at both ends; else zeros."""
        if self.root is None:
            return np.zeros(len(rows), np.uint64)
        paths = (os.path.join(self.root, self.names[row]) for row in rows.tolist())
        return hash_each(map(read_ends, paths, self.sizes[rows].tolist()))

    def record(self) -> Stamps:
        """The state as it is kept, with the hashes of at most `HASHED` files."""
        count = len(self.names)
        rows = np.unique(np.linspace(0, count - 1, min(count, HASHED)).astype(np.int64))
        hashes = np.zeros(count, np.uint64)
        hashes[rows] = self.hash_contents(rows)
        return Stamps(self.name_hashes, self.sizes, self.versions, hashes)


@dataclass(frozen=True)
class Changes:
    """The differences between what was recorded and what is there: how many, and the names of files or images."""

    removed: int = 0
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # of the same length, and no content was recorded that theirs can be compared with
    reordered: bool = False

    def describe(self) -> str:
        """Each kind of difference with its count and an example, without those that are unknown; empty if there are none."""
        differences = [f"{self.removed:,} removed"] if self.removed else []
        kinds = {"added": self.added, "changed": self.changed}
        differences += [f"{len(names):,} {kind}, e.g. {names[0]!r}" for kind, names in kinds.items() if names]
        return "; ".join(differences or ["in another order"] * self.reordered)


def find_changes(before: Stamps, now: Stamped) -> Changes:
    """Compares files or images with what was recorded of them: only their lengths, if they moved from files to shards or back."""

    def pick(rows: NDArray[np.integer]) -> tuple[str, ...]:
        return tuple(now.names[row] for row in rows.tolist())

    order = np.argsort(before.names, kind="stable")
    places = np.searchsorted(before.names, now.name_hashes, sorter=order)
    places = order[places.clip(max=len(order) - 1)] if len(order) else np.zeros(len(now.names), np.int64)
    known = before.names[places] == now.name_hashes if len(order) else np.zeros(len(now.names), bool)
    rows, places = np.flatnonzero(known), places[known]
    moved = bool(before.hashes.any()) == (now.root is None)  # from files to shards, or back
    touched = (before.versions[places] != now.versions[rows]) | moved
    differs = (before.sizes[places] != now.sizes[rows]) | (touched & (now.root is None) & (not moved))
    touched &= ~differs
    unknown = touched & ((before.hashes[places] == 0) | moved)
    compared = np.flatnonzero(touched & ~unknown)
    differs[compared] = now.hash_contents(rows[compared]) != before.hashes[places[compared]]
    return Changes(
        removed=len(np.setdiff1d(before.names, now.name_hashes)),
        added=pick(np.flatnonzero(~known)),
        changed=pick(rows[differs]),
        unknown=pick(rows[unknown]),
        reordered=not np.array_equal(before.names, now.name_hashes),
    )


def stat_file(path: str) -> tuple[int, int]:
    """The length of a regular file in bytes and the time of its last change in ns; -1 for anything else."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return -1, -1
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (-1, -1)


def read_ends(path: str, length: int) -> bytes:
    """The first and the last `ENDS` bytes of a file of this length; of one that cannot be read its path, to equal no other."""
    try:
        with open(path, "rb") as file:
            head = file.read(ENDS)
            file.seek(max(length - ENDS, len(head)))
            return head + file.read(ENDS)
    except (OSError, ValueError):
        return path.encode("utf-8", "surrogatepass")


def hash_each(contents: Iterable[bytes]) -> NDArray[np.uint64]:
    """(n,) uint64 hashes, never 0."""
    digests = b"".join(blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(digests, np.uint64) | np.uint64(1)
