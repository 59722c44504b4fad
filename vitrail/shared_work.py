"""Pieces of work that processes share without a coordinator.

Each is claimed by one process at a time and its attempts are counted; `work_through` computes until all have a result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vitrail.errors import DiskError, Interrupted, InUseError, Preempted
from vitrail.files import disk_errors, read_checksummed, write_checksummed

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

MAX_FAILURES = 3  # errors after which a piece of work is not tried again
MAX_DEATHS = 20  # of its process, killed from outside: by the system for its memory, by a user or by a test
STOPPED = (DiskError, Preempted, Interrupted, InUseError)  # they concern all pieces, and are no failure of one
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
        if fcntl is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError as error:  # others are those of a file system without locks
                return not isinstance(error, BlockingIOError | PermissionError)
        return True

    def take_open(self, number: int, is_done: Callable[[], bool]) -> bool:
        """Takes a piece of work that has no result; another process may have computed it since it was listed."""
        if not self.take(number):
            return False
        if is_done():
            self.release(number)
            return False
        return True

    def release(self, number: int) -> None:
        """Ends a claim."""
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        """Ends all claims."""
        os.close(self._file)


@dataclass(frozen=True)
class Tries:
    """The number of attempts that were ``begun``, and the errors of those that failed."""

    begun: int = 0
    failures: tuple[str, ...] = ()

    @property
    def deaths(self) -> int:
        """Returns how many attempts have no outcome: their process was killed. None runs while this process has the claim."""
        return self.begun - len(self.failures)


class Attempts:
    """The attempts at each piece of work, in a file of its own in ``folder``. Only the process with its claim begins one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Tries:
        """Returns the attempts so far; none where the file is missing or damaged."""
        found = read_checksummed(self.folder / f"{name}.json") or {}
        return Tries(int(found.get("begun", 0)), tuple(found.get("failures", ())))

    def _write(self, name: str, tries: Tries) -> None:
        write_checksummed(self.folder / f"{name}.json", {"begun": tries.begun, "failures": list(tries.failures)})

    def run(self, name: str, compute: Callable[[int], None], give_up: Callable[[str, int], None]) -> None:
        """Makes one attempt at a piece of work, or gives it up after `MAX_FAILURES` errors or `MAX_DEATHS` deaths.

        Args:
            compute: computes and keeps the result, given the number of the attempt, from 1.
            give_up: keeps a failure as the result, given the last error and the number of attempts.

        Raises the errors in `STOPPED`, after which the attempt counts as not begun. Any other error is noted.
        """
        tries = self.read(name)
        if len(tries.failures) >= MAX_FAILURES:
            return give_up(tries.failures[-1], tries.begun)
        if tries.deaths >= MAX_DEATHS:
            return give_up(f"its process was killed {tries.deaths} times", tries.begun)
        self._write(name, Tries(tries.begun + 1, tries.failures))
        try:
            compute(tries.begun + 1)
        except STOPPED:
            with suppress(DiskError):  # a full disk is what stopped it
                self._write(name, tries)
            raise
        except Exception as error:
            self._write(name, Tries(tries.begun + 1, (*tries.failures, f"{type(error).__name__}: {error}")))
        else:
            (self.folder / f"{name}.json").unlink(missing_ok=True)


def work_through(
    list_open: Callable[[], Sequence[Piece] | None],
    compute: Callable[[Sequence[Piece]], int],
    *,
    poll: float,
    on_wait: Callable[[Sequence[Piece]], None] = lambda pieces: None,
) -> int:
    """Computes pieces of work until all have a result, waits for other processes, and returns the sum of what it computed.

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
