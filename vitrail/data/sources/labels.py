"""From labels as data write them to targets: names, their order, and several splits joined to one list of classes.

Axes: n items, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.sources.contents import Contents
from vitrail.errors import DataError, nearest

# how folders, files and columns call a split -> its name here
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
SPLIT_ORDER = ("train", "val", "test")
BETWEEN = ";"  # between the labels of one image
ROWS_SHOWN = 20


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of n items by number, and what the numbers mean."""

    names: tuple[str, ...]
    values: np.ndarray  # (n,) int64 into names; or (n, len(names)) float32 of zeros and ones: several labels an item
    declared: bool = False  # the data state the names and their order; else both were read off the items

    @property
    def multi(self) -> bool:
        return self.values.ndim == 2

    def take(self, rows: np.ndarray) -> Labels:
        return Labels(self.names, self.values[rows], self.declared)

    def counts(self) -> np.ndarray:
        """How many items have each name: (len(names),) int64."""
        return counts(self.values, len(self.names))


@dataclass(frozen=True, eq=False)
class RawSplit:
    """One split as it was found, before its labels are joined to those of the others."""

    contents: Contents
    labels: Labels | None = None  # None: unlabelled

    def take(self, rows: np.ndarray) -> RawSplit:
        return RawSplit(self.contents.take(rows), self.labels and self.labels.take(rows))


def counts(values: np.ndarray, classes: int) -> np.ndarray:
    """Items of each class in targets (n,) int64 or (n, K) float32: (K,) int64."""
    if values.ndim == 2:
        return (values > 0).sum(0)
    return np.bincount(values, minlength=classes)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, sorted; whole numbers by their value, so that "10" comes after "9"."""
    once = set(names)
    return tuple(sorted(once, key=lambda name: (int(name), name)) if all(map(_is_number, once)) else sorted(once))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def text_of(label: Any) -> str:
    """One label as the text of its name: 3, 3.0 and "3" are the same class; "" for what says nothing."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, (list, tuple, np.ndarray)):
        return BETWEEN.join(text_of(each) for each in label)
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return str(label).strip()


def from_texts(texts: Sequence[str], *, several: bool | None = None) -> Labels:
    """Labels from their names; where any text has a `;`, every item may have several, or none.

    Args:
        several: whether items may have several labels; None finds out from the texts.
    """
    if not (any(BETWEEN in text for text in texts) if several is None else several):
        names = in_order(texts)
        number = {name: index for index, name in enumerate(names)}
        return Labels(names, np.fromiter((number[text] for text in texts), np.int64, len(texts)))
    parts = [[part for each in text.split(BETWEEN) if (part := each.strip())] for text in texts]
    names = in_order(part for each in parts for part in each)
    number = {name: index for index, name in enumerate(names)}
    values = np.zeros((len(texts), len(names)), np.float32)
    for row, each in enumerate(parts):
        values[row, [number[part] for part in each]] = 1
    return Labels(names, values)


def from_numbers(values: np.ndarray, names: Sequence[str] | None, *, where: str) -> Labels | None:
    """Labels given as whole numbers (n,), or as a matrix (n, K) of zeros and ones; None where all are -1: unlabelled.

    Args:
        names: of the numbers, in their order; without them a number is its own name.
        where: the data, for the message.

    Raises:
        DataError: a negative number, a number without a name, or values that are no labels.
    """
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    whole = values.dtype.kind in "iub" or (values.dtype.kind == "f" and bool((values == np.floor(values)).all()))
    if values.ndim not in (1, 2) or not whole:
        fact = f"the labels of {where} have shape {values.shape} and type {values.dtype}"
        raise DataError(fact, "give whole numbers (n,), or zeros and ones (n, classes)")
    if values.ndim == 1 and len(values) and (values == -1).all():
        return None
    known = (
        len(names) if names is not None else values.shape[1] if values.ndim == 2 else int(values.max(initial=-1)) + 1
    )
    low, high = (0, known) if values.ndim == 1 else (0, 2)
    wrong = np.unique(values[(values < low) | (values >= high)])[:5]
    if len(wrong):
        fact = f"the labels of {where} hold {', '.join(f'{each:g}' for each in wrong)}"
        raise DataError(fact, f"give numbers from {low} to {high - 1}")
    names = tuple(names) if names is not None else tuple(str(number) for number in range(known))
    if values.ndim == 2 and values.shape[1] != len(names):
        raise DataError(f"the labels of {where} have {values.shape[1]} columns for {len(names)} classes")
    return Labels(names, values.astype(np.int64 if values.ndim == 1 else np.float32), declared=True)


