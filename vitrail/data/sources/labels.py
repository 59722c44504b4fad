"""From the labels in the data to targets: class names, their order, and one list of classes for all splits.

At the end labels as tables write them: numbers that a program made floats, several labels in one cell, columns of zeros and
ones. Axes: n items, K classes.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from vitrail.data.imagenet import index_classes
from vitrail.data.sources.annotations import Annotations, Objects
from vitrail.data.sources.contents import Contents, check_names
from vitrail.errors import DataError, nearest
from vitrail.text import plural
from vitrail.untrusted.limits import CLASSES, DIGITS

BETWEEN = ";"  # separates the labels of one image
ROWS_SHOWN = 20
NO_CLASSES = ("images", "imgs", "image", "img")  # names of folders that are none of classes
EXAMPLES = 3  # in a note


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels or annotations of n items, whose classes are indices, and the names of the indices."""

    names: tuple[str, ...]
    values: np.ndarray | Annotations  # (n,) int64; or (n, len(names)) float32 of zeros and ones: several labels an item
    declared: bool = False  # the data declare the names and their order; otherwise both come from the items

    def __post_init__(self) -> None:
        check_names(self.names, "class")

    @property
    def multi(self) -> bool:
        return isinstance(self.values, np.ndarray) and self.values.ndim == 2

    def take(self, rows: np.ndarray) -> Labels:
        return Labels(self.names, self.values[rows], self.declared)

    def counts(self) -> np.ndarray:
        """How often each name occurs: (len(names),) int64; see `count_classes`."""
        return count_classes(self.values, len(self.names))


class Faulty(NamedTuple):
    """Objects or masks that cannot be read: their number, that of all, the first with what is wrong, and what they are."""

    count: int = 0
    of: int = 0
    first: str = ""
    what: str = "objects"


@dataclass(frozen=True, eq=False)
class RawSplit:
    """One split as read, before its labels are joined with those of the other splits."""

    contents: Contents
    labels: Labels | None = None  # None: unlabelled
    notes: tuple[str, ...] = ()  # what is wrong with the annotations and was repaired or left out
    faulty: Faulty = Faulty()

    def take(self, rows: np.ndarray) -> RawSplit:
        return RawSplit(self.contents.take(rows), self.labels and self.labels.take(rows), self.notes, self.faulty)


RawData = tuple[str, dict[str, RawSplit]]  # a description of the layout, and the splits


def name_some(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns a note with the number of ``names`` and the first of them in order, each once; no note without names."""
    names = list(names)
    shown = sorted(set(names))
    more = ", ..." if len(shown) > EXAMPLES else ""
    return (f"{what}: {len(names):,} ({', '.join(shown[:EXAMPLES])}{more})",) if names else ()


def count_classes(values: np.ndarray | Annotations, classes: int) -> np.ndarray:
    """Number of items per class in targets (n,) int64 or (n, K) float32, of objects or of pixels: (K,) int64."""
    if isinstance(values, Annotations):
        return values.count_classes(classes)
    if values.ndim == 2:
        return (values > 0).sum(0)
    return np.bincount(values, minlength=classes)


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names, sorted; whole numbers are sorted by value, so "10" comes after "9"."""
    distinct = set(names)
    by_value = all(name.isascii() and name.isdecimal() and len(name) <= DIGITS for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name), name)) if by_value else sorted(distinct))


