"""The index of a set of shards: where each image is, its checksum, its name and its target, in memory-mapped files.

The folder ``index`` beside the shards holds ``index.json``, which has the name, bytes, SHA-256 and number of images of each
shard, and arrays in the format of NumPy: 28 bytes an image, and the names. Positions are counted from the first byte of the
first shard, as if all shards were one file.

An index is untrusted. It may name as the place of its archives only a URL that the user named: as the data, by
`vitrail data index URL`, which remembers it in the cache, or in ``VITRAIL_SHARDS_FROM``, where the index was written on another
machine. All its files are checked before they are used: whoever wrote them checksummed them as well.

Axes: n images, S shards, K classes.
"""

from __future__ import annotations

import codecs
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitrail.checksums import add_checksum, digest_file, hash_file, sha256_of
from vitrail.errors import DataError, find_fault
from vitrail.files import disk_errors, dump_json, parse_checksummed, replace_file, sync_folder, write_bytes
from vitrail.shards.cache import Unavailable, cache_folder, fetch_file, fetch_shard, fetch_to, is_cached, is_remote
from vitrail.untrusted.files import open_regular
from vitrail.untrusted.numbers import to_whole

NAMED = "VITRAIL_SHARDS_FROM"  # URLs, separated by spaces; those below them count as well


def remember_root(url: str) -> None:
    """Remembers that the user of this machine named a URL. Raises `DiskError`."""
    place = _place(url)
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, f"{url}\n")


def check_root(root: str, index: str, place: str) -> None:
    """Raises `DataError` for an ``index`` whose archives are at a URL, ``root``, not below ``place``, which the user named.

    A folder of this machine passes where the index is in one as well.
    """
    if not is_remote(root) and not is_remote(place):
        return
    named = [place, *os.environ.get(NAMED, "").split()]
    if ".." not in root.split("/") and any(f"{root}/".startswith(f"{each.rstrip('/')}/") for each in named):
        return
    if not _place(root).is_file():
        what = f"the index {index} is of archives at {root}, and only what you name is fetched"
        remedy = f"if you trust that place, set {NAMED}={root}, or index it: vitrail data index {root} NEW_FOLDER"
        raise DataError(what, remedy)


def _place(url: str) -> Path:
    return cache_folder() / "roots" / sha256_of(url.encode())


SHA256 = re.compile("[0-9a-f]{64}")
MAX_NUMBER = 2**50  # bytes of a shard or a table, and images of a set
# the type of each table, and its axes; those of targets are (n,) int64 or (n, K) uint8
KINDS = dict(starts="i8", lengths="i4", checksums="u4", names="u1", name_ends="i8", stored="i4", targets="")
NEEDED = ("starts", "lengths", "checksums", "names", "name_ends")
BLOCK = 2**13  # rows that are checked at a time


def check_catalogue(described: Mapping[str, Any]) -> None:
    """Raises `ValueError` for an ``index.json`` with a path outside of the folder, or impossible numbers."""
    for name in ("shards", "classes"):
        if not isinstance(described[name], list):
            raise ValueError(f"its {name} are no list")
    for shard in described["shards"]:
        _check_file(shard, "the shard", "name", "images")
        name = shard["name"]  # it becomes part of a path or a URL
        if not isinstance(name, str) or find_fault(name) or "\\" in name or {"", ".", ".."} & {*name.split("/")}:
            raise ValueError(f"the shard {str(name)!r:.80} is no path inside of the root")
        to_whole(shard["images"], f"the number of images of {name}", most=MAX_NUMBER)
    if sum(shard["images"] for shard in described["shards"]) != to_whole(
        described["images"], "images", most=MAX_NUMBER
    ):
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
    """Raises `ValueError` for tables of other shapes than those of ``images``, or that point beyond the ``end`` of all shards."""
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
    decoder = codecs.getincrementaldecoder("utf-8")()
    for rows in _blocks(len(tables["names"])):
        if fault := find_fault(decoder.decode(tables["names"][rows].tobytes())):
            raise ValueError(f"the name of an image {fault}")
    decoder.decode(b"", final=True)


def _check_file(entry: Any, what: str, *fields: str) -> None:
    """Raises `ValueError` for an entry without a size and a SHA-256, or with others than these ``fields`` beside them."""
    if not isinstance(entry, dict) or entry.keys() != {"bytes", "sha256", *fields}:
        raise ValueError(f"{what} does not have the fields {', '.join((*fields, 'bytes', 'sha256'))}")
    if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str) or not SHA256.fullmatch(entry["sha256"]):
        raise ValueError(f"{what} has no size or no SHA-256")
    to_whole(entry["bytes"], f"the size of {what}", most=MAX_NUMBER)


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, rows)) for start in range(0, rows, BLOCK))


