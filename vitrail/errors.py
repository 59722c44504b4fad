"""Errors that a user can fix: one class per exit code. A message says *what* is wrong, shows the *value*, and gives the *remedy*.

The command line prints it without a traceback and exits with the ``code`` of the class; Python code catches the class.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class VitrailError(Exception):
    """Base class of all errors that a user can fix.

    Args:
        what: the problem, including the offending value, without a full stop at the end.
        remedy: what to do about it; empty only if nothing helps.
        value: more lines with details (a table, a difference), printed between the two.
    """

    code = 1
    reported: bool | None = None  # where every rank of a training raises it: whether another one prints it

    def __init__(self, what: str, remedy: str = "", *, value: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy, self.value = what, remedy, value

    def __str__(self) -> str:
        parts = [self.what, *self.value.splitlines(), *([f"hint: {self.remedy}"] if self.remedy else [])]
        return "\n  ".join(parts)


class ConfigError(VitrailError, ValueError):
    """An invalid flag, key, name or combination. Exit 2."""

    code = 2


class InUseError(ConfigError):
    """A folder that another process works in. Exit 2."""


class DataError(VitrailError):
    """A data set, a manifest or an image that cannot be used. Exit 3."""

    code = 3


class CheckpointError(VitrailError):
    """Weights or a checkpoint that cannot be used: damaged, in an unknown format, or from another run. Exit 4."""

    code = 4


class DivergedError(VitrailError):
    """The loss or a gradient is no longer finite. Exit 5."""

    code = 5


class DiskError(VitrailError):
    """The disk is full, or a folder cannot be written. Exit 6."""

    code = 6


class LostProcessError(VitrailError):
    """A process that works for this one was ended from outside, as the kernel does where memory runs out. Exit 7."""

    code = 7


class LostRankError(LostProcessError):
    """Another process of a training that spans several ended or does not answer. Exit 7."""


class Preempted(VitrailError):
    """Stopped by SIGTERM; the state is saved and the same command resumes. Exit 75."""

    code = 75


class Interrupted(VitrailError):
    """Stopped by Ctrl-C; the state is saved and the same command resumes. Exit 130."""

    code = 130


_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


def find_fault(name: str) -> str:
    """Why a name cannot be shown or stored, such as "has control characters"; empty if it can."""
    if _CONTROLS.search(name):
        return "has control characters"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "is not UTF-8 text"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch on a CPU or torch on a GPU could not allocate memory."""
    names = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported here
    told = any(words in str(error).lower() for words in ("out of memory", "can't allocate memory"))
    return told or bool(names & {"MemoryError", "OutOfMemoryError"})


def explain_system(error: BaseException) -> tuple[str, str] | None:
    """Returns what is wrong and the remedy where the operating system refused memory, files or a disk; None for other errors."""
    if is_out_of_memory(error):
        remedy = "give a smaller --batch, close other programs, or raise the limit (ulimit -v)"
        return f"there is not enough memory: {error or 'no details'}", remedy
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open: {error}", "raise the limit (ulimit -n 1024), or use fewer data workers"
    if number == errno.EIO:
        return f"a disk cannot be read or written: {error}", "check the disk, and put the file back from a copy"
    return None


LISTED, BEGINNING = 100, 12  # longest list of names that is shown in full; names shown of a longer one


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """The known names closest to ``name``, as a remedy: ``"did you mean 'size'?"``; all or the first of them if none is close."""
    known = [str(option) for option in known]
    lowered = {option.lower(): option for option in known}
    close = [lowered[match] for match in get_close_matches(name.lower(), lowered, n=most, cutoff=0.5)]
    if close:
        return suggest(close)
    shown = sorted(known) if len(known) <= LISTED else sorted(known)[:BEGINNING]
    more = f" and {len(known) - len(shown):,} more" if len(known) > len(shown) else ""
    return "choose one of " + ", ".join(shown) + more


def suggest(names: Iterable[str]) -> str:
    return "did you mean " + " or ".join(map(repr, names)) + "?"


def find_close_paths(path: Path) -> tuple[Path, list[str]]:
    """Returns the nearest folder above a path that does not exist, and up to three paths in it whose names are close."""
    folder = next(each for each in path.parents if os.path.isdir(each))
    try:
        names = {name.lower(): name for name in os.listdir(folder) if not name.startswith(".")}
    except OSError:
        names = {}
    close = get_close_matches(path.relative_to(folder).parts[0].lower(), names, n=3, cutoff=0.5)
    return folder, [str(folder / names[name]) for name in close]
