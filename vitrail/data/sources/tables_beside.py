"""Tables of labels among images whose folders give no labels: ``labels.csv`` beside images, ``train.csv`` beside ``train/``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vitrail.data.sources.contents import Files
from vitrail.data.sources.folders import split_of_file
from vitrail.data.sources.labels import RawData, RawSplit
from vitrail.data.sources.manifests import read_manifest
from vitrail.data.sources.parquet import read_parquet
from vitrail.data.sources.scan import Scan, list_files, list_folders
from vitrail.data.sources.splits import SPLITS
from vitrail.errors import DataError

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
NO_LABELS = "submission"  # in the name of a table that a competition wants back, whose labels are made up


def read_tables_beside(root: Path) -> RawData | str:
    """Reads the splits of the tables in a folder and in its folders of splits; or returns why none was used, "" without tables.

    If any table is named after a split, only such tables are used; otherwise there is one table of labels. The description
    names the tables that are not used.

    Raises:
        DataError: several tables of labels for one split.
    """
    faults: list[str] = []
    found: dict[str, tuple[Path, str, dict[str, RawSplit]]] = {}
    tables = list(_list_tables(root))
    by_split = any(split for _, split in tables)
    for path, split in tables:
        if by_split and not split:
            faults.append(f"{path.relative_to(root)}: not named after a split")
            continue
        try:
            note, splits = _read_table(path, labelled=split in ("", "train"))
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
        return "; ".join(faults)
    names = ", ".join(str(path.relative_to(root)) for path, *_ in found.values())
    how = dict.fromkeys(note for _, note, _ in found.values() if note)
    unused = [f"tables not used: {', '.join(faults)}"] if faults else []
    return "; ".join([f"images with a table of labels ({names})", *how, *unused]) + _describe_rest(root, parts), parts


def _read_table(path: Path, *, labelled: bool) -> RawData:
    """How a table was read, which may be empty, and its splits."""
    if path.suffix.lower() == ".parquet":
        return "", read_parquet([path], path.parent, labelled=labelled)
    layout, splits = read_manifest(path, labelled=labelled)
    return layout.partition("; ")[2], splits


def _list_tables(root: Path) -> Iterator[tuple[Path, str]]:
    """Tables in a folder and in its folders of splits, each with the split that its name, or its folder, says; or none."""
    inside = [path for path in list_folders(root) if path.name.lower() in SPLITS]
    for folder in (root, *inside):
        for path in list_files(folder, *TABLES):
            if path.is_file() and NO_LABELS not in path.stem.lower():
                yield path, split_of_file(path) or ""


def _describe_rest(root: Path, parts: dict[str, RawSplit]) -> str:
    """How many images below ``root`` no table names."""
    files = [part.contents for part in parts.values() if isinstance(part.contents, Files)]
    named = {os.path.join(contents.root, key) for contents in files for key in contents.keys}
    rest = [path for path in Scan().list_images(str(root), "") if os.path.join(root, path) not in named]
    return f"; {len(rest):,} images that no table names are not used ({rest[0]})" if rest else ""
