"""Regular files from untrusted sources, and text files: lists of names, labels and paths."""

from __future__ import annotations

import codecs
import os
import stat
from typing import BinaryIO

from vitrail.untrusted.limits import FILE_BYTES, LIST_BYTES


def open_regular(path: str | os.PathLike[str], most: int = FILE_BYTES) -> BinaryIO:
    """Opens a regular file for reading: a pipe would block forever, a device never end.

    Raises `OSError`, and `ValueError` for anything else, for more than ``most`` bytes, and for a NUL in the name.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    is_regular = stat.S_ISREG(status.st_mode)
    if is_regular and status.st_size <= most:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise ValueError(f"{status.st_size:,} bytes, over the limit of {most:,}" if is_regular else "not a regular file")


def detect_encoding(head: bytes) -> str:
    """Returns the encoding of a text by its first two bytes: UTF-16 with a byte order mark, or UTF-8 with or without one."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def read_text(path: str | os.PathLike[str]) -> str:
    """Reads a text file. Raises `OSError`, and `ValueError` for other encodings and more than `LIST_BYTES`."""
    with open_regular(path, LIST_BYTES) as file:
        content = file.read()
    return content.decode(detect_encoding(content))
