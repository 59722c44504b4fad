"""Checks the files of an index of shards before they are used: whoever wrote the files sealed them as well."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vitrail.errors import find_fault
from vitrail.untrusted.numbers import to_whole

SHA256 = re.compile("[0-9a-f]{64}")
MOST = 2**50  # bytes of a shard or a table, and images of a set
# the type of each table, and its axes; those of targets are (n,) int64 or (n, K) uint8
KINDS = {
    "starts": "i8",
    "lengths": "i4",
    "checksums": "u4",
    "names": "u1",
    "name_ends": "i8",
    "stored": "i4",
    "targets": "",
}
NEEDED = ("starts", "lengths", "checksums", "names", "name_ends")
BLOCK = 2**13  # rows that are checked at a time


def check_catalogue(described: Mapping[str, Any]) -> None:
    """Raises `ValueError` for an ``index.json`` with a path that leads elsewhere, or numbers that no set of shards has."""
    for name in ("shards", "classes"):
        if not isinstance(described[name], list):
            raise ValueError(f"its {name} are no list")
    for shard in described["shards"]:
        _check_file(shard, "the shard", "name", "images")
        name = shard["name"]  # it becomes part of a path or a URL
        if not isinstance(name, str) or find_fault(name) or "\\" in name or {"", ".", ".."} & {*name.split("/")}:
            raise ValueError(f"the shard {str(name)!r:.80} is no path inside of the root")
        to_whole(shard["images"], f"the number of images of {name}", most=MOST)
    if sum(shard["images"] for shard in described["shards"]) != to_whole(described["images"], "images", most=MOST):
        raise ValueError(f"its shards do not have {described['images']:,} images in all")
    tables = described["tables"]
    if not isinstance(tables, dict) or not set(NEEDED) <= tables.keys() <= KINDS.keys():
        raise ValueError(f"it does not have the tables {', '.join(NEEDED)}, or has others than {', '.join(KINDS)}")
    for name, file in tables.items():
        _check_file(file, f"the table {name}")
    names = (described["root"], *described["classes"])
    if not all(isinstance(name, str) and not find_fault(name) for name in names):
        raise ValueError("its root or one of its classes is no name")


def check_tables(tables: Mapping[str, np.ndarray], *, images: int, end: int, classes: int) -> None:
    """Raises `ValueError` for tables of other shapes than those of ``images``, or that point beyond what there is.

    Args:
        end: bytes of all shards.
        classes: K.
    """
    for name, table in tables.items():
        shape = (len(table),) if name == "names" else (images, classes) if table.ndim == 2 else (images,)
        kinds = [KINDS[name]] if KINDS[name] else ["u1" if table.ndim == 2 else "i8"]
        if table.shape != shape or table.dtype not in [np.dtype(kind) for kind in kinds]:
            raise ValueError(f"the table {name} has the shape {table.shape} and the type {table.dtype}")
    starts, lengths, ends, targets = (tables.get(name) for name in ("starts", "lengths", "name_ends", "targets"))
    assert starts is not None and lengths is not None and ends is not None
    for rows in _blocks(images):
        if (starts[rows] < 0).any() or (lengths[rows] < 0).any() or (starts[rows] > end - lengths[rows]).any():
            raise ValueError("an image lies outside of all shards")
        if (np.diff(ends[rows], prepend=ends[rows.start - 1] if rows.start else 0) < 0).any():
            raise ValueError("the ends of the names do not rise")
        if "stored" in tables and not _are_within(tables["stored"][rows], images):
            raise ValueError("the order of storage names images that there are not")
        if targets is not None and not _are_within(targets[rows], classes if targets.ndim == 1 else 2):
            raise ValueError("a target is none of the classes")
    if len(tables["names"]) != (ends[-1] if images else 0):
        raise ValueError("the names do not end where their table says")
    _check_text(tables["names"])


def _check_file(entry: Any, what: str, *fields: str) -> None:
    """Raises `ValueError` for an entry without a size and a SHA-256, or with others than these ``fields`` beside them."""
    if not isinstance(entry, dict) or entry.keys() != {"bytes", "sha256", *fields}:
        raise ValueError(f"{what} does not have the fields {', '.join((*fields, 'bytes', 'sha256'))}")
    if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str) or not SHA256.fullmatch(entry["sha256"]):
        raise ValueError(f"{what} has no size or no SHA-256")
    to_whole(entry["bytes"], f"the size of {what}", most=MOST)


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, rows)) for start in range(0, rows, BLOCK))


def _are_within(values: np.ndarray, most: int) -> bool:
    return not values.size or bool(values.min() >= 0 and values.max() < most)


def _check_text(names: np.ndarray) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for rows in _blocks(len(names)):
        if fault := find_fault(decoder.decode(names[rows].tobytes())):
            raise ValueError(f"the name of an image {fault}")
    decoder.decode(b"", final=True)
