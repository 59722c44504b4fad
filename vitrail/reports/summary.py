"""The default report and model card, for tasks without their own: metrics, training curves and run details."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from vitrail.markup import Markup, join, tag
from vitrail.reports import card, curves
from vitrail.reports.charts import interval_strip
from vitrail.reports.components import (
    charts,
    header,
    lead,
    list_figures,
    make_scrollable,
    notes,
    run,
    show_figure,
)
from vitrail.reports.corruptions import CORRUPTED, list_corruptions
from vitrail.reports.facts import SPLITS, JudgedRun, RunFacts
from vitrail.reports.metric_names import metric_of
from vitrail.reports.page import frame, write_page
from vitrail.text import percent, plural

UNDEFINED = "–"  # a cell of a metric's table without a value


def write_card(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path."""
    return card.write(folder, card_of(judged, RunFacts(**judged.facts)))


def write_report(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``report.html`` into ``folder`` and returns its path."""
    facts = RunFacts(**judged.facts)
    plots = drawings(facts)
    parts = {
        "Classes": list_classes(judged),
        "Corruptions": list_corruptions(judged.judgement.figures),
        "Curves": charts(curves.troubles(facts.records), list(plots.values())),
        "Run details": run(facts, {"Task": judged.model.name}),
    }
    opening = join(headline(judged), notes(facts.notes))
    return write_page(folder, frame("vitrail report", facts.title, facts.date, opening, parts), plots)


def list_classes(judged: JudgedRun) -> Markup | None:
    """Returns the table of the metric, a row for each class; None where it has none."""
    columns, rows = judged.judgement.per_class()
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: float(row[1]) if row[1] != UNDEFINED else math.inf)
    body = (tag("tr", tag("th", name, scope="row", data_value=name), *map(show_cell, cells)) for name, *cells in rows)
    table = tag("table", header(columns, sorted_by=columns[1]), tag("tbody", *body))
    words = lead("Sorted from worst to best; click a heading to sort. A dash is an undefined value.")
    return join(tag("h2", "Per-class metrics"), words, make_scrollable(table, "Per-class metrics"))


def show_cell(number: str) -> Markup:
    """Returns a cell of a table that can be sorted."""
    return tag("td", number, data_value="" if number == UNDEFINED else number)


def drawings(facts: RunFacts) -> dict[str, Markup]:
    """Returns the charts against the training step: loss, validation metrics, learning rate and speed."""
    columns = dict.fromkeys(name for record in facts.records for name in record if name.startswith("val_"))
    plotted: dict[str, curves.Curve] = {"loss": curves.loss(facts.records)}
    for column in columns:
        metric = metric_of(column)
        name = column.removeprefix("val_")
        lines = curves.evaluated(facts.records, name, "validation")
        plotted[name.replace("_", "-")] = metric.heading, lines, {"words": metric.format}
    return curves.draw_curves(
        {**plotted, "learning-rate": curves.learning_rate(facts.records), "speed": curves.speed(facts.records)}
    )


def headline(judged: JudgedRun) -> Markup:
    """Returns the main metric with its confidence interval, followed by the other metrics."""
    figures, where = judged.judgement.figures, SPLITS.get(judged.judgement.split, judged.judgement.split)
    first = next(iter(figures))
    metric = metric_of(first)
    words = [lead(f"Measured on {plural(len(judged.judgement.keys), f'{where} image')}.")]
    if f"{first}_low" in figures:
        ends = " to ".join(metric.format(figures[f"{first}_{end}"]) for end in ("low", "high"))
        words.append(lead(f"95 % confidence interval for images of the same distribution: {ends}."))
        if metric.format is percent:
            low, high = (figures[f"{first}_{end}"] for end in ("low", "high"))
            words.append(tag("div", interval_strip(figures[first], low, high, None), class_="strip"))
    hidden = {first, "images", *(f"{name}_{end}" for name in figures for end in ("low", "high"))}
    shown = {name: value for name, value in figures.items() if not name.startswith(CORRUPTED)}
    others = [(metric_of(name), value) for name, value in shown.items() if name not in hidden]
    rows = [(other.heading, other.format(value), other.gloss) for other, value in others]
    return join(show_figure(metric.format(figures[first]), metric.label, *words), list_figures(rows))


def card_of(judged: JudgedRun, facts: RunFacts) -> str:
    figures: Mapping[str, float] = judged.judgement.figures
    measured = (f"{metric_of(name).heading}: {metric_of(name).format(value)}" for name, value in figures.items())
    parts = {
        "Evaluation": card.bullets(*measured),
        "Data": card.data(facts),
        "Preprocessing": card.settings(facts.preprocessing),
        "Training": card.training(facts),
        "Provenance": card.settings(facts.provenance),
        "Licence": card.licence(facts),
    }
    name = judged.model.name
    opening = (
        f"A vision model for the task {card.escape(name)}{card.describe_size(facts)}. {card.describe_start(facts.base)}"
    )
    return card.compose_card(card.front_matter(facts.license, name, name), facts.title, opening, parts)
