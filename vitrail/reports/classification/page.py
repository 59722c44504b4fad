"""The report of a classification run, a self-contained page. Sections without data are omitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.markup import Markup, join
from vitrail.reports import charts as draw
from vitrail.reports import curves
from vitrail.reports.classification import sections
from vitrail.reports.components import notes
from vitrail.reports.confusion import MATRIX_MOST
from vitrail.reports.corruptions import list_corruptions
from vitrail.reports.facts import ClassificationFacts
from vitrail.reports.metric_names import METRICS, short_percent
from vitrail.reports.page import frame, write_page


def write_report(folder: Path, facts: ClassificationFacts) -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    plots = drawings(facts)
    return write_page(folder, page(facts, plots), plots)


def drawings(facts: ClassificationFacts) -> dict[str, Markup]:
    """Returns all charts that the data allow, by file name."""
    plots = plot_curves(facts.records)
    if facts.judged:
        plots["reliability"] = draw.reliability_chart(facts.metric.calibration)
        if not facts.multi_label and 2 <= len(facts.classes) <= MATRIX_MOST:
            plots["confusion"] = draw.confusion_chart(facts.metric.confusion, facts.classes)
    return plots


def plot_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """Returns the charts of the recorded columns against the training step."""

    share: dict[str, Any] = {"words": short_percent, "least": None, "most": 1.0}
    validation = curves.evaluated(records, "loss", "validation") or curves.evaluated(records, "nll", "validation")
    return curves.draw_curves(
        {
            "loss": curves.loss(records, validation),
            "accuracy": ("Validation accuracy", curves.evaluated(records, "top1", "top-1"), share),
            "average-precision": (f"Validation {METRICS['map'].label}", curves.evaluated(records, "map", "mAP"), share),
            "learning-rate": curves.learning_rate(records),
            "speed": curves.speed(records),
        }
    )


def page(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> str:
    """Returns the whole document."""
    parts = {
        "Curves": sections.training_curves(facts, plots),
        "Confusion": sections.confusion(facts, plots),
        "Classes": sections.classes(facts),
        "Mistakes": sections.mistakes(facts),
        "Calibration": sections.calibration(facts, plots),
        "Corruptions": list_corruptions(facts.figures),
        "Run details": sections.run(facts),
    }
    opening = join(sections.headline(facts), notes([*sections.warnings(facts), *facts.notes]))
    return frame("vitrail report", facts.title, facts.date, opening, parts)
