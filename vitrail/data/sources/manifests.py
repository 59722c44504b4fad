"""Manifests: tables that name one image a row, in CSV, TSV or JSON lines. Every complaint names the line."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from vitrail.data.sources.contents import Files, Strings, below_root
from vitrail.data.sources.labels import BETWEEN, SPLIT_ORDER, SPLITS, RawSplit, from_texts, text_of
from vitrail.errors import DataError

PATHS = ("path", "file_name", "filename", "file", "image", "image_path")
LABELS = ("label", "labels", "class", "class_name", "target")
LINE_LIMIT = 2**20  # characters
PROBES = 16  # rows whose files are looked for at once, to tell a wrong folder from a few lost files


@dataclass
class Columns:
    """A table's rows as they stand, before anything is made of them."""

    source: str  # the manifest, as messages call it
    paths: list[str] = field(default_factory=list)
    labels: list[str] | None = None
    splits: list[str] | None = None
    lines: list[int] = field(default_factory=list)

    def at(self, row: int) -> str:
        return f"{self.source}, line {self.lines[row]}"


def found_in_manifest(path: Path, *, labelled: bool) -> tuple[str, dict[str, RawSplit]]:
    """What a CSV, TSV or JSON-lines manifest names.

    A row has a path (absolute, or relative to the manifest's folder and then below it), a label or several with `;`
    between, and may have a split.

    Raises:
        DataError: naming the line: a broken table, a missing column, a path that leads out, a repeated path, an empty
            label, an unknown split; or none of the files is there.
    """
    rows = _json_rows(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows(path)
    columns = Columns(str(path))
    names: dict[str, str | None] | None = None
    for line, row in rows:
        if names is None:
            names = choose_columns(list(row), source=str(path), labelled=labelled)
            columns.labels = [] if names["label"] else None
            columns.splits = [] if names["split"] else None
        columns.lines.append(line)
        columns.paths.append(text_of(row.get(names["path"] or "")))
        if columns.labels is not None:
            columns.labels.append(_label(row.get(names["label"] or ""), f"{path}, line {line}"))
        if columns.splits is not None:
            columns.splits.append(text_of(row.get(names["split"] or "")))
    return f"a manifest, {path.name}", found_in_columns(columns, path.parent)


def choose_columns(
    columns: Sequence[str], *, source: str, labelled: bool, image: str | None = None, label: str | None = None
) -> dict[str, str | None]:
    """Which column holds the path, which the label and which the split.

    Args:
        labelled: whether there has to be a column of labels.
        image: a column that holds the images themselves, in place of a path.
        label: a column that is known to hold the labels.

    Raises:
        DataError: a column that has to be there is not, with the names of those that are.
    """
    plain = {name.strip().lower(): name for name in reversed(columns)}
    chosen = {
        "path": image or next((plain[name] for name in PATHS if name in plain), None),
        "label": label or next((plain[name] for name in LABELS if name in plain), None),
        "split": plain.get("split"),
    }
    for column, name in (("path", PATHS[0]), ("label", LABELS[0])):
        if chosen[column] is None and (labelled or column == "path"):
            found = ", ".join(map(repr, columns)) or "none"
            raise DataError(f"{source} has no column of {column}s; its columns are {found}", f"name one {name!r}")
    return chosen


def found_in_columns(columns: Columns, root: Path) -> dict[str, RawSplit]:
    """The splits of a table of paths. Raises `DataError`, naming lines."""
    if not columns.paths:
        raise DataError(f"{columns.source} has no rows", "give one image a row below the names of the columns")
    seen: dict[str, int] = {}
    for row, path in enumerate(columns.paths):
        if not path:
            raise DataError(f"{columns.at(row)}: no path", "give each row the path of an image")
        try:
            path = columns.paths[row] = below_root(path)
        except ValueError as error:
            raise DataError(
                f"{columns.at(row)}: {error}", "give it as an absolute path, or move the manifest"
            ) from None
        if (first := seen.setdefault(path, row)) != row:
            fact = f"{columns.at(row)}: the path {path!r} was already in line {columns.lines[first]}"
            raise DataError(fact, f"give each image one row; several labels of one image go with {BETWEEN!r} between")
    probes = sorted({round(row) for row in np.linspace(0, len(columns.paths) - 1, PROBES)})
    tried = [os.path.join(root, columns.paths[row]) for row in probes]
    if not any(map(os.path.exists, tried)):
        fact = f"none of the files that {columns.source} names is there; looked for {tried[0]}"
        raise DataError(fact, f"give paths relative to {root.absolute()}, or absolute ones")
    contents = Files(str(root), Strings(columns.paths))
    return by_split(RawSplit(contents, _labels(columns)), columns)


def _labels(columns: Columns) -> Any:
    if columns.labels is None:
        return None
    labels = from_texts(columns.labels)
    if not labels.multi and "" in labels.names:
        if len(labels.names) == 1:
            return None
        row = columns.labels.index("")
        raise DataError(f"{columns.at(row)}: no label", "give every row a label, or leave the row out")
    return labels


def by_split(found: RawSplit, columns: Columns) -> dict[str, RawSplit]:
    """The parts that a column of splits makes of what was found; all of it is "train" without one."""
    if columns.splits is None:
        return {"train": found}
    known = {text: SPLITS.get(text.lower()) for text in dict.fromkeys(columns.splits)}
    for text, split in known.items():
        if split is None:
            fact = f"{columns.at(columns.splits.index(text))}: the split is {text!r}"
            raise DataError(fact, "choose one of train, val, test")
    splits = np.array([known[text] for text in columns.splits])
    there = [split for split in SPLIT_ORDER if (splits == split).any()]
    return {split: found.take(np.flatnonzero(splits == split)) for split in there}


def _label(value: Any, where: str) -> str:
    if isinstance(value, dict):
        raise DataError(f"{where}: the label is an object, {value!r:.60}", "give a name, a number, or a list of names")
    return text_of(value)


def _open(path: Path) -> TextIO:
    return open(path, encoding="utf-8-sig", newline="")


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Lines of bearable length: a file without line ends is not read whole."""
    number = 0
    try:
        while line := file.readline(LINE_LIMIT):
            number += 1
            if len(line) == LINE_LIMIT:
                raise DataError(f"{path}, line {number} is longer than {LINE_LIMIT:,} characters", "is it a manifest?")
            yield line
    except UnicodeDecodeError as error:
        fact = f"{path}, after line {number}: not UTF-8 text ({error.reason})"
        raise DataError(fact, "save the manifest as UTF-8") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, column -> text) of each row; blank lines are passed over."""
    with _open(path) as file:
        table = csv.reader(_lines(file, path), delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header: list[str] | None = None
        try:
            for cells in table:
                if not any(cells):
                    continue
                if header is None:
                    header = [name.strip() for name in cells]
                    if twice := {name for name in header if header.count(name) > 1}:
                        raise DataError(f"{path} has two columns {min(twice)!r}", "rename one of them")
                    continue
                if len(cells) != len(header):
                    fact = (
                        f"{path}, line {table.line_num}: {len(cells)} fields, where the first line names {len(header)}"
                    )
                    raise DataError(fact, 'put a field that has a comma in it between double quotes: "a,b.jpg"')
                yield table.line_num, dict(zip(header, cells))
        except csv.Error as error:
            raise DataError(f"{path}, line {table.line_num}: broken CSV, {error}", "mend the line") from error


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path) as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.rstrip())
            except ValueError as error:  # JSONDecodeError, or a number of too many digits
                place = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
                fact = f"{path}, line {number}{place}: broken JSON, {getattr(error, 'msg', error)}"
                raise DataError(fact, 'give one object a line: {"path": "a.jpg", "label": "cat"}') from error
            except RecursionError as error:
                raise DataError(
                    f"{path}, line {number}: JSON nested too deep", "give one flat object a line"
                ) from error
            if not isinstance(row, dict):
                fact = f"{path}, line {number}: not an object but {line.strip()[:40]!r}"
                raise DataError(fact, 'give one object a line: {"path": "a.jpg", "label": "cat"}')
            yield number, row