def format_label(label: Any) -> str:
    """One label as text: 3, 3.0 and "3" are the same class; "" for a missing label."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, (list, tuple, np.ndarray)):
        return BETWEEN.join(format_label(part) for part in label)
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return str(label).strip()


def from_texts(texts: Sequence[str], *, several: bool | None = None) -> Labels:
    """Labels from their names. Items may have several, separated by `;`, or none; None decides by whether any text has a `;`."""
    if not (any(BETWEEN in text for text in texts) if several is None else several):
        names = sort_names(texts)
        index = {name: row for row, name in enumerate(names)}
        return Labels(names, np.fromiter((index[text] for text in texts), np.int64, len(texts)))
    item_names = [[name for part in text.split(BETWEEN) if (name := part.strip())] for text in texts]
    names = sort_names(name for item in item_names for name in item)
    index = {name: column for column, name in enumerate(names)}
    values = np.zeros((len(texts), len(names)), np.float32)
    for row, item in enumerate(item_names):
        values[row, [index[name] for name in item]] = 1
    return Labels(names, values)


def from_numbers(values: np.ndarray, names: Sequence[str] | None, *, where: str) -> Labels | None:
    """Labels from numbers (n,) of classes, or zeros and ones (n, K); None if all are -1. Raises `DataError` for others."""
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    whole = values.dtype.kind in "iub" or (values.dtype.kind == "f" and bool((values == np.floor(values)).all()))
    if values.ndim not in (1, 2) or not whole:
        fact = f"the labels of {where} have shape {values.shape} and type {values.dtype}"
        raise DataError(fact, "give whole numbers of shape (n,), or zeros and ones of shape (n, classes)")
    if values.ndim == 1 and len(values) and (values == -1).all():
        return None
    known = values.shape[1] if values.ndim == 2 else int(values.max(initial=-1)) + 1
    known = known if names is None else len(names)
    if known > CLASSES:
        remedy = f"number the classes from 0; at most {CLASSES:,} are read"
        raise DataError(f"the labels of {where} go up to {known - 1}", remedy)
    high = known if values.ndim == 1 else 2
    wrong = np.unique(values[(values < 0) | (values >= high)])[:5]
    if len(wrong):
        fact = f"the labels of {where} contain {', '.join(f'{value:g}' for value in wrong)}"
        raise DataError(fact, f"give numbers from 0 to {high - 1}")
    names = tuple(map(str, range(known))) if names is None else tuple(names)
    if values.ndim == 2 and values.shape[1] != len(names):
        raise DataError(f"the labels of {where} have {values.shape[1]} columns for {len(names)} classes")
    return Labels(names, values.astype(np.int64 if values.ndim == 1 else np.float32), declared=True)


def is_numbered(labels: Labels) -> bool:
    """Whether the labels are numbers without names, as arrays and a torch ``Dataset`` have them."""
    return labels.declared and labels.names == tuple(map(str, range(len(labels.names))))


def name_numbers(labels: Labels, classes: Sequence[str]) -> Labels:
    """The same labels, where number k is the class k of ``classes``. Raises `DataError` for more numbers than classes."""
    if len(labels.names) > len(classes):
        what = f"the labels go up to {len(labels.names) - 1}, and there are {len(classes)} classes"
        raise DataError(what, f"give numbers from 0 to {len(classes) - 1}, or names")
    return Labels(tuple(classes[: len(labels.names)]), labels.values, declared=True)


def _compose_names(labels: Labels) -> Labels:
    """The same labels with all names in Unicode's composed form (NFC); names that differ only in their form are one class."""
    composed = [normalize("NFC", name) for name in labels.names]
    if composed == list(labels.names):
        return labels
    names = tuple(dict.fromkeys(composed)) if labels.declared else sort_names(composed)
    number = {name: index for index, name in enumerate(names)}
    new = np.array([number[name] for name in composed], np.int64)
    return Labels(names, _renumber(labels, new, len(names), multi=labels.multi), labels.declared)


def check_faulty_objects(splits: Mapping[str, RawSplit], most: float) -> None:
    """Raises `DataError` if more than this share of objects or masks cannot be read, or if the training images have no object."""
    faulty = sum(split.faulty.count for split in splits.values())
    of = sum(split.faulty.of for split in splits.values())
    first = next((split.faulty.first for split in splits.values() if split.faulty.first), "")
    if faulty > most * of:
        kind = next(split.faulty.what for split in splits.values() if split.faulty.count)
        what = f"{faulty:,} of {of:,} {kind} cannot be read, more than {100 * most:.4g} %; the first: {first}"
        raise DataError(what, "repair the annotations, or allow more faulty ones with --max-bad")
    train = splits["train"].labels if "train" in splits else None
    if train is not None and isinstance(train.values, Objects) and not len(train.values.boxes):
        raise DataError("no training image has an object", "check the annotations: all objects may have been left out")


