"""Labels as tables write them: numbers that a program made floats, several labels in one cell, columns of zeros and ones."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from vitrail.data.sources.labels import BETWEEN
from vitrail.errors import DataError

FLOAT_WHOLE = re.compile(r"[+-]?\d+\.0+")
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
    if any(map(FLOAT_WHOLE.fullmatch, distinct)) and all(
        re.fullmatch(r"([+-]?\d+(\.0+)?)?", text) for text in distinct
    ):
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
            return (
                f"class names such as {example!r} consist of names that recur: if they are several labels of an image, separate "
                f"them by {BETWEEN!r}, not by {name}"
            )
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
    """Returns the labels of columns of zeros and ones, several of an image separated by ``;``, and a description of the columns.

    None unless all values of two columns or more are 0 or 1.
    """
    distinct = {text.lower() for column in columns.values() for text in set(column)}
    meaning = next((each for each in (ZEROS_AND_ONES, SIGNS) if distinct <= each.keys()), None)
    if len(columns) < 2 or meaning is None:
        return None
    rows = zip(*([meaning[text.lower()] for text in column] for column in columns.values()))
    names = [name.strip() for name in columns]
    texts = [BETWEEN.join(name for name, value in zip(names, row) if value) for row in rows]
    return (
        texts,
        f"a column of {'zeros' if meaning is ZEROS_AND_ONES else '-1'} and ones for each of {len(names)} classes",
    )
