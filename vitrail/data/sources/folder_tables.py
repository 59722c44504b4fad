"""Tables in a folder: those that are the data, and tables of labels beside images whose folders give no labels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.sources.contents import Files
from vitrail.data.sources.labels import RawData, RawSplit
from vitrail.data.sources.manifests import read_manifest
from vitrail.data.sources.parquet import read_parquet
from vitrail.data.sources.scan import list_files, list_folders, list_images_below
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.errors import DataError

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
NO_LABELS = "submission"  # in the name of a table that a competition wants back, whose labels are made up


def find_data_files(root: Path) -> tuple[str, dict[str, list[Path]]] | None:
    """Finds files of one type with the splits of a data set, e.g. train-00000-of-00002.parquet, test.csv, val/0.parquet.

    Returns their extension, and the files of each split; files without a split name are "train".
    """
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
    for folder in (root, *(path for path in list_folders(root) if path.name.lower() in SPLITS)):
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
