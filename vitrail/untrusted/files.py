"""Regular files from strangers, and text files: lists of names, labels and paths."""

from __future__ import annotations

import codecs
import os
import stat
from typing import BinaryIO

from vitrail.untrusted.limits import FILE_BYTES, LIST_BYTES


def open_regular(path: str | os.PathLike[str], most: int = FILE_BYTES) -> BinaryIO:
    """Opens a regular file for reading: a pipe would block forever, a device never end.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is anything else than a regular file, has more than ``most`` bytes, or a NUL in its name.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    is_regular = stat.S_ISREG(status.st_mode)
    if is_regular and status.st_size <= most:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise ValueError(f"{status.st_size:,} bytes, over the limit of {most:,}" if is_regular else "not a regular file")


UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode_text(content: bytes) -> str:
    """Decodes UTF-8, with or without a byte order mark, or UTF-16 with one. Raises `ValueError` for anything else."""
    return content.decode(detect_encoding(content))


def detect_encoding(head: bytes) -> str:
    """Returns the encoding of a text by its first two bytes: UTF-16 with a byte order mark, or UTF-8 with or without one."""
    return "utf-16" if head.startswith(UTF_16) else "utf-8-sig"


def read_text(path: str | os.PathLike[str], most: int = LIST_BYTES) -> str:
    """Reads a text file as `decode_text` does. Raises `OSError`, and `ValueError` for a file of more than ``most`` bytes."""
    with open_regular(path, most) as file:
        return decode_text(file.read())