def join_labels(
    splits: Mapping[str, Labels], classes: Sequence[str] | None, *, layout: str | None = None
) -> tuple[tuple[str, ...], dict[str, np.ndarray | Annotations]]:
    """Convert the labels of every split to indices into one list of classes, matched as `index_classes` does.

    Without ``classes``, e.g. a model's, it has those of the training split, or else of all. Returns it, and the targets of each
    split: (n,) int64, (n, K) float32 if any split has several labels per item, or annotations. Raises `DataError` for items of
    classes that are not in the list; and, if the ``layout`` of the data is given, for a class without training images.
    """
    splits = {split: _compose_names(labels) for split, labels in splits.items()}
    train = splits.get("train")
    if classes is None and layout is not None and train is not None and not train.declared:
        empty = [name for name, count in zip(train.names, train.counts()) if not count]
        if empty:
            fact = f"{plural(len(empty), 'class has', 'classes have')} no training images: "
            remedy = "add images, or remove the folder or the rows of the class"
            raise DataError(fact + ", ".join(map(repr, empty[:ROWS_SHOWN])), remedy, value=layout)
    who = "classes of the training images" if classes is None else "given classes"
    if classes is None and train is not None:
        classes = train.names
    elif classes is None:
        every = dict.fromkeys(name for labels in splits.values() for name in labels.names)
        classes = tuple(every) if any(labels.declared for labels in splits.values()) else sort_names(every)
    number = index_classes([normalize("NFC", name) for name in classes])
    _check_known(splits, number, f"the {len(classes)} {who}")
    multi = any(labels.multi for labels in splits.values())
    targets = {}
    for split, labels in splits.items():  # a name outside the list has no items
        new = np.array([number.get(name, -1) for name in labels.names], np.int64)
        targets[split] = _renumber(labels, new, len(classes), multi=multi)
    return tuple(classes), targets


def _renumber(labels: Labels, new: np.ndarray, classes: int, *, multi: bool) -> np.ndarray | Annotations:
    """Targets with index ``new[k]`` for name k: (n,); or zeros and ones (n, K) if they are ``multi``; or annotations."""
    if isinstance(labels.values, Annotations):
        return labels.values.renumber(new, classes)
    if not multi:
        is_same = np.array_equal(new, np.arange(len(new)))
        return labels.values if is_same else new[labels.values]  # values in a mapped file stay there
    rows, old = np.nonzero(labels.values) if labels.multi else (np.arange(len(labels.values)), labels.values)
    targets = np.zeros((len(labels.values), classes), np.float32)
    targets[rows, new[old]] = 1
    return targets


def _check_known(splits: Mapping[str, Labels], number: Mapping[str, int], who: str) -> None:
    unknown = [
        (name, split, count, labels.values.counted if isinstance(labels.values, Annotations) else "images")
        for split, labels in splits.items()
        for name, count in zip(labels.names, labels.counts().tolist())
        if count and name not in number
    ]
    if not unknown:
        return
    lines = []
    for name, split, count, counted in unknown[:ROWS_SHOWN]:
        close = nearest(name, number, most=1)  # the whole list if no name is close
        lines.append(f"{name:<24} {split:<6} {count:>8,} {counted}  {close if close.endswith('?') else ''}".rstrip())
    if len(unknown) > ROWS_SHOWN:
        lines.append(f"... and {len(unknown) - ROWS_SHOWN} more")
    different = {name for name, *_ in unknown}
    remedy = "rename or remove them, or use a model that was trained with them"
    if different <= set(NO_CLASSES):  # as in Tiny ImageNet
        remedy = "put these images into folders of their classes, or give a table of all images: path,label,split"
    what = f"the data have {'a class' if len(different) == 1 else f'{len(different)} classes'} not among {who}"
    raise DataError(what, remedy, value="\n".join(lines))


