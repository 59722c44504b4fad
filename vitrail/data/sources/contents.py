"""Storage of images: files, an array in memory, or a user-defined Dataset (for Parquet see parquet.py).

Each kind has the same methods (`Contents`), is small to pickle, and keeps its tables in a few flat buffers: a list of a million
Python strings would be copied page by page into every worker as reference counts change. Axes: n items, H, W, C as an image has
them.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, Self, overload

import numpy as np
from PIL import Image

from vitrail.errors import DataError, find_fault
from vitrail.images.decode import BadImage, convert_image, upright_size
from vitrail.stamps import Stamped, hash_each, read_ends, stat_file
from vitrail.untrusted.files import open_regular, read_text

TAKEN = 2**14  # names that are copied at once


@dataclass(frozen=True, eq=False)
class Units:
    """Items that are read together, as the rows of a row group of Parquet: for a training to read each unit about once.

    Args:
        of: (n,) int64, the unit of each item.
        count: number of units.
        window: number of units that fit in memory at once.
    """

    of: np.ndarray
    count: int
    window: int


@dataclass(frozen=True, eq=False)
class StoredUnits:
    """Items in large files, of which only some are at hand at once, as the shards of a bucket in a cache.

    Args:
        counts: (U,) int64, number of items in each file.
        window: number of files that are in use at once.
        list_items: called with the number of a file, it gives its items.
    """

    counts: np.ndarray
    window: int
    list_items: Callable[[int], np.ndarray]


class Contents(ABC):
    """The storage that a `Source` reads from. Immutable."""

    kind: ClassVar[Literal["files", "arrays"]] = "files"
    to_join: ClassVar[str] = (
        "put them into one, a folder with train/ and val/ or a table with a column split"  # two of them
    )
    if TYPE_CHECKING:  # a dataclass would take an inherited property for the default of its field

        @property
        def keys(self) -> Strings: ...

    @abstractmethod
    def __getitem__(self, row: int) -> bytes | np.ndarray: ...

    @abstractmethod
    def take(self, rows: np.ndarray) -> Self:
        """Returns the contents of these rows, in this order."""

    @property
    def units(self) -> Units | StoredUnits | None:
        """Which items are read together; None where an item costs the same wherever it is read after another."""
        return None

    def fingerprints(self) -> list[Hashable] | None:
        """One value per item, equal for equal contents; None if computing them would cost as much as reading everything."""
        return None

    def stamp(self) -> Stamped | None:
        """The files or images as they are now, to find out later whether they have changed; None where nothing says so."""
        return None

    def hash_file(self, row: int) -> Hashable:
        """A hash of the bytes of a file; of one that cannot be read its row, so that it equals no other."""
        try:
            content = self[row]
            assert isinstance(content, bytes)
            return _hash(content)
        except BadImage:
            return row

    def checksum(self, row: int) -> str:
        """Length and CRC-32 of an image, equal in files, Parquet and shards; empty where it may differ each time it is read."""
        try:
            content = self[row]
        except BadImage:
            return ""
        content = content if isinstance(content, bytes) else content.tobytes()
        return f"{len(content)}-{zlib.crc32(content):08x}"


# what no name may contain, in UTF-8: control characters, and surrogates, which stand for bytes that are not UTF-8
_FAULTS = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xed[\xa0-\xbf]")


def check_names(names: Iterable[str], what: str) -> None:
    """Raises `DataError` for a name that cannot be written to every table, report and terminal."""
    for name in names:
        if fault := find_fault(name):
            raise DataError(f"the name of the {what} {name!r} {fault}", "rename it")


class Strings(Sequence[str]):
    """Many names in two buffers: their bytes, and the end of each. Raises `DataError` as `check_names` does."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        blob, ends = bytearray(), array("q")
        for text in texts:
            blob += text.encode("utf-8", "surrogatepass")
            ends.append(len(blob))
        self.blob, self.ends = bytes(blob), np.array(ends)
        if _FAULTS.search(self.blob):
            names = np.split(np.frombuffer(self.blob, np.uint8), self.ends[:-1])
            check_names((name.tobytes().decode("utf-8", "surrogatepass") for name in names), "image")

    @staticmethod
    def join(parts: Iterable[Strings]) -> Strings:
        parts = [part if type(part) is Strings else Strings(part) for part in parts]
        joined = Strings()
        joined.blob = b"".join(part.blob for part in parts)
        lengths = [np.diff(part.ends, prepend=0) for part in parts]
        joined.ends = np.concatenate(lengths).cumsum() if parts else joined.ends
        return joined

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        return self._get(range(len(self))[index])

    def _get(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        return self.blob[start : self.ends[index]].decode()

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self.ends.tolist():
            yield self.blob[start:end].decode()
            start = end

    def take(self, rows: np.ndarray) -> Strings:
        """The names of these rows, in this order."""
        taken, bytes_of_blob = Strings(), np.frombuffer(self.blob, np.uint8)
        starts, lengths = np.append(0, self.ends[:-1])[rows], np.diff(self.ends, prepend=0)[rows]
        taken.ends = lengths.cumsum()
        parts = []
        for first in range(0, len(rows), TAKEN):  # an index of each byte takes eight
            part = slice(first, first + TAKEN)
            before = lengths[part].cumsum() - lengths[part]
            places = np.repeat(starts[part] - before, lengths[part])
            places += np.arange(len(places))
            parts.append(bytes_of_blob[places].tobytes())
        taken.blob = b"".join(parts)
        return taken

    def digest(self) -> str:
        """SHA-256 of the names in sorted order."""
        return hashlib.sha256("\n".join(sorted(self)).encode()).hexdigest()


def choose_evenly(count: int, most: int) -> np.ndarray:
    """Chooses at most ``most`` of the numbers from 0 to ``count`` - 1, evenly spaced: (m,) int64."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def normalise_path(path: str) -> str:
    """A relative path in normal form, or an absolute path unchanged. Raises `ValueError` for one that leads out of its folder."""
    if os.path.isabs(path):
        return path
    plain = os.path.normpath(path).replace(os.sep, "/")
    if plain == ".." or plain.startswith("../"):
        raise ValueError(f"the path {path!r} points outside of its folder")
    return plain


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Anything else (a pipe would block forever) raises `BadImage`."""
    try:
        return open_regular(path)
    except (OSError, ValueError) as error:
        raise BadImage(getattr(error, "strerror", None) or str(error)) from error


def read_file(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file. Raises `BadImage`."""
    with open_file(path) as file:
        try:
            return file.read()
        except OSError as error:
            raise BadImage(error.strerror or str(error)) from error


def read_upright_size(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """(height, width) from the header of an image file, upright; None if it cannot be read or has none."""
    with suppress(BadImage, OSError), open_file(path) as file:
        return upright_size(file)
    return None


def read_lines(path: str | os.PathLike[str], remedy: str) -> list[str]:
    """The lines of a list, such as names of classes or images, stripped and without blank ones. Raises `DataError`."""
    try:
        return [line for text in read_text(path).splitlines() if (line := text.strip())]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", remedy) from error


def read_head(path: str | os.PathLike[str], length: int) -> bytes:
    """The first bytes of a file; empty if it cannot be read."""
    with suppress(BadImage, OSError), open_file(path) as file:
        return file.read(length)
    return b""


@dataclass(frozen=True)
class Files(Contents):
    """Files on disk; a key is the path relative to ``root``, with forward slashes, or absolute."""

    root: str
    keys: Strings

    def __getitem__(self, row: int) -> bytes:
        return read_file(os.path.join(self.root, self.keys[row]))

    def take(self, rows: np.ndarray) -> Files:
        return Files(self.root, self.keys.take(rows))

    def fingerprints(self) -> list[Hashable]:
        """Lengths; for equal lengths also a hash of both ends of the file. A missing file equals no other."""
        paths = [os.path.join(self.root, key) for key in self.keys]
        lengths = [stat_file(path)[0] for path in paths]
        occurrences = Counter(lengths)
        return [
            length if occurrences[length] == 1 else path if length < 0 else (length, _hash(read_ends(path, length)))
            for path, length in zip(paths, lengths)
        ]

    def stamp(self) -> Stamped:
        return Stamped.of_files(self.root, self.keys)


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=12).digest()


@dataclass(frozen=True, eq=False)
class Arrays(Contents):
    """Images of one size in memory: uint8, or float32 in [0, 1]."""

    images: np.ndarray  # (n, H, W, C)
    keys: Strings
    kind = "arrays"

    def __getitem__(self, row: int) -> np.ndarray:
        return self.images[row]

    def take(self, rows: np.ndarray) -> Arrays:
        return Arrays(self.images[rows], self.keys.take(rows))

    def fingerprints(self) -> list[Hashable]:
        return [_hash(image.tobytes()) for image in self.images]

    def stamp(self) -> Stamped:
        return Stamped.of_hashes(self.keys, hash_each(image.tobytes() for image in self.images))


@dataclass(frozen=True, eq=False)
class UserDataset(Contents):
    """A user-defined Dataset, which is never modified. Its items are (image, label) pairs, images, or dicts with an ``image``."""

    dataset: Any
    rows: np.ndarray  # (n,) int64
    keys: Strings
    channels: int
    image: str | None = None  # the column of a Dataset of Hugging Face
    to_join = (
        "give one: torch.utils.data.ConcatDataset([train, val]), of Hugging Face concatenate_datasets([train, val])"
    )

    def __getitem__(self, row: int) -> np.ndarray:
        try:
            item = self.dataset[int(self.rows[row])]
            image = item[self.image] if self.image else item[0] if isinstance(item, tuple | list) else item
            return to_array(image, self.channels)
        except BadImage:
            raise
        except Exception as error:  # user code may raise anything for a broken file
            raise BadImage(f"{type(error).__name__}: {error}") from error

    def checksum(self, row: int) -> str:
        return ""  # it may draw an augmentation

    def take(self, rows: np.ndarray) -> UserDataset:
        return UserDataset(self.dataset, self.rows[rows], self.keys.take(rows), self.channels, self.image)


def to_array(image: Any, channels: int) -> np.ndarray:
    """A Pillow image, an array (H, W[, C]) or a tensor (C, H, W) as an array (H, W, C), uint8 or float32 in [0, 1]."""
    if isinstance(image, Image.Image):
        image = np.asarray(convert_image(image, channels))
    elif hasattr(image, "detach"):  # a torch tensor; this does not import torch
        image = image.detach().cpu().numpy()
        image = image.transpose(1, 2, 0) if image.ndim == 3 else image
    array = np.asarray(image)
    array = array[..., None] if array.ndim == 2 else array
    array = array.astype(np.float32) if array.dtype.kind == "f" else array
    if array.ndim != 3 or array.dtype not in (np.uint8, np.float32):
        what = f"an item of shape {array.shape} and type {array.dtype}"
        raise BadImage(f"{what}, which is not an image of uint8 or floats")
    if array.dtype == np.float32 and not (array.min(initial=1) >= 0 and array.max(initial=0) <= 1 + 1e-6):
        values = f"values from {array.min():.3g} to {array.max():.3g}"
        raise BadImage(f"{values}; return values in [0, 1], before normalisation")
    return array
