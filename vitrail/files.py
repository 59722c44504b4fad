"""Atomic writing of files and folders, with clear errors when the disk is full or not writable.

A temporary name beside a place says what it is and which process made it: ``.PLACE.writing-PROCESS@HOST`` may be incomplete,
``.PLACE.replaced-...`` is the folder that stood there, and ``.PLACE.moving-...`` holds complete files on their way. So
`settle` can finish or undo what a killed process began.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vitrail.checksums import FIELD, add_checksum, is_intact
from vitrail.errors import ConfigError, DataError, DiskError, VitrailError
from vitrail.untrusted.json_documents import parse_json

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}


@contextmanager
def disk_errors(place: Path, *, needed: int = 0) -> Iterator[None]:
    """Turn the operating system's errors about a disk into a `DiskError` with the bytes needed and free."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskError(
                f"the disk is full: {place} could not be written",
                "free some space or choose another --out; what was saved before is intact and the same command resumes",
                value=f"needed {needed / 1e6:,.1f} MB, free {free_bytes(place) / 1e6:,.1f} MB" if needed else "",
            ) from error
        if error.errno in _FORBIDDEN:
            raise DiskError(f"{place} cannot be written: {error.strerror}", "choose a writable --out") from error
        what = f"{place} could not be written: {error}"
        raise DiskError(what, "check the disk, then run the command again") from error


