"""The sections of a report that only detectors have: precision and recall, kinds of errors, sizes of objects."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from vitrail.markup import Markup, join, tag
from vitrail.reports.charts import (
    BOTTOM,
    DASHES,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Series,
    chart,
    confusion_chart,
    dot,
    line,
)
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.reports.confusion import MATRIX_MOST, confusion
from vitrail.reports.metric_names import SIZES
from vitrail.tasks.detection.average_precision import Curve
from vitrail.tasks.detection.matching import AREAS
from vitrail.tasks.detection.metric import BoxMetric
from vitrail.text import decimal, percent, shorten

CURVES_MOST = 5  # classes with a curve of their own, those with the most objects
NOTHING = "background"  # the name of what is no object, in the confusion matrix
ERRORS = {
    "class": "well placed on an object of another class",
    "location": "badly placed on an object of its class, at an IoU of 0.1 to 0.5",
    "both": "badly placed on an object of another class",
    "duplicate": "a further box on an object that was found",
    "background": "on nothing, at an IoU below 0.1",
    "missed": "objects that no box found, took for another class or was badly placed on",
}


def drawings(metric: BoxMetric) -> dict[str, Markup]:
    """Returns the charts of precision and recall, and the confusion matrix while it can be read, by file name."""
    curve = metric.curve()
    if curve.best is None:
        return {}
    plots = {"precision-recall": draw_precision("All classes", curve), "threshold": draw_thresholds(curve)}
    objects = count_objects(metric)[:, 0]
    # a single class has the curve of all
    for place, label in enumerate(np.argsort(-objects, kind="stable")[:CURVES_MOST] if len(objects) > 1 else ()):
        of_class = metric.curve(int(label))
        if of_class.best is not None:
            plots[f"precision-recall-{place}"] = draw_precision(shorten(metric.classes[label], 40), of_class)
    if len(metric.classes) < MATRIX_MOST:
        plots["confusion"] = confusion_chart(metric.confusion, (*metric.classes, NOTHING), noun="object")
    return plots


def count_objects(metric: BoxMetric) -> np.ndarray:
    """Returns the objects that count, by class and range of area: (K, A)."""
    matches = metric.matches
    counts = np.zeros((len(metric.classes), len(AREAS)), np.int64)
    np.add.at(counts, matches.object_labels, matches.counted)
    return counts


def draw_precision(title: str, curve: Curve) -> Markup:
    """Draws the precision against the recall at an IoU of 0.5, with a dot at the threshold with the largest F1."""
    assert curve.best is not None
    across, up = unit_axes()
    precision, recall, score = (float(each[curve.best]) for each in (curve.precision, curve.recall, curve.scores))
    says = f"largest F1 at a score of {score:.3f}: precision {percent(precision)}, recall {percent(recall)}"
    spot = dot(float(across.place(recall)), float(up.place(precision)), "cobalt", says, radius=4.5)
    series = [Series("precision", curve.recall, curve.precision, "cobalt")]
    return chart(title, series, across, up, "recall", f"Precision against recall, {title}: {says}", spot)


def draw_thresholds(curve: Curve) -> Markup:
    """Draws precision, recall and F1 against the least score of a box."""
    assert curve.best is not None
    across, up = unit_axes()
    values = {"precision": (curve.precision, "cobalt"), "recall": (curve.recall, "amber"), "F1": (curve.f1, "emerald")}
    series = [Series(name, curve.scores[::-1], each[::-1], colour) for name, (each, colour) in values.items()]
    score = float(curve.scores[curve.best])
    x = float(across.place(score))
    mark = line(x, up.start, x, up.stop, "muted", stroke_dasharray=DASHES)
    says = (
        f"Precision, recall and F1 by threshold: F1 is largest at {score:.3f}, {percent(float(curve.f1[curve.best]))}"
    )
    return chart("By threshold", series, across, up, "threshold of the score", says, mark)


def unit_axes() -> tuple[Axis, Axis]:
    """Returns the axes of a chart whose both sides run from 0 to 1."""
    across = Axis(0, 1, LEFT, WIDTH - RIGHT, words=lambda value: f"{value:g}")
    return across, Axis(0, 1, HEIGHT - BOTTOM, TOP, words=lambda value: percent(value, 0))


def precision_and_recall(metric: BoxMetric, plots: Mapping[str, Markup], threshold: float) -> Markup | None:
    """Returns the charts of precision and recall; ``threshold`` is that of the model's answers."""
    drawn = [tag("figure", plot) for name, plot in plots.items() if name.startswith(("precision-recall", "threshold"))]
    if not drawn:
        return None
    best = metric.threshold
    words = lead(
        "A box is right if it has the class of an object and an IoU with it of at least 0.5. The dot and the dashed line mark "
        f"the threshold with the largest F1, {decimal(best)}. The model answers with boxes from a score of "
        f"{decimal(threshold)} on; ",
        tag("code", f"vitrail predict --threshold {best:.3f}"),
        " sets another threshold.",
    )
    return join(tag("h2", "Precision and recall"), words, tag("div", *drawn, class_="charts"))


