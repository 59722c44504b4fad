"""Recording of bad images. The policy decides whether the run continues. Bad images are never replaced."""

from __future__ import annotations

import csv
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Literal

from vitrail.errors import ConfigError, DataError, nearest

MOST_BAD = 0.01  # fraction of bad images that is accepted by default
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


class BadImages:
    """Called with (key, reason) for every bad image of a run.

    Each image is recorded once, also when the run is resumed, as a line ``path,reason`` of a CSV file.

    Args:
        policy: `skip` continues until too many images are bad; `stop` ends at the first.
        most: the fraction of the images that may be bad under `skip`.
        path: of the CSV file, created for the first bad image; None writes no file. An existing file is continued.
        total: number of images, of which ``most`` is a fraction.
        keys: of the images; entries of an existing file for other images are not counted.

    Raises:
        ConfigError: an unknown policy.
    """

    def __init__(
        self,
        policy: Literal["skip", "stop"] = "skip",
        most: float = MOST_BAD,
        path: str | os.PathLike[str] | None = None,
        *,
        total: int,
        keys: Container[str] | None = None,
    ) -> None:
        if policy not in ("skip", "stop"):
            raise ConfigError(f"the policy for bad images is {policy!r}", nearest(str(policy), ("skip", "stop")))
        self.policy, self.most, self.total = policy, most, total
        self.path = None if path is None else Path(path)
        before = read_bad_images(self.path) if self.path and self.path.exists() else {}
        self.reasons = {key: reason for key, reason in before.items() if keys is None or key in keys}

    def __len__(self) -> int:
        return len(self.reasons)

    def __call__(self, key: str, reason: str) -> None:
        """Record one image. Raises `DataError` if the policy does not allow it."""
        if key not in self.reasons:
            self.reasons[key] = reason
            self._write(key, reason)
        if self.policy == "stop":
            raise DataError(f"the image {key} is bad: {reason}", "repair or remove it, or set data.on_bad=skip")
        if len(self.reasons) > self.most * self.total:
            listed = f"; they are listed in {self.path}" if self.path else ""
            raise DataError(
                f"{len(self.reasons):,} of {self.total:,} images are bad, more than {100 * self.most:.4g} %; "
                f"the last: {key}: {reason}",
                f"repair them, or allow more bad images with --max-bad{listed}",
            )

    def merge(self, reasons: Mapping[str, str]) -> None:
        """Record the images that another process found. Raises `DataError` if there are too many."""
        for key, reason in reasons.items():
            if key not in self.reasons:
                self(key, reason)

    def _write(self, key: str, reason: str) -> None:
        if self.path is None:
            return
        new = not self.path.exists()
        with open(self.path, "a", encoding="utf-8", errors="surrogatepass", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            if new:
                table.writerow(("path", "reason"))
            table.writerow((escape_formula(key), escape_formula(reason)))


def escape_formula(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet could take for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def read_bad_images(path: Path) -> dict[str, str]:
    """The images and reasons in a file that `BadImages` wrote; an incomplete last line is ignored."""
    with open(path, encoding="utf-8", errors="surrogatepass", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2]
    return {key.removeprefix("'"): reason.removeprefix("'") for key, reason in rows[1:]}
