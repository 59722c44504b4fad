"""Numbered pieces of work that processes share: each is taken by one process at a time, without a coordinator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from vitrail.files import disk_errors

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]


Piece = TypeVar("Piece")


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

    def take_open(self, number: int, is_done: Callable[[], bool]) -> bool:
        """Takes a piece of work that has no result; another process may have computed it since it was listed."""
        if not self.take(number):
            return False
        if is_done():
            self.release(number)
            return False
        return True

    def is_taken(self, number: int) -> bool:
        """Returns whether another process has a piece of work; for a process that has none itself."""
        if not self.take(number):
            return True
        self.release(number)
        return False

    def release(self, number: int) -> None:
        """Ends a claim."""
        if fcntl is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)
            except OSError:  # a file system without locks
                return

    def close(self) -> None:
        """Ends all claims."""
        os.close(self._file)


def work_through(
    list_open: Callable[[], Sequence[Piece] | None],
    compute: Callable[[Sequence[Piece]], int],
    *,
    poll: float,
    on_wait: Callable[[Sequence[Piece]], None] = lambda pieces: None,
) -> int:
    """Computes pieces of work until all have a result, waits for those that other processes compute, and returns the sum of what
    ``compute`` returned.

    Args:
        list_open: returns the pieces that have no result and may be computed now, or None if every piece has one.
        compute: computes some of them that no other process has; returns 0 if there are none.
        poll: seconds before a piece is tried again that another process has.
        on_wait: called when this process begins to wait for the first time.
    """
    computed, waited, pieces = 0, False, list_open()
    while pieces is not None:
        count = compute(pieces)
        computed, pieces = computed + count, list_open()
        if count or pieces is None:
            continue
        if not waited:
            on_wait(pieces)
        waited = True
        time.sleep(poll)
    return computed
