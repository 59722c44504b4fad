"""What becomes of a bad image: it is named, counted, and passed over or the end, by policy; never replaced."""

from __future__ import annotations

import csv
import os
from collections.abc import Container
from pathlib import Path
from typing import Literal

from vitrail.errors import ConfigError, DataError, nearest

FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


class BadImages:
    """Called with (key, reason) for every bad image that a run meets.

    Each image is recorded once, also over the restarts of a run, as a line ``path,reason`` of a CSV file.

    Args:
        policy: `skip` goes on until too many are bad; `stop` ends with the first.
        most: the part of the set that may be bad under `skip`.
        path: of the CSV file, made with the first bad image; None writes none. One that exists is continued.
        total: images of the set that ``most`` is a part of.
        keys: of the images of the set, where the file may be that of another set, whose images do not count.

    Raises:
        ConfigError: a policy that does not exist.
    """

    def __init__(
        self,
        policy: Literal["skip", "stop"] = "skip",
        most: float = 0.01,
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
        """Records one image. Raises `DataError` where the policy ends here."""
        if key not in self.reasons:
            self.reasons[key] = reason
            self._write(key, reason)
        if self.policy == "stop":
            raise DataError(f"the image {key} is bad: {reason}", "mend it or take it away, or skip bad images")
        if len(self.reasons) > self.most * self.total:
            listed = f"; they are listed in {self.path}" if self.path else ""
            raise DataError(
                f"{len(self.reasons):,} of {self.total:,} images are bad, more than {100 * self.most:.4g} %; "
                f"the last: {key}: {reason}",
                f"mend them, or allow more of them to be bad, with --max-bad{listed}",
            )

    def _write(self, key: str, reason: str) -> None:
        if self.path is None:
            return
        new = not self.path.exists()
        with open(self.path, "a", encoding="utf-8", errors="surrogatepass", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            if new:
                table.writerow(("path", "reason"))
            table.writerow((quoted(key), quoted(reason)))


def quoted(text: str) -> str:
    """A text that no spreadsheet takes for a formula: an apostrophe before what could begin one."""
    return f"'{text}" if text.startswith(FORMULA) else text


def read_bad_images(path: Path) -> dict[str, str]:
    """The images named in a file that `BadImages` wrote, and their reasons; a last line cut short is left out."""
    with open(path, encoding="utf-8", errors="surrogatepass", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2]
    return {key.removeprefix("'"): reason.removeprefix("'") for key, reason in rows[1:]}
