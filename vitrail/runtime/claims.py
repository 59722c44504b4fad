"""Numbered pieces of work that processes share: each is taken by one process at a time, without a coordinator."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.files import disk_errors

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]


class Claims:
    """Claims on numbered pieces of work, as locks on the bytes of a file: whatever ends a process ends its claims.

    The locks are POSIX record locks, which NFS and Lustre (mounted with ``flock``) pass on to other machines. Where the file
    system has none every claim succeeds, so two processes may do the same work. Threads of a process share its claims.

    Raises `DiskError` if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        with disk_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def take(self, number: int) -> bool:
        """Takes a piece of work; False if another process has it."""
        if fcntl is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def give_back(self, number: int) -> None:
        """Ends a claim."""
        if fcntl is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)
            except OSError:  # a file system without locks
                return

    def close(self) -> None:
        """Ends all claims."""
        os.close(self._file)
