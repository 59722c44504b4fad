"""Finds the split that a list, file or folder is named after, and reads the lists of images of a data set."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.data.sources.contents import read_lines
from vitrail.data.sources.split_names import SPLITS

BOTH = "trainval"  # training and validation images in one list
WHOLE = (BOTH, "default")  # lists whose images are for training where no other list says so
LIST_FOLDERS = ("ImageSets/Main", "ImageSets", "")


def find_split(name: str) -> str | None:
    """Returns the split that a name such as ``instances_train2017``, ``val`` or ``trainval`` means; None for no split."""
    words = re.findall("[a-z]+", name.lower())
    return next((SPLITS.get(word, "train") for word in words if word in SPLITS or word == BOTH), None)


def find_folder_split(path: str) -> str | None:
    """Returns the split of the first folder of a path, with forward slashes, that is named after one; None without."""
    return next((SPLITS[part.lower()] for part in path.split("/")[:-1] if part.lower() in SPLITS), None)


def find_lists(root: Path, folders: tuple[str, ...] = LIST_FOLDERS) -> Path | None:
    """Returns the first of ``folders`` that has a list of a split; None if none has."""
    for inside in folders:
        folder = root / inside
        if folder.is_dir() and any(path.stem.lower() in (*SPLITS, *WHOLE) for path in folder.glob("*.txt")):
            return folder
    return None


def read_split_lists(folder: Path) -> dict[str, list[str]]:
    """Returns the names in the lists of a folder by split, each once and in order.

    Where ``train.txt`` or ``val.txt`` is missing, the names of ``trainval.txt`` that the other does not have take its place.

    Raises:
        DataError: a list cannot be read.
    """
    found: dict[str, dict[str, None]] = {}
    for path in sorted(folder.glob("*.txt")):
        stem = path.stem.lower()
        if stem in SPLITS or stem in WHOLE:
            lines = read_lines(path, "give a list of names, one a line")
            found.setdefault(SPLITS.get(stem, stem), {}).update(dict.fromkeys(lines))
    lists = {split: list(names) for split, names in found.items() if split not in WHOLE}
    whole = next((found[word] for word in WHOLE if word in found), None)
    missing = next((split for split in ("train", "val") if split not in lists), None)
    if whole is not None and missing:
        listed = {name for split in ("train", "val") for name in lists.get(split, ())}
        lists[missing] = [name for name in whole if name not in listed]
    return lists
