"""Where the files of a table are: its paths as they stand, within a folder beside it, without their extension."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.named_files import NamedFiles
from vitrail.data.sources.scan import list_folders
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS

PROBES = 16  # paths, spread evenly, that are looked up: a wrong folder is then one error, not one per image
MOST_FOLDERS = 64  # beside a table, in which its files are looked for


def locate_files(paths: Sequence[str], root: Path, source: str) -> tuple[list[str], str]:
    """Returns the paths of a table's files relative to ``root``, its folder, and a description of how they were found.

    The paths are taken as they stand if files are there. Otherwise a folder beside the table is put in front of them, one with
    the table's name first, and an extension of images behind names without one. Paths with backslashes or in another Unicode
    form than the files become those of the files.

    Raises:
        DataError: no file is found, or files of these names are in several folders.
    """
    probes = [paths[row] for row in choose_evenly(len(paths), PROBES).tolist()]
    named = NamedFiles(root)

    def count(before: str, after: str) -> int:
        return sum(named.find(f"{before}{path}{after}") is not None for path in probes)

    before = after = ""
    if not count("", ""):
        found = {place: hits for place in _list_places(probes, root, Path(source).stem) if (hits := count(*place))}
        if not found:
            fact = f"none of the files in {source} exists; looked for {os.path.join(root, probes[0])}"
            raise DataError(fact, f"give paths relative to {root.absolute()} (inside it), or absolute paths")
        best = [place for place in found if found[place] == max(found.values())]
        before, after = best[0]
        if len(best) > 1 and Path(before).name not in _likely_folders(Path(source).stem):
            folders = " and ".join(sorted({place for place, _ in best}))
            raise DataError(f"the files in {source} are found in {folders}", "write the folder into the paths")
    how = [f"files in {before}"] if before else []
    how += [f"{after} added to the names"] if after else []
    # only such names may differ from those that the file system has
    located = (f"{before}{path}{after}" for path in paths)
    return [path if path.isascii() and "\\" not in path else named.find(path) or path for path in located], ", ".join(
        how
    )


def _likely_folders(stem: str) -> list[str]:
    """The folders that a table of this name is likely to describe, e.g. ``train`` and ``train_images`` for ``train_labels``."""
    word = stem.partition("_")[0]
    return [stem, word, *(f"{word}{mark}images" for mark in "_-"), "images"]


def _list_places(probes: Sequence[str], root: Path, stem: str) -> Iterator[tuple[str, str]]:
    """(folder, extension) pairs to try, the likely ones first; both may be empty."""
    inside = [path.name for path in list_folders(root)]
    folders = dict.fromkeys((*(name for name in _likely_folders(stem) if name in inside), *inside))
    endings: list[str] = []
    if not any(Path(path).suffix[1:].lower() in EXTENSIONS for path in probes):
        endings = sorted({Path(path).suffix for path in probes if path} | {f".{word}" for word in EXTENSIONS})
    for folder in ("", *(f"{name}/" for name in list(folders)[:MOST_FOLDERS])):
        for ending in ("", *endings):
            yield folder, ending
