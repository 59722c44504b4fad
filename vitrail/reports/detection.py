"""The report of a detector: precision and recall, kinds of errors, sizes of objects, pictures with their boxes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail.markup import Markup
from vitrail.reports.charts import (
    BOTTOM,
    DASHES,
    HEIGHT,
    TOP,
    Axis,
    Series,
    chart,
    dot,
    horizontal_axis,
    line,
)
from vitrail.reports.facts import EvaluatedRun, list_classes
from vitrail.reports.metric_names import SIZES
from vitrail.reports.page import Cell, Table
from vitrail.reports.samples import draw_chosen
from vitrail.reports.supervised import describe_confusion, warn_of_few
from vitrail.tasks.detection.detector import ObjectTask
from vitrail.tasks.detection.matching import AREAS
from vitrail.tasks.detection.metric import BoxMetric, Curve
from vitrail.tasks.instances.metric import InstanceMetric
from vitrail.text import decimal, percent, shorten

CURVES_MOST = 5  # classes with a curve of their own, those with the most objects
NOTHING = "background"  # the name of what is no object, in the confusion matrix
ERRORS = {
    "class": "well placed on an object of another class",
    "location": "badly placed on an object of its class, at an IoU of 0.1 to 0.5",
    "both": "badly placed on an object of another class",
    "duplicate": "a further answer for an object that was found",
    "background": "on nothing, at an IoU below 0.1",
    "missed": "objects that no answer found, took for another class or was badly placed on",
}


def draw_detection_charts(metric: BoxMetric) -> dict[str, Markup]:
    """Returns the charts of precision and recall by file name: of all classes, by threshold, and of the largest classes."""
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
    across, up = share_axes()
    precision, recall, score = (float(each[curve.best]) for each in (curve.precision, curve.recall, curve.scores))
    says = f"largest F1 at a score of {score:.3f}: precision {percent(precision)}, recall {percent(recall)}"
    spot = dot(across.at(recall), up.at(precision), "cobalt", says, radius=4.5)
    series = [Series("precision", curve.recall, curve.precision, "cobalt")]
    return chart(title, series, across, up, "recall", f"Precision against recall, {title}: {says}", spot)


def draw_thresholds(curve: Curve) -> Markup:
    """Draws precision, recall and F1 against the least score of a box."""
    assert curve.best is not None
    across, up = share_axes()
    values = {"precision": (curve.precision, "cobalt"), "recall": (curve.recall, "amber"), "F1": (curve.f1, "emerald")}
    series = [Series(name, curve.scores[::-1], each[::-1], colour) for name, (each, colour) in values.items()]
    score = float(curve.scores[curve.best])
    x = across.at(score)
    mark = line(x, up.start, x, up.stop, "muted", stroke_dasharray=DASHES)
    says = (
        f"Precision, recall and F1 by threshold: F1 is largest at {score:.3f}, {percent(float(curve.f1[curve.best]))}"
    )
    return chart("By threshold", series, across, up, "threshold of the score", says, mark)


def share_axes() -> tuple[Axis, Axis]:
    """Returns the axes of a chart whose both sides run from 0 to 1."""
    return horizontal_axis(0, 1), Axis(0, 1, HEIGHT - BOTTOM, TOP, words=lambda value: percent(value, 0))


def describe(evaluated: EvaluatedRun, metric: BoxMetric) -> dict[str, Any]:
    """Returns the values of the sections that only detectors have."""
    assert isinstance(evaluated.model, ObjectTask), evaluated.model.name
    found = not math.isnan(metric.threshold)
    shape, shapes = ("mask", "masks") if isinstance(metric, InstanceMetric) else ("box", "boxes")
    curves, confusion = draw_detection_charts(metric), None
    if found:
        about = (
            f"{shapes.capitalize()} with a score of at least {decimal(metric.threshold)}, at an IoU of 0.5. The row "
            f"“{NOTHING}” has the {shapes} that found no object, badly placed ones included; the column “{NOTHING}” has the "
            f"objects that no {shape} found."
        )
        confusion = describe_confusion(metric.confusion, (*metric.classes, NOTHING), noun="object", about=about)
    shown = metric.threshold if found else evaluated.model.threshold  # the least score of a box that is shown
    return {
        "template": "detection.html",
        "shape": shape,
        "shapes": shapes,
        "task": {"Task": evaluated.model.name, "Classes": list_classes(evaluated.result.classes)},
        "warnings": warn_of_few(len(metric.keys)),
        "precision": list(curves.values()),
        "best_threshold": metric.threshold,
        "threshold": evaluated.model.threshold,
        "shown_threshold": shown,
        "errors": list_errors(metric) if found else None,
        "sizes": list_sizes(metric, evaluated.result.figures),
        "confusion": confusion,
        "drawn": curves,
        **draw_chosen(evaluated, metric, shown),
    }


def list_errors(metric: BoxMetric) -> Table:
    """Returns the table of the kinds of errors at the best threshold."""
    total = max(sum(metric.errors.values()), 1)
    rows = [
        (Cell(kind, gloss=ERRORS[kind]), f"{count:,}", Cell(percent(count / total), share=count / total))
        for kind, count in sorted(metric.errors.items(), key=lambda item: -item[1])
    ]
    return Table("Errors by kind", ("kind", "number", "share"), rows)


def list_sizes(metric: BoxMetric, figures: Mapping[str, float]) -> Table | None:
    """Returns the table of AP and average recall by size of the objects."""
    counts = dict(zip(AREAS, count_objects(metric).sum(0).tolist()))
    if not counts["all"]:
        return None
    rows = []
    for name, extent in SIZES.items():
        shares = (figures.get(f"{key}_{name}", math.nan) for key in ("ap", "ar"))
        cells = (f"{counts[name]:,}", percent(counts[name] / counts["all"]), *map(percent, shares))
        rows.append((Cell(name, gloss=extent), *cells))
    return Table("Metrics by size of the objects", ("objects", "number", "share", "AP", "average recall"), rows)
