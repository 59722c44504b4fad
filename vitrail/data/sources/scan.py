"""Lists the folders of a data set: images, other files, and files of the operating system, which are skipped.

Nothing depends on the order in which the file system lists names. A million files are scanned in seconds: no file is opened or
queried for its length, except files without an extension. `NamedFiles` finds files that annotations, lists and tables name, as
other systems write paths.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from vitrail.data.sources.contents import normalise_path, read_head
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS, looks_like_image
from vitrail.text import plural

# of operating systems and file servers: thumbnails, deleted files, snapshots; names that begin with a dot are skipped as well
SYSTEM_NAMES = frozenset(
    {"$recycle.bin", "recycler", "system volume information", "lost+found", "thumbs.db", "ehthumbs.db", "desktop.ini"}
    | {"__macosx", "@eadir", "@tmp", "@recycle", "@recently-snapshot", "@snapshot", "#recycle", "#snapshot"}
)


@dataclass
class Scan:
    """One walk over a data set: counts other files, and remembers folders so that no link enters one twice."""

    others: Counter[str] = field(default_factory=Counter)  # files that are not images, by extension
    system: set[str] = field(default_factory=set)  # folders of the system, which are skipped
    masks: int = 0  # of other images, which `list_images` leaves out
    entered: set[tuple[int, int]] = field(default_factory=set)

    def list_folder(self, folder: str) -> tuple[list[str], list[str]]:
        """Lists the subfolders of a folder and its images, known by extension or first bytes, sorted. Raises `DataError`."""
        folders, images = [], []
        for entry in _scan_folder(folder):
            extension = entry.name.rpartition(".")[2].lower() if "." in entry.name else ""
            if is_system_name(entry.name):
                if entry.name.lower() in SYSTEM_NAMES and _is_folder(entry):
                    self.system.add(entry.path)
            elif _is_folder(entry):
                folders.append(entry.name)
            elif extension in EXTENSIONS or (not extension and looks_like_image(read_head(entry.path, 16))):
                images.append(entry.name)
            else:
                self.others[f".{extension}" if extension else "none"] += 1
        return sorted(folders), sorted(images)

    def enter(self, folder: str) -> bool:
        """Record a folder; False if it was entered before, which ends loops of symbolic links."""
        status, before = os.stat(folder), len(self.entered)
        self.entered.add((status.st_dev, status.st_ino))
        return len(self.entered) > before

    def list_images(self, root: str, inside: str) -> list[str]:
        """Lists the sorted paths, relative to ``root``, of all images in its subfolder ``inside``, at any depth."""
        paths, waiting = [], [inside]
        while waiting:
            folder = waiting.pop()
            folders, images = self.list_folder(os.path.join(root, folder))
            before = f"{folder}/" if folder else ""
            paths += [before + name for name in images]
            subfolders = [before + name for name in folders]
            waiting += [path for path in subfolders if self.enter(os.path.join(root, path))]
        return sorted(paths)

    def describe_others(self) -> str:
        """Returns a clause on the files that were not used, for the description of the layout."""
        clause = ""
        if self.others:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.others.items()))
            clause += f"; {plural(self.others.total(), 'other file')} not used ({kinds})"
        if self.system:
            clause += f"; {plural(len(self.system), 'system folder')} skipped"
        return clause


def list_folders(folder: Path, *names: str) -> list[Path]:
    """Lists the subfolders of a folder in order, or those of these names in any case; none of the system. Raises `DataError`."""
    return _list_entries(folder, lambda entry: (not names or entry.name.lower() in names) and _is_folder(entry))


def list_files(folder: Path, *suffixes: str) -> list[Path]:
    """Lists the files in a folder with one of these suffixes, in any letter case, as `list_folders` does."""
    return _list_entries(folder, lambda entry: entry.name.lower().endswith(suffixes) and not _is_folder(entry))


def find_only_file(place: Path, is_wanted: Callable[[Path], bool], what: str, *suffixes: str) -> Path | None:
    """Finds the file that is wanted in a folder, or at a path; None without. Raises `DataError` for several ``what``."""
    paths = list_files(place, *suffixes) if place.is_dir() else [place]
    files = [path for path in paths if path.name.lower().endswith(suffixes) and is_wanted(path)]
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise DataError(f"{place} has several {what}: {names}", "give the file that is meant")
    return files[0] if files else None


def list_files_below(root: Path, *suffixes: str) -> list[Path]:
    """Lists files as `list_files` does, at any depth below a folder. Each folder is entered once, also through links."""
    scan, found, waiting = Scan(), [], [root]
    while waiting:
        folder = waiting.pop()
        if scan.enter(str(folder)):
            found += list_files(folder, *suffixes)
            waiting += list_folders(folder)
    return sorted(found)


def list_images_below(root: Path) -> list[str]:
    """Lists the sorted paths, relative to ``root``, of all images at any depth below it."""
    return Scan().list_images(str(root), "")


def _list_entries(folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    """The entries of a folder that are ``wanted``. The others never become paths, so a million images cost little."""
    names = sorted(entry.name for entry in _scan_folder(folder) if wanted(entry))
    return [folder / name for name in names if not is_system_name(name)]


def _scan_folder(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read: {error.strerror}", "check its permissions") from error


def is_system_name(name: str) -> bool:
    """Tells whether a file or folder is hidden or among `SYSTEM_NAMES`, and so no part of the data."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


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
        found = "/" if slashed.startswith("/") else ""
        for part in filter(None, slashed.split("/")):
            stored = self._list_composed(os.path.join(self.root, found)).get(unicodedata.normalize("NFC", part))
            if stored is None:
                return None
            found = os.path.join(found, stored)
        return found

    def find_file(self, name: str) -> str | None:
        """Returns the path of a file as `find` does; None for a folder."""
        found = self.find(name)
        return found if found is not None and os.path.isfile(os.path.join(self.root, found)) else None

    def find_key(self, *places: str) -> str | None:
        """Returns the key of the first path that is a file, or None. Raises `ValueError` for one outside of ``root``."""
        found = next(filter(None, map(self.find_file, places)), None)
        return None if found is None else normalise_path(os.path.relpath(os.path.join(self.root, found), self.root))


def _list_composed(folder: str) -> dict[str, str]:
    """The names in a folder by their composed form; empty for anything else than a folder."""
    try:
        return {unicodedata.normalize("NFC", name): name for name in sorted(os.listdir(folder))}
    except OSError:
        return {}
