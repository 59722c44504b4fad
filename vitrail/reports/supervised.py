"""The report and the model card of an evaluated model, and what the reports of all tasks share.

A new column of the table of classes is a column of the metric's ``per_class``, for a classifier of `classification.classes`;
a new figure is named in metric_names.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.markup import Markup
from vitrail.reports import training_curves as curves
from vitrail.reports.charts import confusion_chart, strip
from vitrail.reports.facts import SPLITS, RunFacts
from vitrail.reports.metric_names import metric_of
from vitrail.reports.page import Cell, Table, render, write_page
from vitrail.text import percent, plural

MATRIX_MOST = 32  # classes; a larger matrix would be unreadable, and only the most frequent pairs are listed
UNDEFINED = "–"  # a cell of a metric's table without a value
CORRUPTED = "corrupted_"  # names of figures under a corruption begin so
FEW = 100  # images; below, the 95 % interval of an accuracy of 80 % is wider than 15 points


def write_supervised(
    folder: Path,
    facts: RunFacts,
    figures: Mapping[str, float],
    template: str,
    plots: Mapping[str, Markup],
    *,
    task: Mapping[str, str],
    warnings: Sequence[str] = (),
    best: Sequence[str] = (),
    confusion: Mapping[str, Any] | None = None,
    drawn: Mapping[str, Markup] = {},
    **values: Any,
) -> Path:
    """Writes ``report.html`` and its charts into ``folder``; returns the path of the page.

    Args:
        figures: the metrics, the main one first.
        plots: the charts against the training step.
        task: rows of the run details.
        best: sentences about the best evaluation.
        confusion: the result of `describe_confusion`.
        drawn: further charts for files.
        values: what the sections of the task show.
    """
    if confusion and confusion["chart"]:
        drawn = {**drawn, "confusion": confusion["chart"]}
    page = render(
        template,
        "vitrail report",
        facts.title,
        facts.date,
        facts=facts,
        warnings=[*warnings, *facts.notes],
        curves=list(plots.values()),
        about_curves=[*best, *explain_precision(facts), *curves.troubles(facts.records)],
        corruptions=list_corruptions(figures),
        run=facts.details(task),
        confusion=confusion,
        **{"classes": None, **values},
    )
    return write_page(folder, page, {**plots, **drawn})


def explain_precision(facts: RunFacts) -> list[str]:
    """Returns a sentence on why the curves may differ from the figures on top, where a run does not compute in fp32."""
    precision = facts.config.get("compute", {}).get("precision") or "fp32"
    if precision == "fp32":
        return []
    return [
        f"The curves were computed in {precision} during the training, the figures on top in fp32 with the final weights: "
        "they may differ in the last digits. "
    ]


def draw_metrics(facts: RunFacts) -> dict[str, Markup]:
    """Returns the charts against the training step: loss, validation metrics, learning rate and speed."""
    columns = dict.fromkeys(name for record in facts.records for name in record if name.startswith("val_"))
    measured: dict[str, curves.Curve] = {}
    for column in columns:
        metric, name = metric_of(column), column.removeprefix("val_")
        lines = curves.evaluated(facts.records, name, "validation")
        measured[name.replace("_", "-")] = metric.heading, lines, {"words": metric.format}
    return curves.draw_curves(facts.records, measured)


def list_class_metrics(result: EvaluationResult) -> dict[str, Any] | None:
    """Returns the table of the metric, a row for each class; None where it has none."""
    columns, rows = result.per_class()
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: float(row[1]) if row[1] != UNDEFINED else math.inf)
    cells = [
        [Cell(name, key=name), *(Cell(each, key="" if each == UNDEFINED else each) for each in numbers)]
        for name, *numbers in rows
    ]
    table = Table("Per-class metrics", columns, cells, sorted_by=columns[1])
    return {
        "table": table,
        "about": "Sorted from worst to best; click a heading to sort. A dash is an undefined value.",
    }


def summarise(result: EvaluationResult) -> dict[str, Any]:
    """Returns the values of the headline: the main metric with its confidence interval, and the other metrics."""
    figures, where = result.figures, SPLITS.get(result.split, result.split)
    first = next(iter(figures))
    metric, ends = metric_of(first), [figures.get(f"{first}_{end}") for end in ("low", "high")]
    low, high = ends
    is_share = metric.format is percent
    hidden = {first, "images", *(f"{name}_{end}" for name in figures for end in ("low", "high"))}
    others = [name for name in figures if name not in hidden and not name.startswith(CORRUPTED)]
    return {
        "value": metric.format(figures[first]),
        "name": metric.label,
        "measured": f"Measured on {plural(len(result.keys), f'{where} image')}.",
        "interval": " to ".join(map(metric.format, (low, high))) if low is not None and high is not None else "",
        "strip": draw_interval(figures[first], low, high)
        if is_share and low is not None and high is not None
        else None,
        "tiles": list_tiles(figures, others),
    }


def list_tiles(figures: Mapping[str, float], names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns (name, value, description) of metrics."""
    metrics = [(metric_of(name), figures[name]) for name in names]
    return [(metric.heading, metric.format(value), metric.gloss) for metric, value in metrics]


