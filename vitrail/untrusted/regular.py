"""Regular files from strangers."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from vitrail.untrusted.limits import FILE_BYTES


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
