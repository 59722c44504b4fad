"""Folders of images: one folder per class, optionally inside train / val / test, or images without classes."""

from __future__ import annotations

import os
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path

import numpy as np

from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.labels import Labels, RawData, RawSplit, sort_names
from vitrail.data.sources.scan import Scan, is_system_name, list_folders
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS


def read_folder(root: Path, *, labelled: bool) -> RawData | None:
    """The layout and the splits of a folder of images; None if it contains no image.

    Raises `DataError` for split folders next to class folders, two folders for one split, or an empty training folder.
    """
    scan = Scan()
    scan.enter(str(root))
    folders, _ = scan.list_folder(str(root))
    named = [name for name in folders if name.lower() in SPLITS]
    others = [name for name in folders if name not in named and named and _has_image(root / name)]
    flat = bool(others) or not named
    if flat:
        if above := [name for name in named if any(_has_image(path) for path in list_folders(root / name))]:
            fact = (
                f"{root} contains split folders ({', '.join(above)}) and other folders: {', '.join(map(repr, others))}"
            )
            raise DataError(fact, f"move {others[0]!r} elsewhere, or into the split folders as a class")
        scan.others.clear()
        named = [""]
    for name in named:
        scan.enter(str(root / name))
    split_of = {name: SPLITS.get(name.lower(), "train") for name in named}
    splits: dict[str, RawSplit] = {}
    notes = ""
    for name in sorted(named, key=lambda name: (SPLIT_ORDER.index(split_of[name]), name)):
        split = split_of[name]
        if split in splits:
            twice = [folder for folder in named if split_of[folder] == split]
            raise DataError(f"{root} has more than one {split} folder: {', '.join(twice)}", "keep one of them")
        part, note = _read_classes(root, name, scan, labelled)
        notes += note
        if part is not None:
            splits[split] = part
    if not splits:
        return None
    if "train" in split_of.values() and "train" not in splits:
        what = f"the training folder of {root} contains no images"
        raise DataError(what, "run `vitrail data check` to see what was found")
    unlabelled = "an unlabelled folder of images" if flat else "unlabelled folders"
    layout = "class folders" if any(part.labels for part in splits.values()) else unlabelled
    layout += "" if flat else f" in {', '.join(splits)}"
    return f"{layout}{notes}{scan.describe_others()}", splits


def _read_classes(root: Path, inside: str, scan: Scan, labelled: bool) -> tuple[RawSplit | None, str]:
    """The images in the subfolder ``inside``, if any, with the labels that class folders give; and a note for the layout."""
    folders, images = scan.list_folder(str(root / inside))
    before = f"{inside}/" if inside else ""
    names = sort_names(folders)
    for name in names:
        scan.enter(str(root / inside / name))
    paths = [Strings(scan.list_images(str(root), before + name)) for name in names]  # one entry per class folder
    beside = [before + name for name in images]
    # without labels every image is used, also those next to the class folders
    if any(map(len, paths)) and (labelled or not beside):
        note = f"; {len(beside):,} images next to the class folders not used" if beside else ""
        return _label_by_folder(root, names, paths), note
    flat = Strings(sorted([*beside, *(path for class_paths in paths for path in class_paths)]))
    return (RawSplit(Files(str(root), flat)), "") if len(flat) else (None, f"; {inside} is empty")


def _label_by_folder(root: Path, names: tuple[str, ...], paths: list[Strings]) -> RawSplit:
    """The images of one split; ``paths`` has those of each class, in the order of the names."""
    values = np.repeat(np.arange(len(names)), list(map(len, paths)))
    return RawSplit(Files(str(root), Strings.join(paths)), Labels(names, values))


def read_class_folders(pattern: str) -> RawData:
    """The images of all folders that match a glob pattern such as ``photos/*/*``: each folder is one class.

    The name of a class is the path of its folder from the fixed part of the pattern on. If the first part of all paths names
    a split, it gives the split. Raises `DataError` for ``**``, or if no folder matches, or only some are in folders of splits.
    """
    levels = Path(pattern).parts
    if "**" in levels:
        remedy = "give one '*' for each level of folders, e.g. 'photos/*/*'"
        raise DataError(f"the pattern {pattern!r} has '**'", remedy)
    root = Path(*takewhile(lambda part: not has_magic(part), levels))
    scan = Scan()
    found = [Path(path) for path in glob(pattern) if os.path.isdir(path) and not is_system_name(Path(path).name)]
    classes: dict[str, dict[str, Strings]] = {}  # split -> class -> images
    for folder in sorted(found):
        scan.enter(str(folder))
        parts = folder.relative_to(root).parts
        split = SPLITS.get(parts[0].lower(), "") if len(parts) > 1 else ""
        name = "/".join(parts[1:] if split else parts)
        classes.setdefault(split, {})[name] = Strings(scan.list_images(str(root), folder.relative_to(root).as_posix()))
    if not any(len(images) for by_name in classes.values() for images in by_name.values()):
        what = f"no folder that matches {pattern!r} contains images"
        raise DataError(what, "quote the pattern, and check the folders")
    if "" in classes and len(classes) > 1:
        others = ", ".join(sorted(classes.keys() - {""}))
        raise DataError(f"of the folders that match {pattern!r} only some are in {others}", "move the others elsewhere")
    splits = {}
    for split, by_name in sorted(classes.items(), key=lambda pair: SPLIT_ORDER.index(pair[0] or "train")):
        names = sort_names(by_name)
        splits[split or "train"] = _label_by_folder(root, names, [by_name[name] for name in names])
    within = "" if "" in classes else f" in {', '.join(splits)}"
    return f"class folders that match a pattern{within}{scan.describe_others()}", splits


def _has_image(folder: Path) -> bool:
    """Whether a folder contains an image, at any depth. Stops at the first one."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_system_name(name)]
        if any(name.rpartition(".")[2].lower() in EXTENSIONS for name in names if not is_system_name(name)):
            return True
    return False