def draw_interval(value: float, low: float, high: float, baseline: float | None = None) -> Markup:
    """Draws a value in [0, 1] with its interval and the majority-class baseline."""
    says = f", interval {percent(low)} to {percent(high)}"
    return strip(value, (low, high), says, baseline, "most frequent class")


def warn_of_few(images: int) -> list[str]:
    """Returns a sentence about metrics of few images, or an empty list."""
    if images >= FEW:
        return []
    return [
        f"Only {plural(images, 'image was', 'images were')} evaluated; the metrics are uncertain (see the intervals)."
    ]


def describe_confusion(
    counts: np.ndarray, classes: Sequence[str], *, noun: str = "image", about: str = "", in_percent: bool = False
) -> dict[str, Any]:
    """Returns the values of the section of a matrix (K, K), rows are true classes. It is drawn for up to `MATRIX_MOST` classes.

    Args:
        noun: what is counted, in the singular.
        about: sentences before the list.
        in_percent: cells show the share of their row instead of the count.
    """
    is_drawn = len(classes) <= MATRIX_MOST
    chart = confusion_chart(counts, classes, noun=noun, in_percent=in_percent) if is_drawn else None
    pairs, support = confused_pairs(counts), counts.sum(1)
    rows = [(classes[true], classes[named], f"{n:,}", percent(n / support[true])) for true, named, n in pairs]
    columns = ("true class", "predicted class", f"{noun}s", "share of class")
    table = Table("Confusions by pair of classes", columns, rows, text=2, headed=False) if pairs else None
    wrong, shown = int(counts.sum() - np.trace(counts)), sum(count for *_, count in pairs)
    words = plural(wrong, f"misclassified {noun}")
    words = f"Most frequent confusions, {shown:,} of {words}:" if shown < wrong else f"{words}:"
    if not pairs:
        words = f"No {noun} was misclassified."
    return {"chart": chart, "about": about, "words": words, "table": table}


def confused_pairs(counts: np.ndarray, most: int = 12) -> list[tuple[int, int, int]]:
    """Returns the most frequent confusions as (true, predicted, count), in descending order."""
    wrong = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")[:most]
    return [(int(row), int(column), int(wrong[row, column])) for row, column in zip(rows[order], columns[order])]


def list_corruptions(figures: Mapping[str, float]) -> Table | None:
    """Returns the table of the main metric under each corruption, or None if none was measured."""
    measured = {name: value for name, value in figures.items() if name.startswith(CORRUPTED)}
    if not measured:
        return None
    metric = metric_of(next(iter(figures)))
    *kinds, (_, mean) = ((name.removeprefix(CORRUPTED).replace("_", " "), value) for name, value in measured.items())
    rows = [("no corruption", figures[next(iter(figures))]), *kinds, ("mean of all corruptions", mean)]
    return Table("Corruptions", ("corruption", metric.label), [(name, metric.format(value)) for name, value in rows])
