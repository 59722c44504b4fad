"""The report of a run: one page that needs no network. A part whose facts are missing leaves its section out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.engine.reporting import figures as draw
from vitrail.engine.reporting import sections
from vitrail.engine.reporting.facts import Mistake as Mistake
from vitrail.engine.reporting.facts import ReportFacts as ReportFacts
from vitrail.engine.reporting.frame import frame
from vitrail.engine.reporting.markup import Markup, join
from vitrail.engine.reporting.tally import worst_mistakes as worst_mistakes
from vitrail.engine.reporting.wording import large, scientific
from vitrail.files import disk_errors, replace_file

MATRIX_MOST = 32  # classes; beyond, the pairs say more than a matrix whose panes are pixels
LOSS = ("loss", "training", "cobalt")
SPEED = ("images_per_second", "images/s", "emerald")


def write_report(folder: Path, facts: ReportFacts) -> Path:
    """Writes ``report.html`` and its drawings as ``plots/*.svg`` into ``folder``; returns the page's path.

    Raises `DiskError` where the folder cannot be written.
    """
    plots = drawings(facts)
    with disk_errors(folder):
        (folder / "plots").mkdir(parents=True, exist_ok=True)
    for name, drawing in plots.items():
        replace_file(folder / "plots" / f"{name}.svg", draw.standalone(drawing))
    replace_file(folder / "report.html", page(facts, plots))
    return folder / "report.html"


def drawings(facts: ReportFacts) -> dict[str, Markup]:
    """Every drawing that the facts allow, by the name of its file."""
    plots = curves(facts.records)
    if facts.judged:
        plots["reliability"] = draw.reliability_chart(facts.calibration)
        if not facts.multi_label and 2 <= len(facts.classes) <= MATRIX_MOST:
            plots["confusion"] = draw.confusion_chart(facts.confusion, facts.classes)
    return plots


def curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """The charts over the training step, each from whichever of its columns were recorded."""

    def series(column: str, label: str, colour: str, **how: Any) -> list[draw.Series]:
        pairs = [(each["step"], each[column]) for each in records if each.get(column) is not None and "step" in each]
        x, y = np.array(pairs, np.float64).reshape(-1, 2).T
        return [draw.Series(label, x, y, colour, **how)] if pairs else []

    def marked(column: str, label: str) -> list[draw.Series]:
        return series(column, label, "amber", marked=True)

    share: dict[str, Any] = {"words": short_percent, "least": None, "most": 1.0}
    validation = marked("val_loss", "validation") or marked("val_nll", "validation")
    training, speed = (series(*each, smooth=True) for each in (LOSS, SPEED))
    wanted: dict[str, tuple[str, list[draw.Series], dict[str, Any]]] = {
        "loss": ("Loss", training + validation, {}),
        "accuracy": ("Validation accuracy", marked("val_top1", "top-1"), share),
        "average-precision": ("Validation mean average precision", marked("val_map", "mAP"), share),
        "learning-rate": ("Learning rate", series("lr", "learning rate", "violet"), {"words": scientific}),
        "speed": ("Images per second", speed, {"words": large}),
    }
    return {name: draw.line_chart(title, lines, **how) for name, (title, lines, how) in wanted.items() if lines}


def short_percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def page(facts: ReportFacts, plots: Mapping[str, Markup]) -> str:
    """The whole document."""
    parts = {
        "Curves": sections.curves(facts, plots),
        "Confusion": sections.confusion(facts, plots),
        "Classes": sections.classes(facts),
        "Mistakes": sections.mistakes(facts),
        "Calibration": sections.calibration(facts, plots),
        "What was run": sections.run(facts),
    }
    opening = join(sections.headline(facts), sections.notes(facts.notes))
    return frame("vitrail report", facts.title, facts.date, opening, parts)
