"""The report of a run: one page that needs no network. A part whose facts are missing leaves its section out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.reports import charts as draw
from vitrail.reports import curves
from vitrail.reports.classification import sections
from vitrail.reports.components import notes
from vitrail.reports.facts import ClassificationFacts
from vitrail.reports.html import Markup, join
from vitrail.reports.metric_names import METRICS, short_percent
from vitrail.reports.page import frame, write_page

MATRIX_MOST = 32  # classes; beyond, the pairs say more than a matrix whose panes are pixels


def write_report(folder: Path, facts: ClassificationFacts) -> Path:
    """Writes ``report.html`` and its drawings as ``plots/*.svg`` into ``folder``; returns the page's path.

    Raises `DiskError` where the folder cannot be written.
    """
    plots = drawings(facts)
    return write_page(folder, page(facts, plots), plots)


def drawings(facts: ClassificationFacts) -> dict[str, Markup]:
    """Every drawing that the facts allow, by the name of its file."""
    plots = plot_curves(facts.records)
    if facts.judged:
        plots["reliability"] = draw.reliability_chart(facts.metric.calibration)
        if not facts.multi_label and 2 <= len(facts.classes) <= MATRIX_MOST:
            plots["confusion"] = draw.confusion_chart(facts.metric.confusion, facts.classes)
    return plots


def plot_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """The charts over the training step, each from whichever of its columns were recorded."""

    def marked(column: str, label: str) -> list[draw.Series]:
        return curves.series(records, column, label, "amber", marked=True)

    share: dict[str, Any] = {"words": short_percent, "least": None, "most": 1.0}
    validation = marked("val_loss", "validation") or marked("val_nll", "validation")
    return curves.draw_curves(
        {
            "loss": curves.loss(records, validation),
            "accuracy": ("Validation accuracy", marked("val_top1", "top-1"), share),
            "average-precision": (f"Validation {METRICS['map'].label}", marked("val_map", "mAP"), share),
            "learning-rate": curves.learning_rate(records),
            "speed": curves.speed(records),
        }
    )


def page(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> str:
    """The whole document."""
    parts = {
        "Curves": sections.training_curves(facts, plots),
        "Confusion": sections.confusion(facts, plots),
        "Classes": sections.classes(facts),
        "Mistakes": sections.mistakes(facts),
        "Calibration": sections.calibration(facts, plots),
        "What was run": sections.run(facts),
    }
    opening = join(sections.headline(facts), notes(facts.notes))
    return frame("vitrail report", facts.title, facts.date, opening, parts)
