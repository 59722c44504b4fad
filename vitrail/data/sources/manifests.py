"""Manifests: tables with one image per row, in CSV, TSV or JSON lines. Every error message names the line."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.contents import Files, Strings, choose_evenly, normalise_path, read_head
from vitrail.data.sources.labels import Labels, RawData, RawSplit, format_label, from_texts, join_columns, unify_labels
from vitrail.data.sources.numbers import list_columns, read_numbers
from vitrail.data.sources.scan import NamedFiles, list_folders
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.errors import DataError, nearest
from vitrail.images.decode import EXTENSIONS
from vitrail.text import plural
from vitrail.untrusted.files import detect_encoding
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.limits import LINE_CHARACTERS as LINE_LIMIT

PROBES = 16  # paths, spread evenly, that are looked up: a wrong folder is then one error, not one per image
MAX_FOLDERS = 64  # beside a table, in which its files are looked for


def locate_files(paths: Sequence[str], root: Path, source: str) -> tuple[list[str], list[str]]:
    """Returns the paths of a table's files relative to ``root``, its folder, and a note on how they were found, if any.

    If no file is where they say, a folder beside the table is put in front, one with its name first, and an extension of images
    behind. Backslashes and Unicode forms become those of the files. Raises `DataError` for no files, or several folders.
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
    located = [f"{before}{path}{after}" for path in paths]
    for row, path in enumerate(located):
        if not path.isascii() or "\\" in path:  # only such names may differ from those that the file system has
            located[row] = named.find(path) or path
    return located, [", ".join(how)] if how else []


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
    return product(("", *(f"{name}/" for name in list(folders)[:MAX_FOLDERS])), ("", *endings))


PATHS = (
    *("path", "file_path", "filepath", "file_name", "filename", "file", "fname"),
    *("image", "image_path", "image_name", "image_id", "images", "img", "img_path", "img_name", "jpeg", "id"),
)
LABELS = ("label", "labels", "class", "class_name", "classname", "category", "target", "tags")
LIKE_SPLIT = ("set", "subset", "partition", "phase", "usage")  # that are splits if their values are names of splits
# columns that tables have beside the labels
NO_LABELS = ("", "index", "unnamed: 0", "width", "height", "size", "url", "text", "caption", "prompt", "description")
BOXES = ("xmin", "bbox", "x_min", "x1", "bbox_x1")  # columns of tables of objects
EXPORT_BOXES = "export the boxes as COCO or YOLO"
JSON_REMEDY = 'give one object per line: {"path": "a.jpg", "label": "cat"}'


@dataclass
class Columns:
    """The columns of a table as read."""

    source: str  # name of the manifest in messages
    paths: list[str] = field(default_factory=list)
    labels: list[str] | None = None
    splits: list[str] | None = None
    lines: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of all columns
    label_column: str = ""
    joined: bool = False  # labels of columns of zeros and ones
    numbers: dict[str, list[str]] = field(default_factory=dict)  # columns of numbers, in place of labels
    others: dict[str, list[str]] = field(default_factory=dict)  # columns that may hold labels or splits
    notes: list[str] = field(default_factory=list)  # how the table was read, where it does not say

    def make_error(self, row: int, what: str, remedy: str) -> DataError:
        return DataError(f"{self.source}, line {self.lines[row]}: {what}", remedy)


