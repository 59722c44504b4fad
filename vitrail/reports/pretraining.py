"""The report of a self-supervised run, a self-contained page. Sections without data are omitted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.render import to_thumbnail
from vitrail.evaluation.feature_health import FeatureHealth
from vitrail.markup import Markup, tag
from vitrail.reports import training_curves as curves
from vitrail.reports.charts import Series, strip
from vitrail.reports.data_uris import SHORT_SIDE_OF_A_DRAWING, photograph
from vitrail.reports.facts import RunFacts
from vitrail.reports.metric_names import DECIBELS, METRICS, Metric, metric_of, short_percent
from vitrail.reports.page import Cell, Table, render, write_page
from vitrail.text import decimal, percent, sentence

# common columns of the records; all others are measurements of the objective
OWN_COLUMNS = {"step", "epoch", "images", "loss", "lr", "seconds", "images_per_second", "data_wait"}
OWN_COLUMNS |= {"knn", "teacher_knn", "chance", "effective_rank", "spread"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Inputs or outputs of an objective: a name, a caption, and images (n, C, h, w), uint8 or float in [0, 1]."""

    name: str
    caption: str
    pictures: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PretrainingFacts(RunFacts):
    """The data about a self-supervised encoder or a tokenizer; only ``title`` and ``objective`` are required.

    Evaluation records have ``effective_rank`` and ``spread``, and with labels ``knn``, ``chance`` and of a distillation
    ``teacher_knn`` as fractions; the record of step 0 is of the weights before training. Any other numeric column is a
    measurement of the objective. ``panels`` show the same images in the same order, the original first. ``before`` and ``after``
    are the feature health before and after training, and ``diagnosis`` describes a collapse.
    """

    objective: str
    about_objective: str = ""  # one sentence
    panels: Sequence[Panel] = ()
    before: FeatureHealth | None = None
    after: FeatureHealth | None = None
    diagnosis: str | None = None

    @property
    def tokenizes(self) -> bool:
        """Whether the run trained a tokenizer, which has codes instead of features."""
        return self.objective == "tokenizer"

    @property
    def measurements(self) -> list[str]:
        """The numeric columns that are measurements of the objective, in the order of their first record."""
        columns = {
            name: None
            for record in self.records
            for name, value in record.items()
            if name not in OWN_COLUMNS and isinstance(value, int | float)
        }
        return list(columns)

    def last(self, column: str) -> float | None:
        """Returns the last recorded value of a column."""
        return next((record[column] for record in reversed(self.records) if record.get(column) is not None), None)

    def untrained(self, column: str) -> float | None:
        """Returns the value of a column before training."""
        values = (record.get(column) for record in self.records if record.get("step") == 0)
        return next((value for value in values if value is not None), None)


def write_pretrain_report(folder: Path, facts: PretrainingFacts) -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    plots = draw_records(facts)
    about = [*curves.best(facts.records, "knn", METRICS["knn"].label), *curves.troubles(facts.records)]
    collapse, _, figures = (facts.diagnosis or "").partition(": ")
    page = render(
        "pretraining.html",
        "vitrail pretrain",
        facts.title,
        facts.date,
        facts=facts,
        collapse=collapse,
        collapse_figures=figures,
        rank_recorded=bool(curves.finite(facts.records, "effective_rank")),
        figure=choose_figure(facts),
        tiles_rows=list_other_figures(facts),
        curves=list(plots.values()),
        about_curves=about,
        images=list_pictures(facts),
        small=bool(facts.panels) and max(facts.panels[0].pictures.shape[2:]) <= SHORT_SIDE_OF_A_DRAWING,
        health=compare_health(facts) if facts.after else None,
        run=facts.details({"Objective": facts.objective}),
        next_steps=list_next_steps(facts),
    )
    return write_page(folder, page, plots)


def draw_records(facts: PretrainingFacts) -> dict[str, Markup]:
    """Returns the charts of the recorded columns against the training step, in reading order."""

    def marked(column: str, label: str, colour: str = "amber") -> list[Series]:
        return curves.series(facts.records, column, label, colour, marked=True)

    def most(column: str) -> float:  # a fixed upper end keeps the axis linear, which shows a collapse
        return max((value for value, _ in curves.finite(facts.records, column)), default=1.0)

    answers = marked("knn", "nearest neighbours")
    share = {"words": short_percent, "most": max(most("knn"), facts.last("teacher_knn") or 0.0)}
    teacher = curves.series(facts.records, "teacher_knn", "teacher", "violet", dashed=True)
    chance = curves.series(facts.records, "chance", "chance", "muted", dashed=True) if answers else []
    rank = marked("effective_rank", "rank", "emerald")
    measured: dict[str, curves.Curve] = {
        "knn": (METRICS["knn"].label, [*answers, *teacher, *chance], share),
        "effective-rank": ("Effective rank of the features", rank, {"most": most("effective_rank")}),
        "spread": ("Spread of the features", marked("spread", "spread", "emerald"), {"most": 1.0}),
    }
    for column in facts.measurements:
        metric = metric_of(column)
        lines = curves.series(facts.records, column, metric.heading, "violet", smooth=True)
        words = short_percent if metric.format is percent else metric.format  # 25 % on the axis, not 25.0 %
        measured["measured-" + re.sub(r"[\W_]+", "-", column)] = metric.heading, lines, {"words": words}
    return curves.draw_curves(facts.records, measured)


