"""Writes the report and the model card of an evaluated run, by the metric that it was evaluated with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.reports import cards, classification, detection, panoptic, regression, segmentation
from vitrail.reports.facts import EvaluatedRun, RunFacts
from vitrail.reports.supervised import draw_metrics, list_class_metrics, summarise, write_supervised
from vitrail.tasks.classification.metric import ClassMetric, LabelMetric
from vitrail.tasks.detection.metric import BoxMetric
from vitrail.tasks.panoptic.metric import PanopticMetric
from vitrail.tasks.regression.metric import NumberMetric
from vitrail.tasks.segmentation.metric import MapMetric


def write_report(folder: Path, evaluated: EvaluatedRun) -> Path:
    """Writes ``report.html`` and its charts into ``folder`` and returns the path of the report.

    Raises `DiskError` if the folder cannot be written.
    """
    facts, result, model = RunFacts(**evaluated.facts), evaluated.result, evaluated.model
    values: dict[str, Any]
    match result.metric:
        case ClassMetric() | LabelMetric() as metric:
            mistakes = classification.find_mistakes(model, evaluated.source, metric)
            values = classification.describe(evaluated, metric, facts.records, mistakes)
            return write_supervised(folder, facts, result.figures, **values)
        case BoxMetric() as metric:
            values = detection.describe(evaluated, metric)
        case MapMetric() as metric:
            values = segmentation.describe(evaluated, metric)
        case PanopticMetric() as metric:
            values = panoptic.describe(evaluated, metric)
        case NumberMetric() as metric:
            values = regression.describe(evaluated, metric)
        case _:
            values = {"template": "supervised.html", "task": {"Task": model.name}}
    return write_supervised(
        folder,
        facts,
        result.figures,
        plots=draw_metrics(facts),
        figure=summarise(result),
        classes=list_class_metrics(result),
        **values,
    )


def write_documents(folder: Path, evaluated: EvaluatedRun) -> Path:
    """Writes ``card.md`` as well; see `write_report`."""
    if isinstance(evaluated.result.metric, ClassMetric | LabelMetric):
        cards.write_card(folder, cards.classification_card(evaluated))
    else:
        cards.write_card(folder, cards.default_card(evaluated))
    return write_report(folder, evaluated)