def _are_within(values: np.ndarray, most: int) -> bool:
    return not values.size or bool(values.min() >= 0 and values.max() < most)


FORMAT = 1
FOLDER, CATALOGUE = "index", "index.json"
BESIDE = ".."
FETCHERS = 4  # shards that a process fetches at a time
OPEN_FILES = 64  # shards that a process keeps open


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One archive."""

    name: str  # its path from the root of the index, with forward slashes
    bytes: int
    sha256: str
    images: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """The arrays of an index, a row for each image."""

    starts: np.ndarray  # (n,) int64, position of the content
    lengths: np.ndarray  # (n,) int32, bytes of the content
    checksums: np.ndarray  # (n,) uint32, CRC-32 of the content
    names: np.ndarray  # (bytes,) uint8, all names in UTF-8
    name_ends: np.ndarray  # (n,) int64
    stored: np.ndarray | None = None  # (n,) int32, the images in the order of storage; None: that of the index
    targets: np.ndarray | None = None  # (n,) int64 classes, or (n, K) uint8 of zeros and ones; None: no labels


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardIndex:
    """The index of a set of shards. It is small to pickle: its tables are mapped where they are first used."""

    folder: str  # of the index
    root: str  # the folder of the shards, or a URL
    shards: tuple[Shard, ...]
    classes: tuple[str, ...]  # names, in the order of their numbers
    images: int  # n
    tables: dict[str, str]  # SHA-256 of the file of each table that exists, by name

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def mapped(self) -> Tables:
        """The tables, of which only what is used is read from the disk."""
        return Tables(**{name: _map(os.path.join(self.folder, f"{name}.npy")) for name in self.tables})

    @cached_property
    def ends(self) -> np.ndarray:
        """The position behind each shard: (S,) int64."""
        return np.cumsum([shard.bytes for shard in self.shards], dtype=np.int64)

    @cached_property
    def firsts(self) -> np.ndarray:
        """The number of images before each shard: (S,) int64."""
        counts = np.array([shard.images for shard in self.shards], np.int64)
        return counts.cumsum() - counts

    def find_shards(self, rows: np.ndarray | int | slice) -> np.ndarray:
        """The number of the shard that each of these images is in."""
        return np.searchsorted(self.ends, self.mapped.starts[rows], side="right")

    def list_images(self, number: int) -> np.ndarray:
        """The images of a shard, in the order of storage: (n,) integers."""
        first = int(self.firsts[number])
        last = first + self.shards[number].images
        return np.arange(first, last) if self.mapped.stored is None else self.mapped.stored[first:last]

    def read(self, row: int) -> bytes:
        """The content of an image.

        Raises `ValueError` for a shard that is cut off, was changed since it was indexed, or cannot be fetched; `OSError`, and
        `DiskError` where it has to be fetched.
        """
        tables, number = self.mapped, int(self.find_shards(row))
        shard, length = self.shards[number], int(tables.lengths[row])
        offset = int(tables.starts[row]) - int(self.ends[number]) + shard.bytes
        content = _open_file(self.find_file(number), shard.sha256).read(offset, length)
        if len(content) < length:
            raise ValueError(f"{shard.name} is cut off before the end of this image, at byte {offset + length:,}")
        if zlib.crc32(content) != tables.checksums[row]:
            raise ValueError(f"{shard.name} is damaged: it has other bytes at {offset:,} than when it was indexed")
        return content

    def find_file(self, number: int) -> str:
        """The path of a shard, which is fetched if it is elsewhere. Raises as `fetch_shard` does."""
        shard = self.shards[number]
        if is_remote(self.root):
            return fetch_shard(f"{self.root}/{shard.name}", shard.sha256, shard.bytes)
        return os.path.join(self.root, shard.name)

    def fetch(self, numbers: np.ndarray) -> None:
        """Fetch those of these shards that are not in the cache, some at a time; what cannot be fetched is left out."""
        missing = [number for number in numbers.tolist() if not is_cached(self.shards[number].sha256)]
        with ThreadPoolExecutor(FETCHERS) as pool:
            for fetched in [pool.submit(self.find_file, number) for number in missing]:
                with suppress(Unavailable):
                    fetched.result()

    def find_faults(self, numbers: Iterable[int]) -> list[str]:
        """A sentence for each of these shards that here is missing or has another length; no content is read."""
        faults = []
        for shard in [] if is_remote(self.root) else [self.shards[number] for number in numbers]:
            try:
                found = os.stat(os.path.join(self.root, shard.name)).st_size
            except OSError as error:
                faults.append(f"{shard.name} cannot be read ({error.strerror}): {shard.images:,} images")
                continue
            if found != shard.bytes:
                what = f"{shard.name} has {found:,} of {shard.bytes:,} bytes"
                faults.append(f"{what}: some of its {shard.images:,} images cannot be read")
        return faults


class _File:
    """An open file that is closed when the last thread has finished with it."""

    def __init__(self, path: str, sha256: str) -> None:
        """``sha256`` makes shards that were written anew other files."""
        self.file: BinaryIO | None = None  # also where opening fails
        self.file = open_regular(path, MAX_NUMBER)

    def read(self, offset: int, length: int) -> bytes:
        assert self.file is not None
        return os.pread(self.file.fileno(), length, offset)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


_open_file = lru_cache(maxsize=OPEN_FILES)(_File)


def _map(path: str) -> np.ndarray:
    # a plain array over the mapping, since indexing the subclass memmap is several times slower, and copied where it is
    # written to, since torch warns of arrays that cannot be; an empty file cannot be mapped
    return np.asarray(np.load(path, mmap_mode="c")) if os.path.getsize(path) > 128 else np.load(path)


def write_index(folder: Path, *, root: str, shards: Sequence[Shard], classes: Sequence[str], tables: Tables) -> None:
    """Writes an index to an existing folder. Raises `OSError`.

    Args:
        root: the folder of the shards, absolute, or a URL; `BESIDE` for the folder that the index is in.
    """
    digests = {}
    for name, table in vars(tables).items():
        if table is not None:
            path = folder / f"{name}.npy"
            np.save(path, table, allow_pickle=False)
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
            digests[name] = digest_file(path)
    described = {
        "format": FORMAT,
        "root": root,
        "images": len(tables.starts),
        "classes": list(classes),
        "shards": [asdict(shard) for shard in shards],
        "tables": digests,
    }
    write_bytes(folder / CATALOGUE, dump_json(add_checksum(described)).encode())
    sync_folder(folder)


def find_index(place: str) -> ShardIndex | None:
    """The index of the shards in a folder, or at a URL, from which it is fetched into the cache; None if there is none.

    Raises `DataError` if a file of it is missing, damaged or cannot be fetched, or a newer version wrote it.
    """
    if not is_remote(place):
        folder = Path(place, FOLDER)
        return _open(folder, place) if (folder / CATALOGUE).is_file() else None
    url = f"{place}/{FOLDER}"
    content = fetch_file(f"{url}/{CATALOGUE}")
    if content is None:
        return None
    folder = cache_folder() / "indexes" / sha256_of(content)
    try:
        described = parse_checksummed(content)
        check_catalogue(described)
        for name, file in described["tables"].items():
            fetch_to(folder / f"{name}.npy", f"{url}/{name}.npy", file["sha256"], file["bytes"])
    except (Unavailable, ValueError, TypeError, KeyError) as error:
        raise _damaged(url, place, error) from error
    if not (folder / CATALOGUE).exists():
        replace_file(folder / CATALOGUE, content)
    return _open(folder, place)


def _open(folder: Path, place: str) -> ShardIndex:
    """The index in ``folder`` of the shards at ``place``."""
    try:
        described = parse_checksummed((folder / CATALOGUE).read_bytes())
        if described["format"] > FORMAT:
            raise DataError(f"a newer version of vitrail wrote {folder}", "update vitrail: pip install -U vitrail")
        check_catalogue(described)
        index = ShardIndex(
            folder=str(folder),
            root=place if described["root"] == BESIDE else described["root"],
            shards=tuple(Shard(**shard) for shard in described["shards"]),
            classes=tuple(described["classes"]),
            images=described["images"],
            tables={name: file["sha256"] for name, file in described["tables"].items()},
        )
        for name, digest in index.tables.items():
            if hash_file(folder / f"{name}.npy") != digest:
                raise ValueError(f"{name}.npy does not match its checksum")
        end, found = sum(shard.bytes for shard in index.shards), vars(index.mapped)
        tables = {name: table for name, table in found.items() if table is not None}
        check_tables(tables, images=index.images, end=end, classes=len(index.classes))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(str(folder), place, error) from error
    check_root(index.root, str(folder), place)
    return index


def _damaged(index: str, place: str, error: Exception) -> DataError:
    again = f"copy it again, or remove it and write it again with `vitrail data index {place}`"
    return DataError(f"the index {index} is damaged: {error}", again)