def read_manifest(
    path: Path, *, labelled: bool, columns: Mapping[str, str] | None = None, numeric: bool = False
) -> RawData:
    """Read a CSV, TSV or JSON-lines manifest.

    A row has a path (absolute, or relative to the folder of the manifest), a label or several separated by
    `;`, and optionally a split. A CSV may have `;` or tabs between its fields, and no header if it has a path, a label and
    perhaps a split. `locate_files` finds the files; `unify_labels` and `join_columns` read other forms of labels.
    With ``numeric`` the labels are `Numbers`, those of several columns where ``columns`` names the label as ``x+y``.
    Raises `DataError` with the line: for a broken table, a missing column, a repeated path, an empty
    label, a label that is no number or an unknown split; or if none of the files exists.
    """
    rows = _read_json(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _read_csv(path)
    how: Any = {"labelled": labelled, "named": columns, "numeric": numeric}
    return _read_table(rows, str(path), f"a manifest, {path.name}", path.parent, **how)


def read_frame(
    frame: Any, *, labelled: bool, columns: Mapping[str, str] | None = None, numeric: bool = False
) -> RawData:
    """Reads a data frame of pandas or polars as `read_manifest` reads a table; paths are relative to the working folder."""
    names = [str(name) for name in frame.columns]
    rows = zip(*(frame[name].to_list() for name in frame.columns))
    table = ((row, dict(zip(names, values))) for row, values in enumerate(rows, start=1))
    how: Any = {"labelled": labelled, "named": columns, "numeric": numeric}
    return _read_table(table, "the data frame", "a data frame", Path.cwd(), **how)


def read_pairs(pairs: Sequence[Sequence[Any]], *, labelled: bool, numeric: bool = False) -> RawData:
    """Reads a list of (path, label) as `read_manifest` reads a table; paths are relative to the working folder."""
    table = ((row, {"path": os.fspath(path), "label": label}) for row, (path, label) in enumerate(pairs, start=1))
    how: Any = {"labelled": labelled, "numeric": numeric}
    return _read_table(table, "the list", f"{len(pairs):,} paths with labels", Path.cwd(), **how)


def _read_table(
    rows: Iterable[tuple[int, dict[str, Any]]],
    source: str,
    about: str,
    root: Path,
    *,
    labelled: bool,
    named: Mapping[str, str] | None = None,
    numeric: bool = False,
) -> RawData:
    columns = _read_rows(rows, source, named, numeric)
    _use_other_columns(columns, numeric)
    if labelled and columns.names and columns.labels is None and not columns.numbers:
        choose_columns(columns.names, source=source, labelled=True)
    splits = read_columns(columns, root)
    return "; ".join([about, *columns.notes]), splits


def _read_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], source: str, named: Mapping[str, str] | None, numeric: bool
) -> Columns:
    columns = Columns(source)
    kinds: dict[str, str] = {}  # path, label or split, of the columns that are these
    cells: dict[str, list[str]] = {}  # of these columns and those that may be needed
    for line, row in rows:
        if not columns.names:
            columns.names = list(row)
            chosen = choose_columns(columns.names, source=source, labelled=False, named=named, numeric=numeric)
            columns.label_column = chosen["label"] or ""
            kinds = {name: kind for kind, name in chosen.items() if name}
            if numeric and (label := chosen["label"]):
                del kinds[label]
                columns.numbers = {name: [] for name in list_columns(label, columns.names)}
                kinds |= dict.fromkeys(columns.numbers, "label")
            plain = {name: name.strip().lower() for name in columns.names}
            others = [name for name in plain if chosen["label"] is None and plain[name] not in NO_LABELS]
            others += [name for name in plain if chosen["split"] is None and plain[name] in LIKE_SPLIT]
            cells = {name: [] for name in columns.names if name in kinds or name in others}
        columns.lines.append(line)
        for name, values in cells.items():
            value = row.get(name)
            if name in kinds:
                _refuse_nested(value, f"{source}, line {line}: the {kinds[name]}")
            values.append(format_label(value))
    columns.numbers = {name: cells.pop(name) for name in columns.numbers}
    found = {kind: cells.pop(name) for name, kind in kinds.items() if name in cells}
    columns.paths, columns.labels, columns.splits = found.get("path", []), found.get("label"), found.get("split")
    columns.others = cells
    return columns


def _use_other_columns(columns: Columns, numeric: bool) -> None:
    """Takes splits and labels from columns of other names, where none is named so and all their values can be such."""
    for name in [name for name in columns.others if name.strip().lower() in LIKE_SPLIT]:
        values = columns.others.pop(name)
        distinct = dict.fromkeys(values)
        unknown = [text for text in distinct if text.lower() not in SPLITS]
        if not unknown and columns.splits is None:
            columns.splits = values
            columns.notes.append(f"splits in the column {name!r}")
        elif 0 < len(unknown) < len(distinct):
            columns.notes.append(f"the column {name!r} is not used, {unknown[0]!r} is no split")
    if columns.labels is not None or columns.numbers or _has_boxes(columns.names):
        return
    if numeric:
        columns.numbers = dict(columns.others) if len(columns.others) == 1 else {}
    elif len(columns.others) == 1:
        [(columns.label_column, columns.labels)] = columns.others.items()
        columns.notes.append(f"labels in the column {columns.label_column!r}")
    elif joined := join_columns(columns.others):
        columns.labels, note = joined
        columns.joined = True
        columns.notes.append(note)


