"""The section of a confusion matrix: the matrix beside the most frequent confusions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.markup import Markup, join, tag
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.text import percent, plural

MATRIX_MOST = 32  # classes; a larger matrix would be unreadable, and only the most frequent pairs are listed


def confusion(
    counts: np.ndarray, classes: Sequence[str], drawn: Markup | None, *, noun: str = "image", about: str = ""
) -> Markup:
    """Returns the section of a matrix (K, K), rows are true classes.

    Args:
        drawn: the chart of the matrix; None if there are too many classes.
        noun: what is counted, in the singular.
        about: sentences before the list.
    """
    title = tag("h2", "Confusion matrix" if drawn else "Most frequent confusions")
    chart = tag("figure", drawn) if drawn else None
    intro = lead(about) if about else None
    pairs = confused_pairs(counts)
    if not pairs:
        return join(title, intro, lead(f"No {noun} was misclassified."), chart)
    support, rows = counts.sum(1), []
    for true, named, count in pairs:
        names = (tag("td", classes[index], class_="text") for index in (true, named))
        rows.append(tag("tr", *names, tag("td", f"{count:,}"), tag("td", percent(count / support[true]))))
    table = tag(
        "table", header(("true class", "predicted class", f"{noun}s", "share of class"), text=2), tag("tbody", *rows)
    )
    wrong, shown = int(counts.sum() - np.trace(counts)), sum(count for *_, count in pairs)
    words = (
        f"Most frequent confusions, {shown:,} of {plural(wrong, f'misclassified {noun}')}:"
        if shown < wrong
        else f"{plural(wrong, f'misclassified {noun}')}:"
    )
    listed = join(lead(words), make_scrollable(table, "Confusions by pair of classes"))
    return join(title, intro, tag("div", chart, tag("div", listed), class_="beside") if chart else listed)


def confused_pairs(counts: np.ndarray, most: int = 12) -> list[tuple[int, int, int]]:
    """Returns the most frequent confusions as (true, predicted, count), in descending order."""
    wrong = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")[:most]
    return [(int(row), int(column), int(wrong[row, column])) for row, column in zip(rows[order], columns[order])]
