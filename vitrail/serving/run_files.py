"""The files of run directories and studies, as the server reads them: their content is not trusted.

Links are not followed; broken, incomplete or too large files are ignored.
"""

from __future__ import annotations

import math
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vitrail.checksums import check_unicode, is_text_intact, parse_line
from vitrail.files import parse_sealed

PROGRESS = "progress.json"  # of a study
MARKS = ("status.json", "config.yaml", ".lock", PROGRESS)  # a folder with one of these files is a run, or a study
# maximum bytes read per file
LARGEST = {"metrics.jsonl": 64 << 20, "status.json": 1 << 20, "config.yaml": 1 << 20, PROGRESS: 1 << 20}

Row = dict[str, float | None]


class NoAliasLoader(yaml.SafeLoader):
    """Refuses aliases, which vitrail never writes: a few hundred bytes of them become a structure of any size."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


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
    """Reads a regular file from byte ``start``, at most `LARGEST` bytes; empty for links, pipes and unreadable files."""
    # without O_NONBLOCK, opening a pipe would block until another process opens it for writing
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            file.seek(start)
            return file.read(LARGEST[path.name])
    except OSError:
        return b""


@lru_cache(maxsize=256)
def parse_status(file: Stamp) -> Mapping[str, Any]:
    """Returns the content of a sealed JSON file, empty if it is damaged."""
    try:
        return parse_sealed(read(Path(file.path)))
    except (ValueError, RecursionError):
        return {}


@lru_cache(maxsize=256)
def parse_settings(file: Stamp) -> Mapping[str, Any]:
    """Returns the content of a config.yaml, empty if it is damaged."""
    try:
        content = read(Path(file.path)).decode()
        settings = yaml.load(content, Loader=NoAliasLoader) if is_text_intact(content) else {}
        check_unicode(settings)
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


class RowCache:
    """Cache of the rows of growing files. Only the new bytes are read, unless a file was replaced or truncated."""

    def __init__(self, most: int = 64) -> None:
        self.most = most
        self._known: dict[str, tuple[Stamp, list[Row], int]] = {}
        self._reading = threading.Lock()

    def rows(self, file: Stamp) -> tuple[list[Row], int]:
        """Returns the rows, which must not be modified, and the number of bytes parsed."""
        with self._reading:
            before, rows, at = self._known.pop(file.path, (file, [], 0))
            if before.inode != file.inode or file.size < at or (file.size == at and file.changed != before.changed):
                rows, at = [], 0
            if file.size > at:
                content = read(Path(file.path), at)
                rows, at = [*rows, *parse_rows(content)], at + complete_bytes(content)
            self._known[file.path] = file, rows, at
            while len(self._known) > self.most:
                self._known.pop(next(iter(self._known)))
            return rows, at


METRICS = RowCache()


def complete_bytes(content: bytes) -> int:
    """Returns the number of bytes up to the end of the last complete line."""
    return content.rfind(b"\n") + 1


def parse_rows(content: bytes) -> Iterator[Row]:
    """Yields the rows of complete lines. Damaged lines, and values that are not numbers, are skipped."""
    for line in content[: complete_bytes(content)].splitlines():
        try:
            record = parse_line(line)
            if type(record.get("step")) is int:
                yield {str(name): finite(value) for name, value in record.items() if type(value) in (int, float)}
        except (ValueError, RecursionError, OverflowError):
            continue


def finite(value: float) -> float | None:
    """Returns the value, or None if it is not finite: JSON cannot represent it."""
    return value if math.isfinite(value) else None


def read_rows(run: Path) -> tuple[list[Row], int]:
    """Returns the rows of a run and the byte offset of the next row."""
    file = stamp(run / "metrics.jsonl")
    return METRICS.rows(file) if file else ([], 0)
