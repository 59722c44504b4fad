"""The report of a regressor: answers against targets, a table of the numbers, and pictures with theirs."""

from __future__ import annotations

from typing import Any

from vitrail.reports.charts import scatter_chart
from vitrail.reports.facts import EvaluatedRun
from vitrail.reports.metric_names import OF_NUMBERS
from vitrail.reports.page import Table
from vitrail.reports.samples import draw_chosen
from vitrail.reports.supervised import warn_of_few
from vitrail.tasks.regression.metric import NumberMetric


def describe(evaluated: EvaluatedRun, metric: NumberMetric) -> dict[str, Any]:
    """Returns the values of the sections that only regressors have."""
    figures = evaluated.result.figures
    rows = []
    for name in metric.names:
        row = [name]
        for kind, about in OF_NUMBERS.items():
            key = kind if len(metric.names) == 1 else f"{name}_{kind}"
            value, low, high = (about.format(figures[key + end]) for end in ("", "_low", "_high"))
            row.append(f"{value} ({low} to {high})")
        rows.append(tuple(row))
    columns = ("number", *(about.heading for about in OF_NUMBERS.values()))
    pairs = enumerate(metric.names)
    charts = {name: scatter_chart(name, metric.targets[:, k], metric.predicted[:, k]) for k, name in pairs}
    failure = metric.explain_failure(figures)
    return {
        "template": "regression.html",
        "task": {"Task": evaluated.model.name, "Numbers": ", ".join(metric.names)},
        "warnings": [*([failure] if failure else []), *warn_of_few(len(metric.keys))],
        "scatter": list(charts.values()),
        "numbers": Table("Metrics of each number", columns, rows),
        "drawn": {f"predicted-{place}": chart for place, chart in enumerate(charts.values(), start=1)},
        **draw_chosen(evaluated, metric),
    }