def _has_boxes(names: Sequence[str]) -> bool:
    return not {name.strip().lower() for name in names}.isdisjoint(BOXES)


def choose_columns(
    columns: Sequence[str],
    *,
    source: str,
    labelled: bool,
    named: Mapping[str, str] | None = None,
    numeric: bool = False,
) -> dict[str, str | None]:
    """Chooses the columns of paths, labels and splits that are not ``named``; a ``numeric`` label may be ``x+y``.

    Raises `DataError` for a column that is missing.
    """
    plain = {name.strip().lower(): name for name in reversed(columns)}
    for kind, given in (named or {}).items():
        for name in list_columns(given, columns) if numeric and kind == "label" else [given]:
            if name not in columns:
                listed = ", ".join(map(repr, columns)) or "none"
                what = f"{source} has no column {name!r} of the {kind}; its columns are {listed}"
                raise DataError(what, nearest(name, columns))
    chosen = {
        "path": next((plain[name] for name in PATHS if name in plain), None),
        "label": next((plain[name] for name in LABELS if name in plain), None),
        "split": plain.get("split"),
        **(named or {}),
    }
    for column, name in (("path", PATHS[0]), ("label", LABELS[0])):
        if chosen[column] is None and (labelled or column == "path"):
            what = f"{source} has no {column} column; its columns are {', '.join(map(repr, columns)) or 'none'}"
            if _has_boxes(columns):
                raise DataError(f"{what}: a table of boxes, which is not read", EXPORT_BOXES)
            raise DataError(what, f"name one of them {name!r}, or say which it is: columns {column}=NAME")
    return chosen


def read_columns(columns: Columns, root: Path) -> dict[str, RawSplit]:
    """The splits of a table of paths. Raises `DataError` with the line."""
    if not columns.paths:
        raise DataError(f"{columns.source} has no rows", "give one image per row, below the column names")
    outside: list[str] = []
    for row, path in enumerate(columns.paths):
        if not path:
            raise columns.make_error(row, "no path", "give each row the path of an image")
        try:
            columns.paths[row] = normalise_path(path)
        except ValueError:  # as it may stand for an absolute path, which is read too
            outside.append(path)
            columns.paths[row] = os.path.abspath(os.path.join(root, path))
    columns.paths, notes = locate_files(columns.paths, root, columns.source)
    if outside:
        notes.append(f"{plural(len(outside), 'path')} outside of the folder of the table, such as {outside[0]}")
    columns.notes += notes
    _refuse_repeated(columns, root)
    contents = Files(str(root), Strings(columns.paths))
    return group_by_split(RawSplit(contents, _make_labels(columns)), columns)


def _refuse_repeated(columns: Columns, root: Path) -> None:
    first_rows: dict[str, int] = {}
    has_absolute, folder = any(map(os.path.isabs, columns.paths)), os.path.abspath(root)
    for row, path in enumerate(columns.paths):
        place = os.path.normpath(os.path.join(folder, path)) if has_absolute else path
        if (first := first_rows.setdefault(place, row)) != row:
            remedy = "give each image one row; separate several labels of one image by ';'"
            if _has_boxes(columns.names):
                remedy = f"a table of boxes is not read: {EXPORT_BOXES}"
            raise columns.make_error(row, f"the path {path!r} is already in line {columns.lines[first]}", remedy)


def _make_labels(columns: Columns) -> Labels | None:
    if columns.numbers:
        return read_numbers(columns.numbers, columns.make_error)
    if columns.labels is None:
        return None
    texts, note = unify_labels(columns.labels, columns.label_column)
    columns.notes += [note] if note else []
    if not any(texts):
        return None
    labels = from_texts(texts, several=True if "" in texts and (note or columns.joined) else None)
    if not labels.multi and "" in labels.names:
        raise columns.make_error(texts.index(""), "no label", "give every row a label, or remove the row")
    return labels


