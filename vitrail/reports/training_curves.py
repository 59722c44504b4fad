"""Charts of recorded values against the training step, and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.markup import Markup
from vitrail.reports.charts import Series, line_chart
from vitrail.text import large, percent, plural, scientific

Records = Sequence[Mapping[str, Any]]  # the lines of ``metrics.jsonl``
Curve = tuple[str, list[Series], dict[str, Any]]  # title, lines, options of `line_chart`


def series(records: Records, column: str, label: str, colour: str, **options: Any) -> list[Series]:
    """Returns the line of a column, or an empty list if the column was not recorded."""
    pairs = [
        (record["step"], record[column]) for record in records if record.get(column) is not None and "step" in record
    ]
    x, y = np.array(pairs, np.float64).reshape(-1, 2).T
    return [Series(label, x, y, colour, **options)] if pairs else []


def evaluated(records: Records, metric: str, label: str) -> list[Series]:
    """Returns the lines of a metric on validation images and, where these were evaluated too, on training images."""
    validation = series(records, f"val_{metric}", label, "amber", marked=True)
    return [*validation, *series(records, f"train_{metric}", "on training images", "emerald", marked=True)]


def draw_curves(
    records: Records, measured: Mapping[str, Curve], beside_loss: Sequence[Series] = ()
) -> dict[str, Markup]:
    """Draws the loss, what was ``measured``, the learning rate and the speed; those without a line are left out.

    Args:
        measured: the curves by file name.
        beside_loss: lines in the chart of the loss.
    """
    speed = series(records, "images_per_second", "images/s", "emerald", smooth=True)
    curves: dict[str, Curve] = {
        "loss": ("Loss", [*series(records, "loss", "training", "cobalt", smooth=True), *beside_loss], {}),
        **measured,
        "learning-rate": ("Learning rate", series(records, "lr", "learning rate", "violet"), {"words": scientific}),
        "speed": ("Images per second", speed, {"words": large}),
    }
    return {name: line_chart(title, lines, **options) for name, (title, lines, options) in curves.items() if lines}


def finite(records: Records, column: str) -> list[tuple[float, int]]:
    """Returns the finite values of a column, each with its step."""
    values = [(record[column], record["step"]) for record in records if record.get(column) is not None]
    return [(value, step) for value, step in values if math.isfinite(value)]


def best(records: Records, column: str, name: str) -> list[str]:
    """Returns a sentence about the best evaluation and its step, or an empty list without evaluations."""
    if not (points := finite(records, column)):
        return []
    value, step = max(points, key=lambda point: point[0])
    last = max(record["step"] for record in records)
    return [f"Best {name}: {percent(value)} at step {step:,} of {last:,}. "]


def troubles(records: Records) -> list[str]:
    """Returns sentences about time spent waiting for data and about loss values that are not finite."""
    words = []
    if waits := finite(records, "data_wait"):
        share = percent(float(np.mean([share for share, _ in waits])), 0)
        words.append(f"Training waited for data {share} of the time. ")
    if bad := sum("loss" in record for record in records) - len(finite(records, "loss")):
        words.append(f"The loss was not finite in {plural(bad, 'record')}; the curve has gaps there.")
    return words
