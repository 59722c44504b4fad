"""The page of `vitrail study`: the values of templates/study.html, its charts, and how effects are spelt."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.markup import Markup
from vitrail.reports import charts as draw
from vitrail.reports.facts import as_yaml, list_versions
from vitrail.reports.inspection.charts import distance_chart
from vitrail.reports.page import render, write_page
from vitrail.runtime.progress import duration
from vitrail.studies.verdicts import show, write
from vitrail.text import THIN, number, percent, whole

Row = Mapping[str, Any]
# sign, class, colour and meaning; also the order of the tally
VERDICTS = {
    "held": ("✓", "holds", "emerald", "The interval supports the claim by the rule"),
    "did not hold": ("✗", "fails", "ruby", "The interval contradicts the claim by the rule"),
    "cannot tell": ("?", "unsure", "amber", "The interval is too wide, or a condition of the claim was not met"),
    "out of range": ("–", "open", "muted", "The study is too small to contradict the claim"),
}


def write_study_page(folder: Path, numbers: Row, costs: Row) -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page. Raises `DiskError`.

    Args:
        numbers: the content of ``numbers.json``. Accuracies are fractions.
        costs: the content of ``costs.json``.
    """
    document, plots = build_page(numbers, costs)
    return write_page(folder, document, {re.sub(r"[^\w.+-]+", "-", name)[:100]: plot for name, plot in plots.items()})


def build_page(numbers: Row, costs: Row) -> tuple[str, dict[str, Markup]]:
    """Returns the whole document and its charts by name. What the study has not measured is left out."""
    curved = group_by([row for row in numbers["arms"] if row["curve"]], lambda row: row["experiment"])
    curves = {f"curves-{name}": draw_curves(name, rows) for name, rows in curved.items()}
    heads = {f"heads-{at:02}-{row['model']}": draw_heads(row) for at, row in enumerate(numbers["heads"], 1)}
    document = render(
        "study.html",
        "vitrail study",
        " on ".join(filter(None, (numbers["study"], numbers["data"]["name"]))),
        str(costs["date"]),
        numbers=numbers,
        costs=costs,
        verdicts=VERDICTS,
        tallied=group_by(numbers["claims"], lambda claim: claim["verdict"]),
        **{each.__name__: each for each in (write, show, spell_effect, spell_rule, draw_strip, label_of, duration)},
        anchor_of=lambda claim: "claim-" + re.sub(r"\W", "-", claim["name"].lower()),
        curves=curves,
        heads=heads,
        times=group_by(costs["trials"], lambda trial: f"{trial['experiment']}, {trial['kind']}"),
        versions=list_versions(costs["versions"]),
        settings=as_yaml(numbers["base"]),
    )
    return document, {**curves, **heads}


def spell_effect(effect: Row | None) -> str:
    """Formats an effect with its unit and, where it is known, its interval: "+2.3 points [+1.1, +3.5]"."""
    value, low, high = read_interval(effect)
    if effect is None or not math.isfinite(value):
        return "not measured"
    shown = show(value, effect["unit"], signed=True)
    ends = ", ".join(write(end, effect["unit"], signed=True) for end in (low, high))
    return f"{shown} [{ends}]" if math.isfinite(low + high) else shown


def spell_rule(claim: Row) -> str:
    """Describes where a claim holds: "at least 1.0 points"."""
    rule, unit = claim["rule"], claim["effect"]["unit"]
    if rule["kind"] == "equal":
        return f"within ±{show(rule['high'], unit)}"
    return f"at least {show(rule['low'], unit)}" if rule["low"] else "more than no effect"


def read_interval(row: Row | None) -> tuple[float, float, float]:
    """Returns ``estimate``, ``low`` and ``high``; what is missing is NaN."""
    estimate, low, high = (number((row or {}).get(name)) for name in ("estimate", "low", "high"))
    return estimate, low, high


def draw_strip(claim: Row) -> Markup | None:
    """Draws the effect over the zone in which the claim holds, or returns None without an interval."""
    values, (low, high) = read_interval(claim["effect"]), (number(claim["rule"][name]) for name in ("low", "high"))
    if not np.isfinite(values).all():
        return None
    return draw.zone_strip(
        values,
        (low, high if math.isfinite(high) else math.inf),
        lambda value: write(value, claim["effect"]["unit"], signed=True),
        colour=VERDICTS[claim["verdict"]][2],
        label="the claim holds here",
        says=f"{spell_effect(claim['effect'])}. Rule: {spell_rule(claim)}.",
    )


def group_by(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Returns the rows by key, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def label_of(row: Row, without: str = "") -> str:
    """Names an arm with its levels, except that of the factor ``without``."""
    levels = (f"{path.split('.')[-1]} {value}" for path, value in row["levels"].items() if path != without)
    return ", ".join([row["arm"], *levels])


def draw_curves(name: str, rows: Sequence[Row]) -> Markup:
    """Draws the accuracy on training images during the first training of each setting of an experiment."""
    series = draw.tell_apart(
        {label_of(row): tuple(np.array([(p["step"], p["train_accuracy"]) for p in row["curve"]]).T) for row in rows}
    )
    values = np.concatenate([line.y for line in series])
    across = draw.horizontal_axis(0.0, max(float(line.x.max()) for line in series), least_step=1, words=whole)
    words = lambda value: f"{100 * value:.4g}{THIN}%"  # noqa: E731
    up = draw.vertical_axis(values, words, least=float(values.min()), most=float(values.max()))
    ends = ", ".join(f"{line.label} {percent(float(line.y[-1]))}" for line in series)
    return draw.chart(name, series, across, up, "step", f"{name} by step: {ends}", rows=True)


def draw_heads(row: Row) -> Markup:
    """Draws the mean attention distance of each head of a model, by depth."""
    unknown = torch.empty(0)
    layers = [HeadFigures(torch.tensor(each["distance"]), each["uniform"], unknown, unknown) for each in row["layers"]]
    return distance_chart(layers, row["model"])
