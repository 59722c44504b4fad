"""The report of a panoptic segmenter: the confusion of the classes of segments, and pictures with their segments."""

from __future__ import annotations

from typing import Any

from vitrail.reports.facts import EvaluatedRun, list_classes
from vitrail.reports.samples import draw_chosen
from vitrail.reports.supervised import describe_confusion, warn_of_few
from vitrail.tasks.panoptic.metric import PanopticMetric

NOTHING = "no segment"  # the name of what matches none, in the confusion matrix


def describe(evaluated: EvaluatedRun, metric: PanopticMetric) -> dict[str, Any]:
    """Returns the values of the sections that only panoptic segmenters have."""
    about = (
        f"Segments at an IoU above 0.5. The row “{NOTHING}” has the answers that match no segment, the column “{NOTHING}” the "
        "segments that no answer matches."
    )
    return {
        "template": "panoptic.html",
        "task": {"Task": evaluated.model.name, "Classes": list_classes(evaluated.result.classes)},
        "warnings": warn_of_few(len(metric.keys)),
        "confusion": describe_confusion(metric.confusion, (*metric.classes, NOTHING), noun="segment", about=about),
        **draw_chosen(evaluated, metric),
    }
