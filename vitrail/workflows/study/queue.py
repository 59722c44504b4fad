"""Work that processes share over a folder: leases, attempts, and the loop of a worker. There is no coordinator.

A piece of work is done when its result is there. Whoever takes it writes a lease, which says who that is and is renewed while he
lives; the lease of a process that is gone, or silent for long, is taken over. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.errors import DiskError, Interrupted, InUseError, Preempted
from vitrail.files import disk_errors, is_gone, read_sealed, write_sealed
from vitrail.work.claims import Claims

HEARTBEAT = 20.0  # seconds between two signs of life
SILENCE = 180.0  # seconds without one after which a lease is free
MOST_FAILURES = 3  # errors after which a cell is not tried again
MOST_DEATHS = 20  # of its process, killed from outside: by the system for its memory, by a user or by a test
POLL = 0.5  # seconds between two looks for work that others may leave


@cache
def boot_id() -> str:
    """What tells this boot of the machine from another; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_taken(lease: Path) -> bool:
    """Whether a lease exists and its holder lives, as far as can be told from here."""
    try:
        text, renewed = lease.read_text(), lease.stat().st_mtime
    except OSError:
        return False
    try:
        holder = json.loads(text)
    except ValueError:  # it is being written, or its writer died
        holder = {}
    here = holder.get("host") == socket.gethostname() and holder.get("boot") == boot_id()
    if here and is_gone(holder["process"]):
        return False
    return _clock(lease.parent) - renewed < SILENCE


def _clock(folder: Path) -> float:
    """The time of the file system, whose clock may not be this machine's."""
    path = folder / ".clock"
    with disk_errors(path):
        path.touch()
        return path.stat().st_mtime


class Queue:
    """The leases and the attempts in the ``folder`` of a study."""

    def __init__(self, folder: Path) -> None:
        self.leases, self.attempts = folder / "leases", folder / "attempts"
        with disk_errors(folder):
            self.leases.mkdir(parents=True, exist_ok=True)
            self.attempts.mkdir(exist_ok=True)
        self._takeovers = Claims(folder / "leases" / ".takeovers")

    @contextmanager
    def hold(self, key: str) -> Iterator[bool]:
        """Holds the lease of ``key`` inside, with a sign of life every `HEARTBEAT` seconds; False if another process has it."""
        lease = self.leases / key
        if not self._take(lease, key):
            yield False
            return
        ended = threading.Event()
        renewer = threading.Thread(target=_renew, args=(lease, ended), daemon=True)
        renewer.start()
        try:
            yield True
        finally:
            ended.set()
            renewer.join()
            if _is_own(lease):  # a machine that slept for long may have lost it
                with suppress(OSError):
                    lease.unlink()

    def _take(self, lease: Path, key: str) -> bool:
        if _create(lease):
            return True
        # only one process at a time looks at the lease of a dead one and replaces it, or two would
        if is_taken(lease) or not self._takeovers.take(0):
            return False
        try:
            if is_taken(lease):
                return False
            self._count(key, "deaths")
            lease.unlink(missing_ok=True)
            return _create(lease)
        finally:
            self._takeovers.release(0)

    def is_held(self, key: str) -> bool:
        """Whether a living process works on ``key``."""
        return is_taken(self.leases / key)

    def tries(self, key: str) -> dict[str, Any]:
        """``failures``, the errors so far, and ``deaths`` of its process."""
        return {"failures": [], "deaths": 0, **(read_sealed(self.attempts / f"{key}.json") or {})}

    def fail(self, key: str, error: str) -> None:
        """Notes that an attempt ended with an error."""
        self._count(key, "failures", [error])

    def _count(self, key: str, what: str, by: Any = 1) -> None:
        tries = self.tries(key)
        write_sealed(self.attempts / f"{key}.json", {**tries, what: tries[what] + by})


def _holder() -> str:
    """What a lease of this process says."""
    return json.dumps({"host": socket.gethostname(), "boot": boot_id(), "process": os.getpid()})


def _create(lease: Path) -> bool:
    """Writes a lease of this process, unless there is one. Raises `DiskError`."""
    with disk_errors(lease):
        try:
            handle = os.open(lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        try:
            os.write(handle, _holder().encode())
        except OSError:
            lease.unlink()
            raise
        finally:
            os.close(handle)
    return True


def _is_own(lease: Path) -> bool:
    try:
        return lease.read_text() == _holder()
    except OSError:
        return False


def _renew(lease: Path, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT):
        if _is_own(lease):
            with suppress(OSError):
                os.utime(lease)


@dataclass(frozen=True)
class Work:
    """What a worker asks and does; `work` is the loop around it.

    Args:
        ready: the keys that have no result and may be computed now, in the order of their turn; None if all are done.
        is_done: whether a result is there.
        compute: computes and keeps the result of a key.
        give_up: keeps a named failure as the result of a key, from the error of the last attempt and their number.
    """

    ready: Callable[[], Sequence[str] | None]
    is_done: Callable[[str], bool]
    compute: Callable[[str, int], None]
    give_up: Callable[[str, str, int], None]


def work(queue: Queue, work: Work, *, poll: float = POLL) -> int:
    """Computes what nobody else does until everything has a result, and returns how many this process computed.

    An error of one key is noted, and it is tried again later, `MOST_FAILURES` times in all. Raises `DiskError`, `Preempted` and
    `Interrupted`, which concern all keys and are no failure of one.
    """
    computed = 0
    while (keys := work.ready()) is not None:
        if not any(_try(queue, work, key) for key in keys):
            time.sleep(poll)
            continue
        computed += 1
    return computed


def _try(queue: Queue, work: Work, key: str) -> bool:
    """Whether this process took the key."""
    with queue.hold(key) as held:
        if not held or work.is_done(key):  # it may have been computed since the list was made
            return False
        tries = queue.tries(key)
        failures, deaths = tries["failures"], tries["deaths"]
        if len(failures) >= MOST_FAILURES or deaths >= MOST_DEATHS:
            why = failures[-1] if len(failures) >= MOST_FAILURES else f"its process was killed {deaths} times"
            work.give_up(key, why, len(failures) + deaths)
            return True
        try:
            work.compute(key, len(failures) + deaths + 1)
        except (DiskError, Preempted, Interrupted):
            raise
        except InUseError:  # whoever lost the lease while the machine slept still trains there
            return False
        except Exception as error:  # whatever it is, the other cells go on
            queue.fail(key, f"{type(error).__name__}: {error}")
        return True