def errors(metric: BoxMetric) -> Markup | None:
    """Returns the table of the kinds of errors at the best threshold."""
    if math.isnan(metric.threshold):
        return None
    counts = metric.errors
    total = max(sum(counts.values()), 1)
    rows = (
        tag(
            "tr",
            tag("th", kind, tag("span", ERRORS[kind], class_="gloss"), scope="row"),
            tag("td", f"{count:,}"),
            tag("td", percent(count / total), class_="bar", style=f"--share:{count / total:.3f}"),
        )
        for kind, count in sorted(counts.items(), key=lambda item: -item[1])
    )
    table = tag("table", header(("kind", "number", "share")), tag("tbody", *rows))
    words = lead(f"Of the boxes with a score of at least {decimal(metric.threshold)}, by what is wrong with them.")
    return join(tag("h2", "Errors"), words, make_scrollable(table, "Errors by kind"))


def sizes(metric: BoxMetric, figures: Mapping[str, float]) -> Markup | None:
    """Returns the table of AP and average recall by size of the objects."""
    counts = dict(zip(AREAS, count_objects(metric).sum(0).tolist()))
    if not counts["all"]:
        return None
    rows = []
    for name, extent in SIZES.items():
        shares = (figures.get(f"{key}_{name}", math.nan) for key in ("ap", "ar"))
        cells = [f"{counts[name]:,}", percent(counts[name] / counts["all"]), *map(percent, shares)]
        rows.append(
            tag("tr", tag("th", name, tag("span", extent, class_="gloss"), scope="row"), *(tag("td", c) for c in cells))
        )
    columns = ("objects", "number", "share", "AP", "average recall")
    table = tag("table", header(columns), tag("tbody", *rows))
    words = lead(
        "The ranges of COCO, by the area of the objects in pixels of their pictures. Where small objects are missed, a larger ",
        tag("code", "--size"),
        " or finer levels help: ",
        tag("code", "--set 'model.head={levels: [4, 8, 16, 32]}'"),
        ".",
    )
    return join(tag("h2", "Sizes of objects"), words, make_scrollable(table, "Metrics by size of the objects"))


def confusions(metric: BoxMetric, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the confusion of classes at the best threshold, with a row and a column for the background."""
    if math.isnan(metric.threshold):
        return None
    about = (
        f"Boxes with a score of at least {decimal(metric.threshold)}, at an IoU of 0.5. The row “{NOTHING}” has the boxes "
        f"that found no object, badly placed ones included; the column “{NOTHING}” has the objects that no box found."
    )
    return confusion(metric.confusion, (*metric.classes, NOTHING), plots.get("confusion"), noun="object", about=about)


def sections(
    metric: BoxMetric, figures: Mapping[str, float], plots: Mapping[str, Markup], threshold: float
) -> dict[str, Markup | None]:
    """Returns all of them by title; ``threshold`` is that of the model's answers."""
    return {
        "Precision and recall": precision_and_recall(metric, plots, threshold),
        "Errors": errors(metric),
        "Sizes": sizes(metric, figures),
        "Confusion": confusions(metric, plots),
    }


def describe_worst(threshold: float) -> str:
    return (
        f"The pictures with the most errors among boxes with a score of at least {decimal(threshold)}, missed objects "
        "included. Some of them may be annotated incorrectly. Where there are many boxes, their colours stand for the "
        "classes, and only what is wrong is written."
    )
