"""A grid of results that is computed cell by cell and kept in a folder, so that the same call resumes where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError
from vitrail.files import ensure_folder, read_checksummed, write_checksummed


@dataclass(frozen=True)
class Cells:
    """The cells in ``folder``, each a JSON file by its name, and the settings that they all share.

    Args:
        folder: a folder that exists.
        about: what the grid is, for messages, as "transfer".
    """

    folder: Path
    about: str

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings into a new folder. Raises `ConfigError` with the difference where it was begun with others."""
        path = self.folder / "settings.json"
        if not path.exists():
            write_checksummed(path, settings)
            return
        before = read_checksummed(path) or {}
        wrong = {name: (before.get(name), now) for name, now in settings.items() if before.get(name) != now}
        if wrong:
            lines = {name: f"{name}: {there!r} there, {now!r} asked" for name, (there, now) in wrong.items()}
            lines |= {"weights": "weights: those of another model"} if "weights" in wrong else {}
            what = f"{self.folder} holds a {self.about} with other settings"
            raise ConfigError(
                what, "choose another --out, or the same model and settings", value="\n".join(lines.values())
            )

    def read(self, name: str) -> dict[str, Any] | None:
        """Reads a cell; None if it is missing or damaged."""
        return read_checksummed(self._path(name))

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Keeps a cell. Raises `DiskError`."""
        ensure_folder(self._path(name).parent)
        write_checksummed(self._path(name), content)

    def _path(self, name: str) -> Path:
        return self.folder / "cells" / f"{name}.json"
