"""Writes the report and the model card of a judged run, by the metric that it was judged with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.reports import cards, classification, detection, segmentation
from vitrail.reports.facts import JudgedRun, RunFacts
from vitrail.reports.supervised import draw_metrics, list_class_metrics, summarise, write_supervised
from vitrail.tasks.classification.metric import ClassMetric, LabelMetric
from vitrail.tasks.detection.metric import BoxMetric
from vitrail.tasks.segmentation.metric import MapMetric


def write_report(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``report.html`` and its charts into ``folder`` and returns the path of the report.

    Raises `DiskError` if the folder cannot be written.
    """
    facts, judgement, model = RunFacts(**judged.facts), judged.judgement, judged.model
    values: dict[str, Any]
    match judgement.metric:
        case ClassMetric() | LabelMetric():
            mistakes = classification.find_mistakes(model, judged.source, judgement)
            return classification.write_report(folder, replace(classification.describe(judged), mistakes=mistakes))
        case BoxMetric() as metric:
            values = detection.describe(judged, metric)
        case MapMetric() as metric:
            values = segmentation.describe(judged, metric)
        case _:
            values = {"template": "supervised.html", "task": {"Task": model.name}}
    return write_supervised(
        folder,
        facts,
        judgement.figures,
        plots=draw_metrics(facts),
        figure=summarise(judgement),
        classes=list_class_metrics(judgement),
        **values,
    )


def write_documents(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``card.md`` as well; see `write_report`."""
    if isinstance(judged.judgement.metric, ClassMetric | LabelMetric):
        cards.write_card(folder, cards.classification_card(classification.describe(judged)))
    else:
        cards.write_card(folder, cards.default_card(judged))
    return write_report(folder, judged)
