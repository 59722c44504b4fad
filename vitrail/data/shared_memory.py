"""Memory that two processes share: one appends the arrays of a batch, the other reads them in place."""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np

HEAD = 64  # bytes before the first array: the mark; arrays are aligned to as many
Location = tuple[int, Sequence[int], str]  # the byte where an array starts, its shape, its type as `numpy.dtype.str`
TYPES = {"|u1": 1, "<f4": 4}  # what a reader accepts, and the bytes of an element


def create_memory() -> BinaryIO:
    """Returns a file of memory that grows with its use and ends with the last process that has it open.

    On Linux it is a memfd, to which the size of /dev/shm does not apply, sealed so that no process can take pages from under
    another. Elsewhere it is a deleted temporary file.
    """
    if hasattr(os, "memfd_create"):
        import fcntl

        descriptor = os.memfd_create("vitrail-pictures", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        memory: BinaryIO = open(descriptor, "r+b", buffering=0)  # the caller closes it
    else:
        memory = TemporaryFile(buffering=0)
    memory.truncate(HEAD)
    return memory


class Writer:
    """Appends arrays to a memory, from the start for each batch."""

    def __init__(self, memory: BinaryIO) -> None:
        self._memory = memory
        self._bytes = _map(memory, mmap.PROT_READ | mmap.PROT_WRITE)
        self._used = HEAD

    def restart(self) -> None:
        """Sets the mark to 0, and lets the next array take the place of the first."""
        self._used = HEAD
        self.mark(0)

    def mark(self, row: int) -> None:
        """Sets the number that `Reader.marked` returns, also after this process died."""
        struct.pack_into("<Q", self._bytes, 0, row)

    def append(self, array: np.ndarray) -> Location:
        """Copies an array and returns where it is."""
        start, end = self._used, self._used + array.nbytes
        if end > len(self._bytes):
            self._memory.truncate(2 * end)  # pages that are never written take no memory
            self._bytes = _map(self._memory, mmap.PROT_READ | mmap.PROT_WRITE)
        np.ndarray(array.shape, array.dtype, self._bytes, start)[...] = array
        self._used = -(-end // HEAD) * HEAD
        return start, array.shape, array.dtype.str


class Reader:
    """Reads the arrays of a `Writer` in place: they change when the writer restarts."""

    def __init__(self, memory: BinaryIO) -> None:
        self._memory = memory
        self._bytes = _map(memory, mmap.PROT_READ)

    def marked(self) -> int:
        """The number that the writer has marked, 0 or more."""
        return struct.unpack_from("<Q", self._bytes)[0]

    def view(self, start: int, shape: Sequence[int], kind: str) -> np.ndarray:
        """The array at a `Location`, read-only.

        Raises:
            ValueError: it is not within the memory, or its type is none of `TYPES`.
        """
        if kind not in TYPES or start < HEAD:
            raise ValueError(f"not an array of a picture: {kind} {shape} at {start}")
        if start + math.prod(shape) * TYPES[kind] > len(self._bytes):
            self._bytes = _map(self._memory, mmap.PROT_READ)  # it has grown
        try:
            return np.ndarray(shape, kind, self._bytes, start)
        except TypeError as error:
            raise ValueError(str(error)) from error


def _map(memory: BinaryIO, access: int) -> mmap.mmap:
    descriptor = memory.fileno()
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=access)
