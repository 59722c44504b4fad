"""What can go wrong for a user: one class for each exit code, one message of three parts.

A message says *what* is wrong, shows the *value*, and gives the *remedy*. The command line prints it
without a traceback and leaves with the class's ``code``; a Python caller catches the class.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class VitrailError(Exception):
    """Base of every error that a user can mend.

    Args:
        what: the fact, with the offending value in it, without a full stop at the end.
        remedy: what to do about it; empty only where nothing helps.
        value: further lines that show the case (a table, a difference); printed between the two.
    """

    code = 1

    def __init__(self, what: str, remedy: str = "", *, value: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy, self.value = what, remedy, value

    def __str__(self) -> str:
        parts = [self.what, *self.value.splitlines(), *([f"try: {self.remedy}"] if self.remedy else [])]
        return "\n  ".join(parts)


class ConfigError(VitrailError, ValueError):
    """A flag, a key, a name or a combination of them that cannot be meant. Exit 2."""

    code = 2


class DataError(VitrailError):
    """A data set, a manifest or an image that cannot be used as it is. Exit 3."""

    code = 3


class CheckpointError(VitrailError):
    """Weights or a checkpoint that are refused: damaged, foreign, or of another run. Exit 4."""

    code = 4


class DivergedError(VitrailError):
    """The loss or a gradient is no longer finite. Exit 5."""

    code = 5


class DiskError(VitrailError):
    """The disk is full, or a folder cannot be written. Exit 6."""

    code = 6


class Preempted(VitrailError):
    """SIGTERM came; the state is saved and the same command goes on. Exit 75."""

    code = 75


class Interrupted(VitrailError):
    """Ctrl-C came; the state is saved and the same command goes on. Exit 130."""

    code = 130


LISTED, BEGINNING = 100, 12  # names at most in a list, and of a longer one


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """The known names closest to ``name``, as words for a remedy: ``"did you mean 'size'?"``.

    Falls back to the whole list where nothing is close, or to its beginning where it is too long to read.
    """
    known = [str(each) for each in known]
    lowered = {each.lower(): each for each in known}
    close = [lowered[each] for each in get_close_matches(name.lower(), lowered, n=most, cutoff=0.5)]
    if close:
        return "did you mean " + " or ".join(repr(each) for each in close) + "?"
    shown = sorted(known) if len(known) <= LISTED else sorted(known)[:BEGINNING]
    more = f" and {len(known) - len(shown):,} more" if len(known) > len(shown) else ""
    return "choose one of " + ", ".join(shown) + more
