"""Zip archives and arrays in NumPy's format from untrusted sources. Nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from typing import IO

import numpy as np
from numpy.lib import format as npy

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class ObjectArrayError(ValueError):
    """An array of objects, which only a pickle can hold."""


def check_expansion(archive: zipfile.ZipFile, size: int, most: int, *, spared: int = 0) -> None:
    """Raises `ValueError` for an archive of ``size`` bytes whose content has over ``most`` times as many, and over ``spared``."""
    total = sum(member.file_size for member in archive.infolist())
    if total > max(most * size, spared):
        raise ValueError(f"it has {size:,} bytes and expands to {total:,}")


def read_array_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Reads a member as `read_array` does. Raises `ValueError` with its name."""
    try:
        with archive.open(member) as file:
            return read_array(file, member.file_size)
    except ObjectArrayError as error:
        raise ObjectArrayError(f"the member {member.filename!r}: {error}") from error
    # RuntimeError: encrypted, NotImplementedError: an unknown compression
    except (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"the member {member.filename!r} cannot be read: {error}") from error


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """Reads an array of numbers in NumPy's format from the ``size`` bytes of a file.

    Raises `ObjectArrayError` for objects, and `ValueError` for a damaged file or one that has fewer or more bytes than its header
    says; nothing is allocated before.
    """
    read_header = _HEADERS.get(npy.read_magic(file))
    if read_header is None:
        raise ValueError("an unknown version of the .npy format")
    shape, by_columns, kind = read_header(file)
    if kind.hasobject:
        raise ObjectArrayError("it holds objects, not numbers, and objects are never unpickled")
    count, expected = size - file.tell(), math.prod(shape) * kind.itemsize
    if min(shape, default=1) < 0 or expected != count:
        raise ValueError(f"an array of {shape} {kind} has {count:,} bytes")
    content = bytearray(count)
    if file.readinto(content) != count or file.read(1):  # type: ignore[attr-defined]
        raise ValueError(f"an array of {shape} {kind} has other than {count:,} bytes")
    return np.frombuffer(content, kind).reshape(shape, order="F" if by_columns else "C")
