"""Recording of bad images. The policy decides whether the run continues. Bad images are never replaced."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Literal

from vitrail.checksums import crc_of
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.files import disk_errors, replace_file
from vitrail.text import escape_formula

MAX_BAD = 0.01  # fraction of bad images that is accepted by default
COLUMNS, EARLIER = ["path", "reason", "crc32"], ["path", "reason"]


class BadImages:
    """Called with (key, reason) for every bad image of a run.

    Each image is recorded once, also when the run is resumed, as a row of a CSV file: its path, the reason, and a CRC-32.

    The policy `skip` continues until the fraction ``most`` of the ``total`` of images is bad; `stop` ends at the first. The file
    is created for the first bad image; an existing one is continued without its damaged rows, whose images are recorded again
    when they are met. Of those in it only the images with these ``keys`` count. Raises `ConfigError` for an unknown policy, and
    `DiskError` for a file that cannot be read or written.
    """

    def __init__(
        self,
        policy: Literal["skip", "stop"] = "skip",
        most: float = MAX_BAD,
        path: str | os.PathLike[str] | None = None,
        *,
        total: int,
        keys: Container[str] | None = None,
    ) -> None:
        if policy not in ("skip", "stop"):
            raise ConfigError(f"the policy for bad images is {policy!r}", nearest(str(policy), ("skip", "stop")))
        self.policy, self.most, self.total = policy, most, total
        self.path = None if path is None else Path(path)
        before = {} if self.path is None else read_bad_images(self.path)
        if self.path is not None and count_damaged_rows(self.path):  # what is appended would become part of them
            replace_file(self.path, _format(before, head=True))
        self.reasons = {key: reason for key, reason in before.items() if keys is None or key in keys}

    def __len__(self) -> int:
        return len(self.reasons)

    def __call__(self, key: str, reason: str) -> None:
        """Record one image. Raises `DataError` if the policy does not allow it."""
        if key not in self.reasons:
            self.reasons[key] = reason
            if self.path is not None:
                with disk_errors(self.path), open(self.path, "ab") as file:
                    file.write(_format({key: reason}, head=not file.tell()))
        if self.policy == "stop":
            raise DataError(f"the image {key} is bad: {reason}", "repair or remove it, or set data.on_bad=skip")
        if len(self.reasons) > self.most * self.total:
            listed = f"; they are listed in {self.path}" if self.path else ""
            what = f"{len(self.reasons):,} of {self.total:,} images are bad, more than {100 * self.most:.4g} %"
            remedy = f"repair them, or allow more bad images with --max-bad{listed}"
            raise DataError(f"{what}; the last: {key}: {reason}", remedy)

    def merge(self, reasons: Mapping[str, str]) -> None:
        """Record the images that another process found. Raises `DataError` if there are too many."""
        for key, reason in reasons.items():
            if key not in self.reasons:
                self(key, reason)


def read_bad_images(path: Path) -> dict[str, str]:
    """The images and reasons in the whole rows of a file that `BadImages` wrote, if there is one. Raises `DiskError`."""
    return {key.removeprefix("'"): reason.removeprefix("'") for key, reason in filter(None, _read_rows(path))}


def count_damaged_rows(path: Path) -> int:
    """The number of rows that `read_bad_images` leaves out because they are damaged or cut off. Raises `DiskError`."""
    return _read_rows(path).count(None)


def _format(reasons: Mapping[str, str], *, head: bool) -> bytes:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    if head:
        table.writerow(COLUMNS)
    for row in ((escape_formula(key), escape_formula(reason)) for key, reason in reasons.items()):
        table.writerow((*row, crc_of("\0".join(row).encode("utf-8", "surrogatepass"))))
    return text.getvalue().encode("utf-8", "surrogatepass")


def _read_rows(path: Path) -> list[tuple[str, str] | None]:
    """The first two fields of each row below the names of the columns; None for a row that is damaged or cut off."""
    if not path.exists():
        return []
    with disk_errors(path):
        # damage may be no UTF-8: any bytes are read, and those of a row with its CRC-32 are decoded again
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader(io.StringIO(text, newline="")))
    except csv.Error:  # a quotation mark was damaged, and a field has no end
        rows.append([])
    if text and not text.endswith("\n"):
        rows.append([])
    head = [] if rows[:1] in ([], [COLUMNS], [EARLIER]) else [None]  # a damaged first row may hold others
    return head + [_check_row(row, unverified=rows[0] == EARLIER) for row in rows[1:]]


def _check_row(row: list[str], *, unverified: bool) -> tuple[str, str] | None:
    fields = [field.encode("utf-8", "surrogateescape") for field in row[:2]]
    whole = row[2:] == [crc_of(b"\0".join(fields))] or (unverified and len(row) == 2)
    try:
        key, reason = (field.decode("utf-8", "surrogatepass") for field in fields)
        return (key, reason) if whole else None
    except ValueError:  # it has one field, or is no UTF-8
        return None
