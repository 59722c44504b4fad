"""The report of a self-supervised run: one page that needs no network. What is not known leaves its section out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vitrail.reports import curves
from vitrail.reports.charts import Series
from vitrail.reports.components import notes
from vitrail.reports.curves import Curve
from vitrail.reports.facts import PretrainingFacts
from vitrail.reports.html import Markup, join
from vitrail.reports.metric_names import METRICS, metric_of, short_percent
from vitrail.reports.page import frame, write_page
from vitrail.reports.pretraining import sections


def write_pretrain_report(folder: Path, facts: PretrainingFacts) -> Path:
    """Writes ``report.html`` and its drawings as ``plots/*.svg`` into ``folder``; returns the page's path.

    Raises `DiskError` where the folder cannot be written.
    """
    plots = drawings(facts)
    return write_page(folder, page(facts, plots), plots)


def drawings(facts: PretrainingFacts) -> dict[str, Markup]:
    """The charts over the training step in reading order, each from whichever of its columns were recorded."""

    def marked(column: str, label: str, colour: str = "amber") -> list[Series]:
        return curves.series(facts.records, column, label, colour, marked=True)

    def most(column: str) -> float:  # a collapse is to be seen as one: on a linear scale
        return max((value for value, _ in curves.finite(facts.records, column)), default=1.0)

    chance = curves.series(facts.records, "chance", "chance", "muted", dashed=True)
    answers = marked("knn", "nearest neighbours")
    rank = marked("effective_rank", "rank", "emerald")
    plotted: dict[str, Curve] = {
        "loss": curves.loss(facts.records),
        "knn": (
            METRICS["knn"].label,
            [*answers, *chance] if answers else [],
            {"words": short_percent, "most": most("knn")},
        ),
        "effective-rank": ("Effective rank of the features", rank, {"most": most("effective_rank")}),
        "spread": ("Spread of the features", marked("spread", "spread", "emerald"), {"most": 1.0}),
        **{file_name(column): measurement(facts, column) for column in sections.measurements(facts)},
        "learning-rate": curves.learning_rate(facts.records),
        "speed": curves.speed(facts.records),
    }
    return curves.draw_curves(plotted)


def measurement(facts: PretrainingFacts, column: str) -> Curve:
    """What the objective measured on its way."""
    metric = metric_of(column)
    line = curves.series(facts.records, column, metric.heading, "violet", smooth=True)
    return metric.heading, line, {"words": metric.format}


def file_name(column: str) -> str:
    return "measured-" + re.sub(r"[\W_]+", "-", column)


def page(facts: PretrainingFacts, plots: Mapping[str, Markup]) -> str:
    """The whole document."""
    parts = {
        "Curves": sections.training_curves(facts, plots),
        "Pictures": sections.pictures(facts),
        "Health": sections.health(facts),
        "What was run": sections.run(facts),
        "What next": sections.following(facts),
    }
    opening = join(sections.alarm(facts), sections.headline(facts), notes(facts.notes))
    return frame("vitrail pretrain", facts.title, facts.date, opening, parts)