def check_no_class_is_empty(splits: Mapping[str, Labels]) -> None:
    """Refuses a class that was found by name but has nothing to learn from. Raises `DataError`."""
    train = splits["train"]
    empty = [name for name, count in zip(train.names, train.counts()) if not count]
    if empty and not train.declared:
        shown = ", ".join(repr(name) for name in empty[:ROWS_SHOWN])
        plural = "class has" if len(empty) == 1 else "classes have"
        fact = f"{len(empty)} {plural} no images to train on: {shown}"
        raise DataError(fact, "add images of it, or take its folder or its rows away")


def joined(
    splits: Mapping[str, Labels], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Every split's targets in the numbers of one list of classes, matched by name.

    Args:
        classes: the list, e.g. a model's. None takes the training split's, or without one what all splits have.

    Returns:
        the classes, and for each split targets (n,) int64; (n, K) float32 where any split has several labels an item.

    Raises:
        DataError: an item of a class that is not in the list, with a table of such classes.
    """
    if classes is None:
        classes = splits["train"].names if "train" in splits else _together(splits.values())
        who = f"the {len(classes)} of the training images"
    else:
        who = f"the {len(classes)} asked for"
    number = {name: index for index, name in enumerate(classes)}
    _check_known(splits, number, who)
    multi = any(labels.multi for labels in splits.values())
    return tuple(classes), {name: _renumbered(labels, number, multi) for name, labels in splits.items()}


def _together(splits: Iterable[Labels]) -> tuple[str, ...]:
    splits = list(splits)
    names = dict.fromkeys(name for labels in splits for name in labels.names)
    return tuple(names) if any(labels.declared for labels in splits) else in_order(names)


def _renumbered(labels: Labels, number: Mapping[str, int], multi: bool) -> np.ndarray:
    # a name outside the list has no items, so its number is never used
    new = np.array([number.get(name, 0) for name in labels.names], np.int64)  # (len(names),)
    rows = np.arange(len(labels.values))
    if not multi:
        return new[labels.values]
    targets = np.zeros((len(rows), len(number)), np.float32)
    if labels.multi:
        row, column = np.nonzero(labels.values)
        targets[row, new[column]] = 1
    else:
        targets[rows, new[labels.values]] = 1
    return targets


def _check_known(splits: Mapping[str, Labels], number: Mapping[str, int], who: str) -> None:
    unknown = [
        (name, split, count)
        for split, labels in splits.items()
        for name, count in zip(labels.names, labels.counts().tolist())
        if count and name not in number
    ]
    if not unknown:
        return
    lines = []
    for name, split, count in unknown[:ROWS_SHOWN]:
        close = nearest(name, number, most=1)  # the whole list where none is near
        lines.append(f"{name:<24} {split:<6} {count:>8,} images  {close if close.endswith('?') else ''}".rstrip())
    if len(unknown) > ROWS_SHOWN:
        lines.append(f"... and {len(unknown) - ROWS_SHOWN} more")
    different = len({name for name, _, _ in unknown})
    raise DataError(
        f"the data have {'a class' if different == 1 else f'{different} classes'} not among {who}",
        "rename or remove them, or train on data that have them",
        value="\n".join(lines),
    )
