"""The sections of a report that only segmenters have."""

from __future__ import annotations

from collections.abc import Mapping

from vitrail.markup import Markup
from vitrail.reports.charts import confusion_chart
from vitrail.reports.confusion import MATRIX_MOST, confusion
from vitrail.tasks.segmentation.metric import MapMetric

WORST = (
    "The pictures with the lowest IoU, weighted by the pixels of the true classes. Some of them may be annotated incorrectly. "
    "Pixels without a class are never wrong."
)


def drawings(metric: MapMetric) -> dict[str, Markup]:
    """Returns the confusion matrix while it can be read, by file name."""
    if len(metric.classes) > MATRIX_MOST:
        return {}
    return {"confusion": confusion_chart(metric.confusion, metric.classes, noun="pixel", in_percent=True)}


def sections(metric: MapMetric, plots: Mapping[str, Markup]) -> dict[str, Markup | None]:
    """Returns all of them by title: the confusion of the classes of pixels."""
    about = "Each row shows the pixels of a class in percent, by the class that was predicted."
    drawn = plots.get("confusion")
    return {"Confusion": confusion(metric.confusion, metric.classes, drawn, noun="pixel", about=about)}
