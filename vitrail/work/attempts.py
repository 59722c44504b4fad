"""What became of the attempts at pieces of work: errors, and processes that were killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import DiskError, Interrupted, InUseError, Preempted
from vitrail.files import disk_errors, read_sealed, write_sealed

MOST_FAILURES = 3  # errors after which a piece of work is not tried again
MOST_DEATHS = 20  # of its process, killed from outside: by the system for its memory, by a user or by a test
STOPPED = (DiskError, Preempted, Interrupted, InUseError)  # they concern all pieces, and are no failure of one


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
    """The attempts at each piece of work, in a file of its own in ``folder``. Only the process that has the claim on a piece of
    work begins an attempt at it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Tries:
        """Returns the attempts so far; none where the file is missing or damaged."""
        found = read_sealed(self.folder / f"{name}.json") or {}
        return Tries(int(found.get("begun", 0)), tuple(found.get("failures", ())))

    def _write(self, name: str, tries: Tries) -> None:
        write_sealed(self.folder / f"{name}.json", {"begun": tries.begun, "failures": list(tries.failures)})

    def run(self, name: str, compute: Callable[[int], None], give_up: Callable[[str, int], None]) -> None:
        """Makes one attempt at a piece of work, or gives it up after `MOST_FAILURES` errors or `MOST_DEATHS` deaths.

        Args:
            compute: computes and keeps the result, given the number of the attempt, from 1.
            give_up: keeps a failure as the result, given the last error and the number of attempts.

        Raises `DiskError`, `Preempted`, `Interrupted` and `InUseError`, after which the attempt counts as not begun. Any other
        error is noted.
        """
        tries = self.read(name)
        if len(tries.failures) >= MOST_FAILURES:
            return give_up(tries.failures[-1], tries.begun)
        if tries.deaths >= MOST_DEATHS:
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
