"""The report of a segmenter: the confusion of the classes of pixels, and pictures with their maps."""

from __future__ import annotations

from typing import Any

from vitrail.reports.facts import EvaluatedRun, list_classes
from vitrail.reports.samples import draw_chosen
from vitrail.reports.supervised import describe_confusion, warn_of_few
from vitrail.tasks.segmentation.metric import MapMetric


def describe(evaluated: EvaluatedRun, metric: MapMetric) -> dict[str, Any]:
    """Returns the values of the sections that only segmenters have."""
    about = "Each row shows the pixels of a class in percent, by the class that was predicted."
    return {
        "template": "segmentation.html",
        "task": {"Task": evaluated.model.name, "Classes": list_classes(evaluated.result.classes)},
        "warnings": warn_of_few(len(metric.keys)),
        "confusion": describe_confusion(metric.confusion, metric.classes, noun="pixel", about=about, in_percent=True),
        **draw_chosen(evaluated, metric),
    }
