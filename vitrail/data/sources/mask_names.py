"""Reads the files beside masks that name the classes of their values and colours."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.sources.contents import read_lines
from vitrail.errors import DataError
from vitrail.images.masks import IGNORED, Colour
from vitrail.untrusted.numbers import to_whole

VOID = frozenset({"void", "ignore", "ignored"})  # names of what has no class
COLUMNS = {
    "index": ("index", "pixel value", "value", "id", "idx"),
    "name": ("name", "class", "class_name", "label"),
    **{colour: (colour, colour[0]) for colour in ("red", "green", "blue")},
}
# files that may name classes in a format that is not read; a note lists them where masks have no names
LIKE_NAMES = re.compile(r"(?i)(class|label|name|categor|colou?r|palette|code).*\.(txt|csv|tsv|json|ya?ml|xml|pbtxt)$")


@dataclass(frozen=True)
class Entry:
    """A value of masks, its name, and its colour where that is given."""

    value: int
    name: str
    colour: Colour | None = None
    given: bool = field(default=False, compare=False)  # whether the file has the value, not just the line as its place

    @property
    def ignored(self) -> bool:
        """Whether pixels of this value are ignored."""
        return self.value == IGNORED or self.name.lower() in VOID


@dataclass(frozen=True)
class ClassTable:
    """The entries of a file in its order. Raises `DataError` for one of two entries with one value, name or colour."""

    path: Path
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        for what in ("value", "name", "colour"):
            found = [getattr(entry, what) for entry in self.entries]
            twice = [each for number, each in enumerate(found) if each is not None and each in found[:number]]
            if twice:
                raise DataError(f"{self.path} has the {what} {twice[0]!r} twice", f"use each {what} once")
        if not all(entry.name for entry in self.entries) or not self.entries:
            raise DataError(f"{self.path} names no classes or has an empty name", "give one name a line")

    @property
    def numbered(self) -> bool:
        return any(entry.given for entry in self.entries)

    @property
    def classes(self) -> tuple[Entry, ...]:
        """The entries that are classes, in the order of their indices."""
        return tuple(entry for entry in self.entries if not entry.ignored)

    @property
    def colours(self) -> dict[Colour, Entry]:
        return {entry.colour: entry for entry in self.entries if entry.colour}

    @property
    def values(self) -> dict[int, Entry]:
        return {entry.value: entry for entry in self.entries}


def find_class_table(root: Path, masks: Sequence[str]) -> ClassTable | None:
    """Reads the file of names nearest to ``masks``, one of each folder, if any. Raises `DataError` if folders differ."""
    tables = [_read_nearest(root, mask) for mask in masks]
    for table in tables[1:]:
        first = tables[0]
        if (table and table.entries) != (first and first.entries):
            paths = [str(each.path) if each else "none" for each in (first, table)]
            what = f"folders of masks below {root} have different names of classes: {' and '.join(paths)}"
            raise DataError(what, "give all folders the same names, in a file in the folder of the data")
    return tables[0] if tables else None


def list_unread(root: Path) -> list[str]:
    """Names of files in ``root`` that look as if they named classes, and that `find_class_table` does not read."""
    return sorted(path.name for path in root.iterdir() if LIKE_NAMES.match(path.name) and path.name not in READERS)


def _read_nearest(root: Path, mask: str) -> ClassTable | None:
    for folder in (root / mask).parents:
        for name, (parse, form) in READERS.items():
            if (path := folder / name).is_file():
                lines = read_lines(path, "save it as text in UTF-8")
                try:
                    return ClassTable(path, tuple(parse(lines)))
                except (ValueError, LookupError, csv.Error) as error:
                    raise DataError(f"{path} is no table of classes: {error}", f"give {form}") from error
        if folder == root:
            break
    return None


def _parse_names(lines: Sequence[str]) -> list[Entry]:
    return [Entry(number, name) for number, name in enumerate(lines)]


def _parse_csv(lines: Sequence[str]) -> list[Entry]:
    """A table with a name in each row, and a value, a colour or both."""
    between = next((mark for mark in ",;\t" if lines and mark in lines[0]), ",")
    rows = csv.reader(lines, delimiter=between, skipinitialspace=True, strict=True)
    header = [name.strip().lower() for name in next(rows, [])]
    columns = {what: [header.index(name) for name in names if name in header] for what, names in COLUMNS.items()}
    if not columns["name"]:
        raise ValueError(f"its columns are {', '.join(header) or 'none'}")
    entries = []
    for number, row in enumerate(row for row in rows if any(map(str.strip, row))):
        index, name, *colour = (row[places[0]].strip() if places else "" for places in columns.values())
        value = to_whole(index, "the index", most=IGNORED) if columns["index"] else number
        entries.append(Entry(value, name, _parse_colour(colour) if any(colour) else None, bool(columns["index"])))
    return entries


def _parse_ade20k(lines: Sequence[str]) -> list[Entry]:
    """ADE20K's table, which does not name 0: what belongs to none of its classes."""
    return [Entry(0, "void"), *_parse_csv(lines)]


def _parse_labelmap(lines: Sequence[str]) -> list[Entry]:
    """Lines ``label:color_rgb:parts:actions``, as CVAT and Datumaro write them."""
    entries = []
    for number, line in enumerate(line for line in lines if not line.startswith("#")):
        name, *columns = line.rsplit(":", 3)
        if not columns:
            raise ValueError(f"the line {line!r:.60} has no colon")
        colour = _parse_colour(columns[0].split(",")) if columns[0].strip() else None
        entries.append(Entry(number, name.strip(), colour))
    return entries


def _parse_colours(lines: Sequence[str]) -> list[Entry]:
    """Lines ``red green blue name``, as CamVid has them."""
    rows = ([*line.split(maxsplit=3), ""][:4] for line in lines)
    return [Entry(number, name, _parse_colour(colour)) for number, (*colour, name) in enumerate(rows)]


def _parse_colour(channels: Sequence[str]) -> Colour:
    if len(channels) != 3:
        raise ValueError(f"{','.join(channels)!r} is no colour")
    red, green, blue = (to_whole(text.strip(), "a colour", most=255) for text in channels)
    return red, green, blue


CSV_FORM = "the columns index,name or index,name,red,green,blue"
READERS: dict[str, tuple[Callable[[Sequence[str]], list[Entry]], str]] = {
    **dict.fromkeys(("palette.csv", "classes.csv", "class_dict.csv", "_classes.csv"), (_parse_csv, CSV_FORM)),
    "objectInfo150.txt": (_parse_ade20k, CSV_FORM),
    "labelmap.txt": (_parse_labelmap, "lines of label:red,green,blue:parts:actions"),
    "label_colors.txt": (_parse_colours, "lines of red green blue name"),
    **dict.fromkeys(("classes.txt", "class_names.txt", "codes.txt"), (_parse_names, "one name a line")),
}
