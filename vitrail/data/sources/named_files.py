"""Files that text names: paths in annotations, lists and tables, as other systems write them."""

from __future__ import annotations

import os
import unicodedata
from functools import lru_cache

from vitrail.data.sources.contents import normalise_path


class NamedFiles:
    """Finds files below ``root`` by the paths that a text gives.

    A path is tried as it stands. If there is no such file, backslashes are taken as separators, as on Windows, and names are
    compared in Unicode's composed form (NFC), since macOS and Linux write the same accents differently.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self._list_composed = lru_cache(maxsize=None)(_list_composed)

    def find(self, name: str) -> str | None:
        """Returns the path of a file or folder as it is stored on the disk, with forward slashes; None if it does not exist."""
        if os.path.exists(os.path.join(self.root, name)):
            return name
        if name.isascii() and "\\" not in name:
            return None
        try:
            slashed = normalise_path(name.replace("\\", "/"))
        except ValueError:  # it leads out of the folder
            return None
        if os.path.exists(os.path.join(self.root, slashed)):
            return slashed
        return self._find_composed(slashed)

    def find_file(self, name: str) -> str | None:
        """Returns the path of a file as `find` does; None for a folder."""
        found = self.find(name)
        return found if found is not None and os.path.isfile(os.path.join(self.root, found)) else None

    def _find_composed(self, name: str) -> str | None:
        found = "/" if name.startswith("/") else ""
        for part in name.split("/"):
            if not part:
                continue
            stored = self._list_composed(os.path.join(self.root, found)).get(unicodedata.normalize("NFC", part))
            if stored is None:
                return None
            found = os.path.join(found, stored)
        return found


def _list_composed(folder: str) -> dict[str, str]:
    """The names in a folder by their composed form; empty for anything else than a folder."""
    try:
        return {unicodedata.normalize("NFC", name): name for name in sorted(os.listdir(folder))}
    except OSError:
        return {}