def cache_folder(name: str) -> Path:
    """A folder for what can be found again: ``name`` in ``VITRAIL_CACHE``, else in ``~/.cache/vitrail``."""
    given = os.environ.get("VITRAIL_CACHE")
    return (Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail") / name


def free_bytes(place: Path) -> int:
    """Free bytes on the file system of ``place``, or of its nearest existing parent."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def write_bytes(path: Path, content: bytes) -> None:
    """Write and sync ``path``. Not atomic by itself."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames inside ``folder`` survive a loss of power, if the system can sync a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def stage_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``. What was written there is synced and takes its place, unless an error is raised.

    Errors of the caller pass unchanged; raises `DiskError` if the file cannot be put in its place.
    """
    beside = _beside(path, "writing")
    try:
        yield beside
        with disk_errors(path):
            with open(beside, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):  # missing after success, or in a folder that does not exist
            beside.unlink()


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace ``path`` atomically: a reader sees the old file or the new one."""
    with stage_file(path) as beside, disk_errors(path):
        write_bytes(beside, content.encode() if isinstance(content, str) else content)


@contextmanager
def stage_folder(place: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder next to ``place`` with ``files`` by name, synced. Removed on exit unless it was moved."""
    aside = _beside(place, "writing")
    settle(place)
    with disk_errors(place):
        try:
            aside.mkdir(parents=True)
            for name, content in files.items():
                write_bytes(aside / name, content)
            sync_folder(aside)
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def replace_folder(folder: Path, new: Path) -> None:
    """Replace ``folder`` by ``new``, a folder of `stage_folder`. If it fails, the old folder is restored."""
    old = _beside(folder, "replaced")
    try:
        if folder.is_dir():
            os.rename(folder, old)
        os.rename(new, folder)
        sync_folder(folder.parent)
    finally:
        if old.is_dir() and not folder.is_dir():
            os.rename(old, folder)
        shutil.rmtree(old, ignore_errors=True)


def move_files(place: Path, new: Path) -> None:
    """Moves the files in ``new``, a folder of `stage_folder`, beside each other: ``place`` last, over those that are there.

    If the process is killed or the disk fails meanwhile, `settle` moves the rest.
    """
    moving, count = _beside(place, "moving"), len(list(new.iterdir()))
    os.rename(new, moving)
    try:
        _move_out(moving, place)
    except OSError:
        if len(list(moving.iterdir())) == count:
            shutil.rmtree(moving)  # what was there is still whole
        raise


def _move_out(moving: Path, place: Path) -> None:
    for part in sorted(moving.iterdir(), key=lambda part: (part.name == place.name, part.name)):
        os.replace(part, place.with_name(part.name))
    sync_folder(place.parent)
    moving.rmdir()


def _beside(place: Path, what: str) -> Path:
    return place.with_name(f".{place.name}.{what}-{os.getpid()}@{socket.gethostname()}")


def settle(place: Path) -> None:
    """Finishes or undoes what killed processes left of writing ``place``: afterwards it is whole, old or new.

    What belongs to a running process, or to another machine, is left alone. Does nothing on a disk that cannot be written.
    """
    settle_folder(place.parent, re.escape(place.name))


def settle_folder(folder: Path, names: str = ".+") -> None:
    """Does what `settle` does for everything directly in ``folder`` whose name matches the pattern ``names``."""
    leftover = re.compile(rf"\.({names})\.(writing|replaced|moving)-(\d+)(?:@(.+))?", re.DOTALL)
    with suppress(OSError, ValueError):  # ValueError: a NUL in the name
        found = [(path, match) for path in folder.iterdir() if (match := leftover.fullmatch(path.name))]
        # complete files are moved, and old folders put back, before anything is removed
        for path, match in sorted(found, key=lambda pair: ("moving", "replaced", "writing").index(pair[1][2])):
            if match[4] in (None, socket.gethostname()) and is_gone(int(match[3])):
                _settle(path, folder / match[1], match[2])


def _settle(leftover: Path, place: Path, what: str) -> None:
    if what == "moving":
        _move_out(leftover, place)
    elif what == "replaced" and not place.exists():
        os.rename(leftover, place)
    elif leftover.is_dir():
        shutil.rmtree(leftover)
    else:
        leftover.unlink()


def is_gone(process: int) -> bool:
    """Whether a process of this machine has ended. One with the number of this process ended before it; False if unknown."""
    if process == os.getpid():
        return True
    if sys.platform == "win32":  # os.kill would end the process there
        return False
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def dump_json(value: Any) -> str:
    """JSON as this project writes it: indented, in insertion order, without escaping non-ASCII text."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def replace_nan(value: Any) -> Any:
    """Replaces NaN and infinities by None, as JSON has neither."""
    if isinstance(value, Mapping):
        return {key: replace_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_checksummed(path: Path, value: Mapping[str, Any]) -> None:
    """Replaces a JSON file atomically, with a checksum in it."""
    replace_file(path, dump_json(add_checksum(value)))


def read_checksummed(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object that vitrail wrote; None if it is missing or damaged."""
    try:
        return parse_checksummed(path.read_bytes())
    except (OSError, ValueError):
        return None


def parse_checksummed(content: bytes) -> dict[str, Any]:
    """Parses a JSON object that vitrail wrote, without its checksum. Raises `ValueError` if it is damaged."""
    value = parse_json(content)
    if not isinstance(value, dict) or not is_intact(value):
        raise ValueError("it does not match its checksum")
    return {name: part for name, part in value.items() if name != FIELD}


@contextmanager
def document_errors(path: Path, remedy: str, kind: type[VitrailError] = DataError) -> Iterator[None]:
    """Turns what is raised while the content of a document is used that is not as vitrail wrote it into a ``kind`` of error."""
    try:
        yield
    except VitrailError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{path} was changed after vitrail wrote it: {type(error).__name__}: {error}"
        raise kind(what, remedy) from error


def ensure_folder(folder: Path) -> None:
    """Creates a folder with those that it is in, unless it exists. Raises `DiskError`."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def make_folder(out: Path) -> None:
    """Create an output folder. Raises `ConfigError` for the folder of a run (its report would be lost), and `DiskError`."""
    if (out / "status.json").exists() and (out / "config.yaml").exists():
        raise ConfigError(f"{out} is the folder of a run", f"give another folder, such as {out / 'inside'}")
    ensure_folder(out)
    settle_folder(out)
