"""Selects the report and the model card of a judged model by the metric that it was judged with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from vitrail.reports import summary
from vitrail.reports.classification import documents as classification
from vitrail.reports.dense import documents as dense
from vitrail.reports.facts import JudgedRun
from vitrail.tasks.classification.metric import ClassMetric, LabelMetric
from vitrail.tasks.detection.metric import BoxMetric
from vitrail.tasks.metric import Metric
from vitrail.tasks.segmentation.metric import MapMetric

DOCUMENTS: Mapping[type[Metric], ModuleType] = {
    ClassMetric: classification,
    LabelMetric: classification,
    BoxMetric: dense,
    MapMetric: dense,
}


def write_report(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``report.html`` and its charts into ``folder`` and returns the path of the report.

    Raises `DiskError` if the folder cannot be written.
    """
    return DOCUMENTS.get(type(judged.judgement.metric), summary).write_report(folder, judged)


def write_documents(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``card.md`` as well; see `write_report`."""
    DOCUMENTS.get(type(judged.judgement.metric), summary).write_card(folder, judged)
    return write_report(folder, judged)
