"""The report of a self-supervised run, a self-contained page. Sections without data are omitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vitrail.markup import Markup, join
from vitrail.reports import curves
from vitrail.reports.charts import Series
from vitrail.reports.components import notes
from vitrail.reports.curves import Curve
from vitrail.reports.facts import PretrainingFacts
from vitrail.reports.metric_names import METRICS, metric_of, short_percent
from vitrail.reports.page import frame, write_page
from vitrail.reports.pretraining import sections
from vitrail.text import percent


def write_pretrain_report(folder: Path, facts: PretrainingFacts) -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    plots = drawings(facts)
    return write_page(folder, page(facts, plots), plots)


def drawings(facts: PretrainingFacts) -> dict[str, Markup]:
    """Returns the charts of the recorded columns against the training step, in reading order."""

    def marked(column: str, label: str, colour: str = "amber") -> list[Series]:
        return curves.series(facts.records, column, label, colour, marked=True)

    def most(column: str) -> float:  # a fixed upper end keeps the axis linear, which shows a collapse
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
    """Returns the curve of a measurement of the objective."""
    metric = metric_of(column)
    line = curves.series(facts.records, column, metric.heading, "violet", smooth=True)
    words = short_percent if metric.format is percent else metric.format  # 25 % on the axis, not 25.0 %
    return metric.heading, line, {"words": words}


def file_name(column: str) -> str:
    return "measured-" + re.sub(r"[\W_]+", "-", column)


def page(facts: PretrainingFacts, plots: Mapping[str, Markup]) -> str:
    """Returns the whole document."""
    parts = {
        "Curves": sections.training_curves(facts, plots),
        "Pictures": sections.pictures(facts),
        "Health": sections.health(facts),
        "Run details": sections.run(facts),
        "Next steps": sections.following(facts),
    }
    opening = join(sections.alarm(facts), sections.headline(facts), notes(facts.notes))
    return frame("vitrail pretrain", facts.title, facts.date, opening, parts)