def choose_figure(facts: PretrainingFacts) -> dict[str, Any]:
    """Returns the headline: the reconstruction of a tokenizer, the kNN accuracy if there are labels, or the loss."""
    accuracy, loss, nearness = facts.last("knn"), facts.last("loss"), facts.last("psnr_held_out")
    if facts.tokenizes and nearness is not None:
        plain = facts.last("psnr_mean_colour")
        better = plain is not None and nearness > plain
        own = {"kind": "tokenizer", "value": DECIBELS(nearness), "name": METRICS["psnr_held_out"].heading}
        return {**own, "plain": None if plain is None else DECIBELS(plain), "better": better}
    if accuracy is not None:
        before, ends, says = facts.untrained("knn"), (accuracy, accuracy), ""
        if before is not None:
            ends, says = (min(before, accuracy), max(before, accuracy)), f", {percent(before)} before training"
        drawn = strip(accuracy, ends, says, facts.last("chance"), "chance")
        change = None if before is None else (accuracy - before) * 100
        own = {"kind": "knn", "value": percent(accuracy), "name": METRICS["knn"].label}
        return {**own, "before": before, "change": change, "strip": drawn}
    if loss is not None:
        return {"kind": "loss", "value": decimal(loss, 4), "name": "loss"}
    return {"kind": None}


def list_other_figures(facts: PretrainingFacts) -> list[tuple[str, str, str]]:
    """Returns loss, feature health and measurements of the objective as (name, value, description)."""
    rows = []
    losses = [value for value, _ in curves.finite(facts.records, "loss")]
    if losses and (facts.tokenizes or facts.last("knn") is not None):
        rows.append(("Loss", decimal(losses[-1]), f"initially {decimal(losses[0])}"))
    if (taught := facts.last("teacher_knn")) is not None:
        metric = METRICS["teacher_knn"]
        rows.append((metric.heading, metric.format(taught), metric.gloss))
    if (now := facts.after) is not None:
        before = facts.before
        for name, shown in (("effective_rank", f"{{}} of {now.width:,}"), ("spread", "{}")):
            metric, field = METRICS[name], "rank" if name == "effective_rank" else "spread"
            old = "" if before is None else f"; {metric.format(getattr(before, field))} before training"
            rows.append((metric.heading, shown.format(metric.format(getattr(now, field))), metric.gloss + old))
    for column in facts.measurements:
        if facts.tokenizes and column == "psnr_held_out":  # shown in the headline
            continue
        metric, value = metric_of(column), facts.last(column)
        if value is not None:
            rows.append((metric.heading, metric.format(value), metric.gloss))
    return rows


def list_pictures(facts: PretrainingFacts) -> list[list[Any]]:
    """Returns a row of (panel, picture) for each image."""
    count = len(facts.panels[0].pictures) if facts.panels else 0
    assert all(len(panel.pictures) == count for panel in facts.panels), "panels of different images"
    return [
        [(panel, photograph(to_thumbnail(panel.pictures[image]))) for panel in facts.panels] for image in range(count)
    ]


def list_health(facts: PretrainingFacts) -> list[tuple[Metric, str, float | None, float]]:
    """Returns the figures of the features with what they say, their values before training, if known, and after it."""
    figures: list[tuple[Metric, str, float | None, float]] = []
    if (now := facts.after) is not None:
        rank, spread = METRICS["effective_rank"], METRICS["spread"]
        old_rank, old_spread = (None, None) if facts.before is None else (facts.before.rank, facts.before.spread)
        about = f"{rank.gloss}, at most {now.width:,}; a low value indicates a dimensional collapse"
        figures.append((rank, about, old_rank, now.rank))
        figures.append((spread, f"{spread.gloss} (complete collapse)", old_spread, now.spread))
    if (accuracy := facts.last("knn")) is not None:
        figures.append((METRICS["knn"], METRICS["knn"].gloss, facts.untrained("knn"), accuracy))
    return figures


def compare_health(facts: PretrainingFacts) -> Table:
    """Returns the table of feature health before and after training."""
    rows = [
        (Cell(metric.heading, gloss=sentence(gloss)), format_known(old, metric), tag("strong", metric.format(new)))
        for metric, gloss, old, new in list_health(facts)
    ]
    return Table("Feature health", ("metric", "before training", "after training"), rows)


def format_known(value: float | None, metric: Metric) -> str:
    return "–" if value is None else metric.format(value)


def list_next_steps(facts: PretrainingFacts) -> Mapping[str, str]:
    """Returns commands that use the encoder or the tokenizer, by what they do."""
    # the images may have no labels unless the run evaluated with them
    data = facts.data if facts.data and (facts.tokenizes or facts.last("knn") is not None) else "LABELLED-IMAGES"
    run, data = shlex.quote(facts.location), shlex.quote(data)
    if facts.tokenizes:
        command = f"vitrail pretrain {data} --objective beit --tokenizer {run}"
        return {"Pretrain an encoder that predicts the codes:": command}
    return {
        "Train a classifier from these weights:": f"vitrail train {data} --init {run}",
        "Evaluate the frozen features:": f"vitrail probe {run} {data} --protocol knn",
    }
