"""Folders of images, one per class or without classes, and the tables in a folder: the data themselves, or labels of images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path

import numpy as np

from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.labels import Labels, RawData, RawSplit, sort_names
from vitrail.data.sources.manifests import read_manifest
from vitrail.data.sources.parquet import read_parquet
from vitrail.data.sources.scan import Scan, is_system_name, list_files, list_folders, list_images_below
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS
from vitrail.text import plural


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

    ``photos/**`` takes each folder that itself holds images, at any depth. The name of a class is the path of its folder from
    the fixed part of the pattern on. If the first part of all paths names a split, it gives the split. Raises `DataError` for
    ``**`` before the end, or if no folder matches, or only some are in folders of splits.
    """
    levels = Path(pattern).parts
    if "**" in levels[:-1]:
        remedy = "give one '*' for each level of folders, e.g. 'photos/*/*', or 'photos/**' for folders at any depth"
        raise DataError(f"the pattern {pattern!r} has '**' before its end", remedy)
    root = Path(*takewhile(lambda part: not has_magic(part), levels))
    scan = Scan()
    found: dict[Path, list[str]] = {}  # the images of each folder
    if levels[-1] == "**":
        for image in scan.list_images(str(root), ""):
            found.setdefault(Path(image).parent, []).append(image)
    else:
        folders = [Path(path) for path in glob(pattern) if os.path.isdir(path) and not is_system_name(Path(path).name)]
        for folder in (folder.relative_to(root) for folder in sorted(folders)):
            scan.enter(str(root / folder))
            found[folder] = scan.list_images(str(root), folder.as_posix())
    classes: dict[str, dict[str, Strings]] = {}  # split -> class -> images
    outside = 0  # images beside folders of classes
    for folder, images in sorted(found.items()):
        split = (
            SPLITS.get(folder.parts[0].lower(), "")
            if folder.parts and (len(folder.parts) > 1 or levels[-1] == "**")
            else ""
        )
        name = "/".join(folder.parts[1:] if split else folder.parts)
        if name:
            classes.setdefault(split, {})[name] = Strings(images)
        else:
            outside += len(images)
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
    within += f"; {plural(outside, 'image')} beside the class folders not used" if outside else ""
    return f"class folders that match a pattern{within}{scan.describe_others()}", splits


def _has_image(folder: Path) -> bool:
    """Whether a folder contains an image, at any depth. Stops at the first one."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_system_name(name)]
        if any(name.rpartition(".")[2].lower() in EXTENSIONS for name in names if not is_system_name(name)):
            return True
    return False


TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
NO_LABELS = "submission"  # in the name of a table that a competition wants back, whose labels are made up


def find_data_files(root: Path) -> tuple[str, dict[str, list[Path]]] | None:
    """Finds files of one type with the splits of a data set, as test.csv, val/0.parquet: their extension, and those by split."""
    for folder in filter(Path.is_dir, (root, root / "data")):
        for suffix in (".parquet", ".npz", ".csv", ".tsv", ".jsonl"):
            splits: dict[str, list[Path]] = {}
            for path, split in _list_files(folder, suffix):
                splits.setdefault(split, []).append(path)
            unnamed = splits.pop("", [])
            if splits:
                return suffix, {split: splits[split] for split in SPLIT_ORDER if split in splits}
            if unnamed and (suffix == ".parquet" or len(unnamed) == 1):
                return suffix, {"train": unnamed}
    return None


def _list_files(root: Path, *suffixes: str) -> Iterator[tuple[Path, str]]:
    """The files in a folder and its folders of splits, each with the split that its folder or first word names, or ""."""
    for folder in (root, *list_folders(root, *SPLITS)):
        for path in filter(Path.is_file, list_files(folder, *suffixes)):
            word = re.split("[-_.]", path.stem.lower())[0]
            yield path, SPLITS.get(folder.name.lower()) or SPLITS.get(word, "")


def read_tables_beside(root: Path, layout: str, images: dict[str, RawSplit]) -> RawData:
    """Reads the splits of the tables in a folder of ``images`` and in its folders of splits; the images alone if none has labels.

    If any table is named after a split, only such tables are used; otherwise there is one table of labels. The description
    names the tables that are not used. Raises `DataError` for several tables of labels for one split.
    """
    faults: list[str] = []
    found: dict[str, tuple[Path, str, dict[str, RawSplit]]] = {}
    tables = [(path, split) for path, split in _list_files(root, *TABLES) if NO_LABELS not in path.stem.lower()]
    by_split = any(split for _, split in tables)
    for path, split in tables:
        if by_split and not split:
            faults.append(f"{path.relative_to(root)}: not named after a split")
            continue
        labelled = split in ("", "train")
        try:
            if path.suffix.lower() == ".parquet":
                note, splits = "", read_parquet([path], path.parent, labelled=labelled)
            else:
                how, splits = read_manifest(path, labelled=labelled)
                note = how.partition("; ")[2]
        except DataError as error:
            faults.append(f"{path.relative_to(root)}: {error.what}")
            continue
        if split in found:
            names = " and ".join(str(each.relative_to(root)) for each in (found[split][0], path))
            raise DataError(f"{root} has several tables of labels: {names}", "give the one that is meant")
        if split and len(splits) > 1:
            raise DataError(f"{path} itself contains several splits: {', '.join(splits)}", "give that table")
        found[split] = path, note, {split: next(iter(splits.values()))} if split else splits
    parts = {name: part for _, _, splits in found.values() for name, part in splits.items()}
    if not any(part.labels for part in parts.values()):
        return layout + (f"; tables not used: {'; '.join(faults)}" if faults else ""), images
    names = ", ".join(str(path.relative_to(root)) for path, *_ in found.values())
    notes = list(dict.fromkeys(note for _, note, _ in found.values() if note))
    if faults:
        notes.append(f"tables not used: {', '.join(faults)}")
    files = [part.contents for part in parts.values() if isinstance(part.contents, Files)]
    named = {os.path.join(contents.root, key) for contents in files for key in contents.keys}
    if rest := [path for path in list_images_below(root) if os.path.join(root, path) not in named]:
        notes.append(f"{len(rest):,} images that no table names are not used ({rest[0]})")
    return "; ".join([f"images with a table of labels ({names})", *notes]), parts
