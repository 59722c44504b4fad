"""The files of run directories and studies, as the server reads them: their content is not trusted.

Links are not followed; broken, incomplete or too large files are ignored.
"""

from __future__ import annotations

import math
import os
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.checksums import is_text_intact, parse_line
from vitrail.files import parse_sealed
from vitrail.untrusted.json_documents import check_unicode
from vitrail.untrusted.yaml_documents import parse_yaml

PROGRESS = "progress.json"  # of a study
MARKS = ("status.json", "config.yaml", ".lock", PROGRESS)  # a folder with one of these files is a run, or a study
MOST_BYTES = 1 << 20  # read at a time; of a status, configuration or progress, in all
MOST_VALUES = 1 << 16  # of the rows of a file that are kept, see `size_of_rows`

Row = dict[str, float | None]


class Stamp(NamedTuple):
    """Identity and modification time of a file: the key of the caches."""

    path: str
    inode: int
    size: int
    changed: int


def find_runs(folder: Path) -> dict[str, Path]:
    """Returns the runs directly inside ``folder`` by name, without links and hidden folders."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return {}
    folders = {
        entry.name: Path(entry.path) for entry in entries if not entry.name.startswith(".") and _is_folder(entry)
    }
    return {name: path for name, path in sorted(folders.items()) if any(stamp(path / mark) for mark in MARKS)}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()  # a name that is not valid Unicode cannot be requested
        return entry.is_dir(follow_symlinks=False)
    except (OSError, UnicodeEncodeError):
        return False


def stamp(path: Path) -> Stamp | None:
    """Returns the stamp of a regular file, or None if the path is missing or anything else."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return Stamp(str(path), status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def read(path: Path, start: int = 0) -> bytes:
    """Reads a regular file from byte ``start``, at most `MOST_BYTES`; empty for links, pipes and unreadable files."""
    # without O_NONBLOCK, opening a pipe would block until another process opens it for writing
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            file.seek(start)
            return file.read(MOST_BYTES)
    except OSError:
        return b""


@lru_cache(maxsize=256)
def parse_status(file: Stamp) -> Mapping[str, Any]:
    """Returns the content of a sealed JSON file, empty if it is damaged."""
    try:
        return parse_sealed(read(Path(file.path)))
    except ValueError:
        return {}


@lru_cache(maxsize=256)
def parse_settings(file: Stamp) -> Mapping[str, Any]:
    """Returns the content of a config.yaml, empty if it is damaged."""
    try:
        content = read(Path(file.path)).decode()
        settings = parse_yaml(content) if is_text_intact(content) else {}
        check_unicode(settings)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


class Parsed(NamedTuple):
    """The rows of a file up to byte ``at``, and their `size_of_rows`."""

    file: Stamp
    rows: list[Row]
    size: int
    at: int


class RowCache:
    """Cache of the rows of growing files. Only the new bytes are read, unless a file was replaced or truncated.

    From a file whose rows are larger than `MOST_VALUES` rows are taken out by `halve_rows`. If all files together have more than
    ``most`` times as many, those that were requested longest ago are forgotten.
    """

    def __init__(self, most: int = 16) -> None:
        self.most = most
        self._known: dict[str, Parsed] = {}
        self._reading = threading.Lock()

    def rows(self, file: Stamp) -> tuple[list[Row], int]:
        """Returns the rows, which must not be modified, and the number of bytes parsed."""
        with self._reading:
            known = self._known.pop(file.path, Parsed(file, [], 0, 0))
            same = file.size == known.at and file.changed != known.file.changed
            if known.file.inode != file.inode or file.size < known.at or same:
                known = Parsed(file, [], 0, 0)
            known = _read_on(known._replace(file=file))
            self._known[file.path] = known
            while len(self._known) > 1 and sum(each.size for each in self._known.values()) > self.most * MOST_VALUES:
                self._known.pop(next(iter(self._known)))
            return known.rows, known.at


METRICS = RowCache()


def _read_on(known: Parsed) -> Parsed:
    """Returns what is known of a file with the rows after byte ``at``, a part of the file after the other."""
    file, rows, size, at = known
    while at < file.size:
        content = read(Path(file.path), at)
        new = list(parse_rows(content))
        rows, size, at = rows + new, size + size_of_rows(new), at + complete_bytes(content)
        while size > MOST_VALUES and len(rows) > 2:
            rows = halve_rows(rows)
            size = size_of_rows(rows)
        if len(content) < MOST_BYTES:
            break
    return Parsed(file, rows, size, at)


def size_of_rows(rows: list[Row]) -> int:
    """Returns the memory of rows in values; a row itself takes as much as three of them."""
    return sum(len(row) + 3 for row in rows)


def halve_rows(rows: list[Row]) -> list[Row]:
    """Drops every second row of training steps or of evaluations, whichever are more; never the last of a kind."""
    training, evaluations = [row for row in rows if "lr" in row], [row for row in rows if "lr" not in row]
    dropped = {id(row) for row in max(training, evaluations, key=len)[:-1:2]}
    return [row for row in rows if id(row) not in dropped]


def complete_bytes(content: bytes) -> int:
    """Returns the number of bytes up to the end of the last complete line. A line over `MOST_BYTES` is damaged and complete."""
    return content.rfind(b"\n") + 1 or len(content) // MOST_BYTES * MOST_BYTES


def parse_rows(content: bytes) -> Iterator[Row]:
    """Yields the rows of complete lines. Damaged lines, and values that are not numbers, are skipped."""
    for line in content[: complete_bytes(content)].splitlines():
        try:
            record = parse_line(line)
            if type(record.get("step")) is int:
                numbers = {name: value for name, value in record.items() if type(value) in (int, float)}
                yield {sys.intern(str(name)): finite(value) for name, value in numbers.items()}
        except (ValueError, OverflowError):
            continue


def finite(value: float) -> float | None:
    """Returns the value, or None if it is not finite: JSON cannot represent it."""
    return value if math.isfinite(value) else None


def read_rows(run: Path) -> tuple[list[Row], int]:
    """Returns the rows of a run and the byte offset of the next row."""
    file = stamp(run / "metrics.jsonl")
    return METRICS.rows(file) if file else ([], 0)