def group_by_split(rows: RawSplit, columns: Columns) -> dict[str, RawSplit]:
    """Group the rows by the split column; without one all rows are "train"."""
    if columns.splits is None:
        return {"train": rows}
    known = {text: SPLITS.get(text.lower()) for text in dict.fromkeys(columns.splits)}
    for text, split in known.items():
        if split is None:
            row = columns.splits.index(text)
            raise columns.make_error(row, f"the split is {text!r}", "choose one of train, val, test")
    splits = np.array([known[text] for text in columns.splits])
    existing = [split for split in SPLIT_ORDER if (splits == split).any()]
    return {split: rows.take(np.flatnonzero(splits == split)) for split in existing}


def _refuse_nested(value: Any, what: str) -> None:
    nested = isinstance(value, list) and any(isinstance(part, dict | list) for part in value)
    if isinstance(value, dict) or nested:
        kind = "a list of lists or objects" if nested else f"an object, {value!r:.60}"
        raise DataError(f"{what} is {kind}", "give a name, a number, or a list of names")


def _read_lines(path: Path) -> Iterator[str]:
    """Lines of limited length, so that a file without line ends is not read into memory whole."""
    number = 0
    try:
        with open(path, encoding=detect_encoding(read_head(path, 2)), newline="") as file:
            while line := file.readline(LINE_LIMIT):
                number += 1
                if len(line) == LINE_LIMIT:
                    what = f"{path}, line {number} is longer than {LINE_LIMIT:,} characters"
                    raise DataError(what, "is it a manifest?")
                yield line
    except UnicodeDecodeError as error:
        fact = f"{path}, after line {number}: not UTF-8 text ({error.reason})"
        raise DataError(fact, "save the manifest as UTF-8") from error


def _read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, column -> text) of each row. Blank lines are skipped."""
    lines, head = _read_lines(path), [""]
    while not head[-1].strip() and (line := next(lines, "")):
        head.append(line)
    marks = "\t" if path.suffix.lower() == ".tsv" else ",;\t"
    delimiter = next((mark for mark in marks if mark in head[-1]), marks[0])
    table = csv.reader(chain(head[1:], lines), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for cells in table:
            if not any(cells):
                continue
            if header is None:
                header = _name_columns([name.strip() for name in cells], path)
                if repeated := {name for name in header if header.count(name) > 1}:
                    raise DataError(f"{path} has two columns {min(repeated)!r}", "rename one of them")
                if _is_header(cells):
                    continue
            if len(cells) != len(header):
                fact = f"{path}, line {table.line_num}: {len(cells)} fields, but the header has {len(header)}"
                raise DataError(fact, 'put fields that contain a comma in double quotes: "a,b.jpg"')
            yield table.line_num, dict(zip(header, cells))
    except csv.Error as error:
        raise DataError(f"{path}, line {table.line_num}: malformed CSV, {error}", "repair the line") from error


def _is_header(cells: Sequence[str]) -> bool:
    """Whether a first row has the names of columns, and no image file."""
    return not any(Path(cell.strip()).suffix[1:].lower() in EXTENSIONS for cell in cells)


def _name_columns(cells: list[str], path: Path) -> list[str]:
    """The names of the columns: the first row, or for a row of a path, a label and perhaps a split, these names."""
    if _is_header(cells):
        return cells
    names = ["path" if not _is_header([cell]) else "split" if cell.lower() in SPLITS else "label" for cell in cells]
    if len(names) > 3 or len({*names}) < len(names):
        what = f"{path} has no header, and its columns are unclear: {cells}"
        raise DataError(what, "add a first line such as path,label")
    return names


def _read_json(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line.rstrip())
        except ValueError as error:  # JSONDecodeError, or beyond a limit
            place = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            fact = f"{path}, line {number}{place}: broken JSON, {getattr(error, 'msg', error)}"
            raise DataError(fact, JSON_REMEDY) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not an object but {line.strip()[:40]!r}", JSON_REMEDY)
        yield number, row
