"""Reads the files beside masks that name the classes of their values and colours."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.data.sources.contents import read_lines
from vitrail.errors import DataError
from vitrail.images.masks import IGNORED, Colour
from vitrail.untrusted.numbers import to_whole

REMEDY = "save it as text in UTF-8"
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

    @property
    def ignored(self) -> bool:
        """Whether pixels of this value are ignored."""
        return self.value == IGNORED or self.name.lower() in VOID


@dataclass(frozen=True)
class ClassTable:
    """The entries of a file in its order. Raises `DataError` for one of two entries with one value, name or colour."""

    path: Path
    entries: tuple[Entry, ...]
    numbered: bool = False  # whether the file gives the values; otherwise they are the places of the lines

    def __post_init__(self) -> None:
        for field in ("value", "name", "colour"):
            found = [getattr(entry, field) for entry in self.entries]
            twice = [each for number, each in enumerate(found) if each is not None and each in found[:number]]
            if twice:
                raise DataError(f"{self.path} has the {field} {twice[0]!r} twice", f"use each {field} once")
        if not all(entry.name for entry in self.entries) or not self.entries:
            raise DataError(f"{self.path} names no classes or has an empty name", "give one name a line")

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
    """Reads the file that names the classes, the one nearest to the masks; None if there is none.

    ``masks`` has one path for each folder of masks, relative to ``root``, which is looked at last. Raises `DataError` for a file
    that is no table of classes, or different tables for different folders of masks.
    """
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
        for name, read in READERS.items():
            if (folder / name).is_file():
                return read(folder / name)
        if folder == root:
            break
    return None


def _read_names(path: Path) -> ClassTable:
    lines = read_lines(path, REMEDY)
    return ClassTable(path, tuple(Entry(number, name) for number, name in enumerate(lines)))


@contextmanager
def _table_errors(path: Path, form: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, csv.Error) as error:
        raise DataError(f"{path} is no table of classes: {error}", f"give {form}") from error


def _read_csv(path: Path) -> ClassTable:
    """A table with a name in each row, and a value, a colour or both."""
    with _table_errors(path, "the columns index,name or index,name,red,green,blue"):
        lines = read_lines(path, REMEDY)
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
            entries.append(Entry(value, name, _parse_colour(colour) if any(colour) else None))
    return ClassTable(path, tuple(entries), numbered=bool(columns["index"]))


def _read_ade20k(path: Path) -> ClassTable:
    """ADE20K's table, which does not name 0: what belongs to none of its classes."""
    table = _read_csv(path)
    return replace(table, entries=(Entry(0, "void"), *table.entries))


def _read_labelmap(path: Path) -> ClassTable:
    """Lines ``label:color_rgb:parts:actions``, as CVAT and Datumaro write them."""
    with _table_errors(path, "lines of label:red,green,blue:parts:actions"):
        entries = []
        for number, line in enumerate(line for line in read_lines(path, REMEDY) if not line.startswith("#")):
            name, *columns = line.rsplit(":", 3)
            if not columns:
                raise ValueError(f"the line {line!r:.60} has no colon")
            colour = _parse_colour(columns[0].split(",")) if columns[0].strip() else None
            entries.append(Entry(number, name.strip(), colour))
    return ClassTable(path, tuple(entries))


def _read_colours(path: Path) -> ClassTable:
    """Lines ``red green blue name``, as CamVid has them."""
    with _table_errors(path, "lines of red green blue name"):
        rows = [[*line.split(maxsplit=3), ""][:4] for line in read_lines(path, REMEDY)]
        entries = [Entry(number, name, _parse_colour(colour)) for number, (*colour, name) in enumerate(rows)]
    return ClassTable(path, tuple(entries))


def _parse_colour(channels: Sequence[str]) -> Colour:
    if len(channels) != 3:
        raise ValueError(f"{','.join(channels)!r} is no colour")
    red, green, blue = (to_whole(text.strip(), "a colour", most=255) for text in channels)
    return red, green, blue


READERS: dict[str, Callable[[Path], ClassTable]] = {
    **dict.fromkeys(("palette.csv", "classes.csv", "class_dict.csv", "_classes.csv"), _read_csv),
    "objectInfo150.txt": _read_ade20k,
    "labelmap.txt": _read_labelmap,
    "label_colors.txt": _read_colours,
    **dict.fromkeys(("classes.txt", "class_names.txt", "codes.txt"), _read_names),
}
