"""The page of `vitrail study`: the values of templates/study.html, its charts, and how effects are spelt."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.markup import Markup
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, Estimates, Series, read_estimates
from vitrail.reports.facts import as_yaml, list_versions
from vitrail.reports.inspection.charts import distance_chart
from vitrail.reports.page import render, write_page
from vitrail.runtime.progress import duration
from vitrail.text import number, percent, plural, whole

Row = Mapping[str, Any]
COLOURS = ("cobalt", "amber", "emerald", "ruby", "violet")
# sign, class, colour and meaning; also the order of the tally
VERDICTS = {
    "held": ("✓", "holds", "emerald", "The interval supports the claim by the rule"),
    "did not hold": ("✗", "fails", "ruby", "The interval contradicts the claim by the rule"),
    "cannot tell": ("?", "unsure", "amber", "The interval is too wide, or a condition of the claim was not met"),
    "out of range": ("–", "open", "muted", "The study is too small to contradict the claim"),
}
MINUS, THIN = "\u2212", "\u202f"


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
    experiments = group_by(numbers["arms"], lambda row: row["experiment"])
    curved = {name: [row for row in rows if row["curve"]] for name, rows in experiments.items()}
    accuracies = {f"arms-{name}": draw_accuracies(name, rows) for name, rows in experiments.items()}
    curves = {f"curves-{name}": draw_curves(name, rows) for name, rows in curved.items() if rows}
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
        anchor_of=lambda claim: "claim-" + re.sub(r"\W", "-", claim["name"].lower()),
        spell=spell,
        spell_effect=spell_effect,
        spell_rule=spell_rule,
        draw_strip=draw_strip,
        list_chips=list_chips,
        label_of=label_of,
        duration=duration,
        warnings=list_warnings(numbers),
        accuracies=accuracies,
        curves=curves,
        heads=heads,
        edges=[f"{row['arm']} in {row['experiment']}" for row in numbers["rates"] if row["edge"]],
        machines=sorted({" on ".join(filter(None, (each["device"], each["host"]))) for each in costs["trials"]}),
        times=group_by(costs["trials"], lambda trial: f"{trial['experiment']}, {trial['kind']}"),
        run=describe_study(numbers, costs),
    )
    return document, {**accuracies, **curves, **heads}


# --- effects ---


def spell(value: float, unit: str, *, signed: bool = True) -> str:
    """Formats a value of a unit, without the name of the unit. NaN is a dash."""
    if not math.isfinite(value):
        return "–"
    if unit == "ratio":
        return f"{value:.3g}×"
    if unit == "share":
        return percent(value)
    shown = f"{abs(100 * value):.1f}" if unit == "points" else f"{abs(value):.2f}"
    sign = MINUS if value < 0 else "+" if signed else ""
    return shown if not float(shown) else sign + shown


def spell_effect(effect: Row | None) -> str:
    """Formats an effect with its unit and, where it is known, its interval: "+2.3 points [+1.1, +3.5]"."""
    value, low, high = read_interval(effect)
    if effect is None or not math.isfinite(value):
        return "not measured"
    unit = effect["unit"]
    shown = f"{spell(value, unit)}{noun_of(unit)}"
    return f"{shown} [{spell(low, unit)}, {spell(high, unit)}]" if math.isfinite(low + high) else shown


def spell_rule(claim: Row) -> str:
    """Describes where a claim holds: "at least 1.0 points"."""
    rule, unit = claim["rule"], claim["effect"]["unit"]
    low, high, noun = number(rule["low"]), number(rule["high"]), noun_of(unit)
    if rule["kind"] == "ratio":
        side = "more" if low >= 1 else "less"
        return f"{side} than 1×; the paper says between {spell(low, unit)} and {spell(high, unit)}"
    if rule["kind"] == "equal":
        return f"within ±{spell(high, unit, signed=False)}{noun}"
    return f"at least {spell(low, unit, signed=False)}{noun}" if low else "more than no effect"


def noun_of(unit: str) -> str:
    """Returns the name of a unit after its values, with a space before it; empty for those without a name."""
    return "" if unit in ("ratio", "share", "correlation") else f" {unit}"


def read_interval(row: Row | None) -> tuple[float, float, float]:
    """Returns ``estimate``, ``low`` and ``high``; what is missing is NaN."""
    estimate, low, high = (number((row or {}).get(name)) for name in ("estimate", "low", "high"))
    return estimate, low, high


def draw_strip(claim: Row) -> Markup | None:
    """Draws the effect over the zone in which the claim holds, or returns None without an interval."""
    values, rule = read_interval(claim["effect"]), claim["rule"]
    low, high = number(rule["low"]), number(rule["high"])
    log = bool(claim["effect"]) and claim["effect"]["unit"] == "ratio"
    if not np.isfinite(values).all() or (log and min(*values, low) <= 0):
        return None
    return draw.zone_strip(
        values,
        (low if math.isfinite(low) else -math.inf, high if math.isfinite(high) else math.inf),
        lambda value: spell(value, claim["effect"]["unit"]),
        colour=VERDICTS[claim["verdict"]][2],
        none=1.0 if log else 0.0,
        label="the figure of the paper" if rule["kind"] == "ratio" else "the claim holds here",
        says=f"{spell_effect(claim['effect'])}. Rule: {spell_rule(claim)}.",
        log=log,
    )


def list_chips(claim: Row) -> dict[str, Any]:
    """Returns the facts about a figure: seeds, degrees of freedom, levels, what could be detected, the regime."""
    effect = claim["effect"] or {}
    values = effect.get("df"), effect.get("level"), claim.get("verdict_level"), claim["detectable"]
    df, level, decided, detectable = map(number, values)
    unit = effect.get("unit", "")
    return {
        "seeds": effect.get("seeds"),
        "degrees of freedom": f"{df:.3g}" if math.isfinite(df) else "",
        "interval": f"{100 * level:.4g}{THIN}%" if math.isfinite(level) else "",
        "decided at": f"{100 * decided:.4g}{THIN}%" if math.isfinite(decided) else "",
        "detectable": f"{spell(detectable, unit, signed=False)}{noun_of(unit)}" if math.isfinite(detectable) else "",
        "regime": claim["regime"],
        "experiment": claim["experiment"],
    }


def list_warnings(numbers: Row) -> list[str]:
    """Returns the sentences that stand at the top of the page: mixed commits, earlier plans, failed trials, reductions."""
    commits, earlier, failures = numbers["commits"], numbers["plan"]["earlier"], numbers["failures"]
    found = []
    if len(commits) > 1:
        found.append(f"The trials come from {len(commits)} commits of vitrail: {', '.join(commits)}.")
    if earlier:
        times = plural(len(earlier), "time")
        found.append(f"The plan was changed {times} after trials had been trained; all hashes are below.")
    if failures:
        found.append(f"{plural(len(failures), 'trial')} failed or diverged; see cost and time.")
    return found + [f"Reduced to the budget: {change}." for change in numbers["plan"].get("reductions", ())]


# --- charts ---


def group_by(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Returns the rows by key, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def label_of(row: Row, without: str = "") -> str:
    """Names an arm with its levels, except that of the factor ``without``."""
    levels = [f"{path.split('.')[-1]} {value}" for path, value in row["levels"].items() if path != without]
    return ", ".join([row["arm"], *levels])


def spell_tick(value: float) -> str:
    return f"{100 * value:.4g}{THIN}%"


def draw_accuracies(name: str, rows: Sequence[Row]) -> Markup:
    """Draws the accuracies of an experiment: by the number of training images where that varies, else a dot for each arm."""
    if len({row["limit"] for row in rows}) == 1:
        return draw_arms(name, rows)
    lines = {
        arm: read_estimates([{**row["accuracy"], "x": row["limit"]} for row in own])
        for arm, own in group_by(rows, lambda row: label_of(row, "data.limit")).items()
    }
    limits = np.unique(np.concatenate([own.x for own in lines.values()]))
    across = draw.log_axis(limits, draw.LEFT, draw.WIDTH - draw.RIGHT, whole, marks=limits.tolist())
    across = replace(across, marks=draw.spread(across.marks, across))
    return draw_lines(name, lines, across, "training images")


def draw_curves(name: str, rows: Sequence[Row]) -> Markup:
    """Draws the accuracy on training images during the first training of each setting."""
    lines = {
        label_of(row): read_estimates([{"x": p["step"], "estimate": p["train_accuracy"]} for p in row["curve"]])
        for row in rows
    }
    last = max(float(own.x.max()) for own in lines.values())
    return draw_lines(name, lines, draw.horizontal_axis(0.0, last, least_step=1, words=whole), "step")


def draw_lines(title: str, lines: Mapping[str, Estimates], across: Axis, label: str) -> Markup:
    """Draws shares in [0, 1] over ``across``, one line with its intervals for each name."""
    series = [
        Series(name, own.x, own.y, COLOURS[at % len(COLOURS)], marked=True, dashed=at >= len(COLOURS))
        for at, (name, own) in enumerate(lines.items())
    ]
    values = np.concatenate([own.values for own in lines.values()])
    up = draw.vertical_axis(values, spell_tick, least=float(values.min()), most=float(values.max()))
    ends = ", ".join(f"{name} {percent(float(own.y[-1]))}" for name, own in lines.items() if len(own.y))
    says = f"{title} by {label}: {ends}"
    return draw.chart(title, series, across, up, label, says, rows=True, intervals=list(lines.values()))


def draw_arms(name: str, rows: Sequence[Row]) -> Markup:
    """Draws a dot with its interval for each arm, one below the other."""
    names = [draw.fit(label_of(row), 180.0, 12) for row in rows]
    values = np.array([read_interval(row["accuracy"]) for row in rows])
    left = max(60.0, 14 + 12 * draw.WIDEST * max(map(draw.length_of, names)))
    top, height = 34.0, 24.0
    floor, known = top + height * len(rows), values[np.isfinite(values)]
    across = draw.vertical_axis(known, spell_tick, least=float(known.min()), most=float(known.max()))
    across = replace(across, start=left, stop=draw.WIDTH - 62.0)
    drawn = [draw.heading(draw.fit(name, draw.WIDTH, 13.5))]
    for mark in across.ticks():
        x = across.at(mark)
        drawn += [draw.line(x, top, x, floor), draw.text(x, floor + 16, spell_tick(mark), anchor="middle")]
    for at, (arm, (estimate, low, high)) in enumerate(zip(names, values.tolist())):
        y = top + height * (at + 0.5)
        drawn.append(draw.text(left - 12, y + 4, arm, colour="ink", size=12, anchor="end"))
        if math.isfinite(low + high):
            ends = across.at(low), y, across.at(high), y
            drawn.append(draw.line(*ends, "cobalt", stroke_width=5, stroke_linecap="round", opacity=0.35))
        says = f"{arm}: {percent(estimate)} [{percent(low)}, {percent(high)}]"
        drawn.append(draw.dot(across.at(estimate), y, "cobalt", says, 4))
        drawn.append(draw.text(draw.WIDTH, y + 4, percent(estimate), colour="ink", size=12, anchor="end"))
    says = f"{name}: " + ", ".join(f"{arm} {percent(float(value[0]))}" for arm, value in zip(names, values))
    return draw.svg(draw.WIDTH, floor + 22, says, *drawn)


def draw_heads(row: Row) -> Markup:
    """Draws the mean attention distance of each head of a model, by depth."""
    layers = [
        HeadFigures(torch.tensor(layer["distance"]), layer["uniform"], torch.empty(0), torch.empty(0))
        for layer in row["layers"]
    ]
    return distance_chart(layers, row["model"])


def describe_study(numbers: Row, costs: Row) -> dict[str, Any]:
    """Returns the run details: the plan and its earlier versions, data, commits, machine and settings."""
    data = numbers["data"]
    counts = ", ".join(f"{data[name]:,} {name}" for name in ("training", "validation", "test"))
    rows = {
        "Study": numbers["study"],
        "Plan": numbers["plan"]["sha256"],
        "Earlier plans": ", ".join(numbers["plan"]["earlier"]),
        "Data": f"{data['name']}: {counts}",
        "Commits": ", ".join(numbers["commits"]),
        "Machine": costs["machine"],
        "Versions": list_versions(costs["versions"]),
        "Files": "numbers.json has all figures in full precision, trials.csv a row for each trial, plots/ the charts",
    }
    return {"command": str(costs["command"] or ""), "rows": rows, "settings": as_yaml(numbers["base"])}