PLURALS = ("labels", "tags", "classes", "categories", "targets", "attributes")
# values of a column for each class: whether an image has it
ZEROS_AND_ONES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
SIGNS = {"-1": 0, "1": 1, "-1.0": 0, "1.0": 1}


def unify_labels(texts: Sequence[str], column: str) -> tuple[list[str], str]:
    """Returns the labels of a column in one spelling, several of an image separated by ``;``, and a description of the change.

    If all labels are whole numbers, ``3.0`` is ``3``. Lists (``['ant', 'bee']``) and ``|`` separate labels, and in a column with
    a plural as its name (`PLURALS`) spaces and commas do where the parts recur: where there are fewer parts than combinations.
    Raises `DataError` for a list that cannot be read.
    """
    distinct = set(texts)
    are_whole = all(re.fullmatch(r"([+-]?\d+(\.0+)?)?", text) for text in distinct)
    if are_whole and any("." in text for text in distinct):
        return [text.partition(".")[0] for text in texts], ""
    if any(BETWEEN in text for text in distinct):
        return list(texts), ""
    if distinct and all(text.startswith("[") and text.endswith("]") for text in distinct if text):
        parts = {text: _parse_list(text) for text in distinct}
        return [parts[text] for text in texts], "lists of labels"
    if any("|" in text for text in distinct):
        return [text.replace("|", BETWEEN) for text in texts], "labels separated by '|'"
    for mark, name in ((",", "','"), (" ", "spaces")):
        if column.strip().lower() in PLURALS and _parts_recur(distinct, mark):
            divided = (text.split(None if mark == " " else mark) for text in texts)
            return list(map(BETWEEN.join, divided)), f"labels separated by {name}"
    return list(texts), ""


def find_combined_labels(names: Sequence[str]) -> str:
    """Returns a warning of class names that look like several labels in one, as ``haze primary``; "" without such names."""
    for mark, name in ((",", "commas"), (" ", "spaces")):
        if _parts_recur(set(names), mark):
            example = max(names, key=lambda text: text.count(mark))
            what = f"class names such as {example!r} consist of names that recur"
            return f"{what}: if they are several labels of an image, separate them by {BETWEEN!r}, not by {name}"
    return ""


def _parts_recur(texts: set[str], mark: str) -> bool:
    """Whether texts are combinations: of different lengths, and every part of the longer ones occurs in another one, too."""
    divided = [{part for piece in text.split(mark) if (part := piece.strip())} for text in texts]
    occurs = Counter(part for parts in divided for part in parts)
    combined = [parts for parts in divided if len(parts) > 1]
    lengths = {len(parts) for parts in divided if parts}
    return len(combined) > 1 and len(lengths) > 1 and all(occurs[part] > 1 for parts in combined for part in parts)


def _parse_list(text: str) -> str:
    inner = text[1:-1].strip()
    quote = "'" if inner.startswith("'") else '"'
    try:  # long lists are printed on several lines
        rows = list(csv.reader(inner.splitlines(), quotechar=quote, skipinitialspace=True))
    except csv.Error as error:
        raise DataError(f"the list of labels {text:.60} cannot be read: {error}", "shorten its names") from error
    return BETWEEN.join(part.strip() for row in rows for part in row)


def join_columns(columns: Mapping[str, Sequence[str]]) -> tuple[list[str], str] | None:
    """The labels of two or more columns of zeros and ones, joined by ``;``, and a description; None for other columns."""
    distinct = {text.lower() for column in columns.values() for text in set(column)}
    meaning = next((each for each in (ZEROS_AND_ONES, SIGNS) if distinct <= each.keys()), None)
    if len(columns) < 2 or meaning is None:
        return None
    rows = zip(*([meaning[text.lower()] for text in column] for column in columns.values()))
    names = [name.strip() for name in columns]
    texts = [BETWEEN.join(name for name, value in zip(names, row) if value) for row in rows]
    off = "zeros" if meaning is ZEROS_AND_ONES else "-1"
    return texts, f"a column of {off} and ones for each of {len(names)} classes"
