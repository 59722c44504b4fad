"""Accuracy by training cost (ViT paper, figure 5), by the size of each axis (figure 8), and the refit of its table 6."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from vitrail.markup import Markup, join, tag
from vitrail.reports import bands
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, Estimates, Series
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.reports.study.data_figures import Colours, dots, finish, name_lines, read_accuracies
from vitrail.reports.study.units import read_effect, tick
from vitrail.runtime.progress import duration
from vitrail.text import decimal, large, number, percent, plural

Row = Mapping[str, Any]
TIMES = tuple(step * unit for unit in (0.1, 1, 60, 3600) for step in (1, 2, 5, 10, 20, 30))  # seconds; marks of an axis


def compute(numbers: Row, costs: Row, colours: Colours, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of accuracy by FLOPs and by seconds; adds its charts to ``plots``."""
    extra = (numbers.get("curves") or {}).get("compute") or {}
    names, families = extra.get("experiments") or (), extra.get("families") or {}
    arms = [row for row in numbers.get("arms") or () if row.get("experiment") in names]
    frontier = {
        str(row.get("family", "")): draw.read_estimates(row.get("points") or ()) for row in extra.get("frontier") or ()
    }
    timed = add_seconds(arms, costs.get("cells") or ())
    label = "time of one training"
    drawn = {
        "compute-flops": scatter(
            "Accuracy by training FLOPs", arms, families, frontier, colours, "macs6", large, "FLOPs"
        ),
        "compute-seconds": scatter(
            "Accuracy by training time", timed, families, {}, colours, "seconds", duration, label
        ),
    }
    drawn = {name: drawing for name, drawing in drawn.items() if drawing is not None}
    if not drawn:
        return None
    plots |= drawn
    words = (
        "Each dot is one setting, the mean of its seeds with its 95\u202f% interval (the paper's figure 5). FLOPs are 6 × the "
        "multiply-adds of an image × the images seen."
    )
    if frontier:
        words += " Lines join the frontier of each family, with their intervals."
    if "compute-seconds" in drawn:
        words += " Equal FLOPs are not equal time, as the second chart shows for this machine."
    ratios = [tag("li", row.get("name", ""), ": ", tag("strong", read_effect({**row, "unit": "ratio"}).words()))
              for row in extra.get("ratios") or ()]  # fmt: skip
    listed = tag("ul", *ratios, class_="ratios") if ratios else None
    figures = tag("div", *(tag("figure", drawing) for drawing in drawn.values()), class_="charts")
    return join(tag("h2", "Accuracy by compute"), lead(words), listed, figures)


def add_seconds(arms: Sequence[Row], cells: Sequence[Row]) -> list[Row]:
    """Returns the arms with the mean seconds of their final cells, those that have any."""

    def key(row: Row) -> str:
        return json.dumps([row.get("experiment"), row.get("arm"), row.get("levels") or {}], sort_keys=True, default=str)

    spent: dict[str, list[float]] = {}
    for cell in cells:
        if cell.get("kind") != "tuning" and number(cell.get("seconds")) > 0:
            spent.setdefault(key(cell), []).append(number(cell["seconds"]))
    return [{**row, "seconds": fmean(spent[key(row)])} for row in arms if key(row) in spent]


def scatter(
    title: str,
    arms: Sequence[Row],
    families: Mapping[str, str],
    frontier: Mapping[str, Estimates],
    colours: Colours,
    x: str,
    words: Callable[[float], str],
    label: str,
) -> Markup | None:
    """Draws a dot with its error bar for each arm, in the colour of its family, over the frontiers."""
    grouped: dict[str, list[Row]] = {}
    for row in arms:
        grouped.setdefault(str(families.get(str(row.get("arm")), row.get("arm", ""))), []).append(row)
    points = {family: own for family, rows in grouped.items() if len((own := read_accuracies(rows, x)).x)}
    if not points:
        return None
    lines = {family: own for family, own in frontier.items() if family in points and len(own.x)}
    series = [colours.line(family, own) for family, own in points.items()]
    legend, top = name_lines(series)
    known = [*points.values(), *lines.values()]
    places = np.concatenate([own.x for own in known])
    across = bands.logarithmic(places, words)
    if x == "seconds":
        across = replace(
            across,
            words=spell_mark,
            marks=draw.spread([mark for mark in TIMES if across.low <= mark <= across.high], across),
        )
    values = np.concatenate([own.values for own in known])
    up = bands.vertical(values, lambda value: tick(value, "share"), top, top + draw.HEIGHT - draw.TOP - draw.BOTTOM)
    parts: list[Markup | None] = []
    for family, own in lines.items():
        colour, _ = colours[family]
        parts += [draw.band(own, across, up, colour), draw.path(across.place(own.x), up.place(own.y), colour)]
    for family, own in points.items():
        colour, dashed = colours[family]
        parts += [draw.error_bars(own, across, up, colour)]
        parts += dots(grouped[family], x, (across, up), colour, lambda row, hollow=dashed: hollow)
    says = f"{title}: {plural(len(arms), 'setting')} of {', '.join(points)}"
    return finish(title, legend, (across, up), label, says, parts)


def spell_mark(seconds: float) -> str:
    """Formats a round time: "30 s", "5 min", "2 h"."""
    unit, name = (3600, "h") if seconds >= 3600 else (60, "min") if seconds >= 60 else (1, "s")
    return f"{seconds / unit:g}\u202f{name}"


def shape(numbers: Row, colours: Colours, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of the accuracy by doublings of each axis (figure 8); adds its chart to ``plots``."""
    rows = (numbers.get("curves") or {}).get("axes") or ()
    points = {str(row.get("axis", "")): draw.read_estimates(row.get("points") or (), "doublings") for row in rows}
    points = {name: own for name, own in points.items() if len(own.values)}
    if not points:
        return None
    series = [colours.line(name, own) for name, own in points.items()]
    legend, top = name_lines(series)
    turns = np.concatenate([own.x for own in points.values()])
    across = Axis(
        turns.min() - 0.25, turns.max() + 0.25, draw.LEFT, draw.WIDTH - draw.RIGHT, least_step=1, words=spell_factor
    )
    values = np.concatenate([own.values for own in points.values()])
    up = bands.vertical(values, lambda value: tick(value, "logit"), top, top + draw.HEIGHT - draw.TOP)
    parts: list[Markup | None] = []
    for at, (line, own) in enumerate(zip(series, points.values())):
        aside = 4 * (at - (len(series) - 1) / 2)  # so that the bars of different axes stand beside each other
        beside = replace(across, start=across.start + aside, stop=across.stop + aside)
        parts += [draw.error_bars(own, beside, up, line.colour), draw.draw_series(line, beside, up, "doublings")]
        for x, y in zip(own.x, own.y):
            says = f"{line.label} {spell_factor(x)}: {tick(y, 'logit')}"
            parts.append(draw.dot(float(beside.place(x)), float(up.place(y)), line.colour, says, 3.2))
    says = f"Logit of the test accuracy by the size of {', '.join(points)}"
    frame = (draw.heading("Logit of test accuracy"), legend, draw.axes(across, up, "size relative to the base model"))
    plots["axes"] = draw.svg(draw.WIDTH, up.start + draw.BOTTOM + 2, says, *frame, *parts)
    words = (
        "Each axis of the base model is scaled alone (the paper's figure 8). On the logit scale a step is the same odds ratio "
        "whether accuracy is high or low. Axes cost differently: a doubling of width costs about four times the FLOPs of a layer."
    )
    return join(tag("h2", "Scaling each axis"), lead(words), tag("div", tag("figure", plots["axes"]), class_="charts"))


def spell_factor(doublings: float) -> str:
    """Formats doublings as a factor: -1 -> "×1/2", 2 -> "×4"."""
    factor = 2.0**doublings
    return f"×{factor:.3g}" if factor >= 1 else f"×1/{1 / factor:.3g}"


def published(numbers: Row, colours: Colours, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of the paper's own table, fitted again; adds its chart, if any, to ``plots``."""
    facts = numbers.get("published") or {}
    rows = facts.get("rows") or ()
    if not rows:
        return None
    if (drawing := draw_published(facts, colours)) is not None:
        plots["published"] = drawing
    families = list(dict.fromkeys(family for row in rows for family in row.get("slopes") or {}))
    body = []
    for row in rows:
        effect = read_effect({**row, "unit": "ratio"})
        slopes = [decimal(number((row.get("slopes") or {}).get(family))) for family in families]
        cells = (show_ratio(effect.words()), *slopes, decimal(number(row.get("equal_slopes")), 2))
        body.append(tag("tr", tag("th", row.get("name", ""), scope="row"), *(tag("td", cell) for cell in cells)))
    columns = ("metric", "compute ratio", *(f"slope, {family}" for family in families), "p, equal slopes")
    table = make_scrollable(tag("table", header(columns), tag("tbody", *body)), "Compute ratios of the published table")
    source, models = facts.get("source") or "table 6", number(facts.get("models"))
    words = (
        f"The paper's {source}, fitted with the code of this study and no training: how many times less compute ViT needs than "
        "ResNets for equal accuracy, and the gain in logits for each factor e of FLOPs. "
        + (f"{plural(int(models), 'model')}; intervals by bootstrap over models. " if math.isfinite(models) else "")
        + "If slopes differ, the ratio depends on the compute at which it is read."
    )
    figure = tag("figure", drawing) if drawing is not None else None
    charts = tag("div", figure, class_="charts") if figure is not None else None
    return join(tag("h2", "The published table, fitted again"), lead(words), table, charts)


def show_ratio(words: str) -> Markup:
    """Returns the estimate of a ratio with its interval on a second, smaller line."""
    value, _, interval = words.partition(" [")
    return (
        join(tag("strong", value), tag("br"), tag("small", "[" + interval)) if interval else Markup(tag("span", words))
    )


def draw_published(facts: Row, colours: Colours) -> Markup | None:
    """Draws the published accuracies by FLOPs with the fitted lines, or returns None without points."""
    grouped: dict[str, list[Row]] = {}
    for row in facts.get("points") or ():
        if number(row.get("flops")) > 0 and math.isfinite(number(row.get("accuracy"))):
            grouped.setdefault(str(row.get("family", "")), []).append(row)
    if not grouped:
        return None
    lines = {
        str(row.get("family", "")): draw.read_estimates(row.get("points") or ()) for row in facts.get("lines") or ()
    }
    rows = [row for own in grouped.values() for row in own]
    across = bands.logarithmic(np.array([number(row["flops"]) for row in rows]), large)
    empty = np.array([])
    legend, top = name_lines([Series(name, empty, empty, *colours[name][:1]) for name in grouped])
    accuracy = np.array([number(row["accuracy"]) for row in rows])
    up = bands.vertical(accuracy, lambda value: tick(value, "share"), top, top + draw.HEIGHT - draw.TOP - draw.BOTTOM)
    parts: list[Markup | None] = []
    for family, own in grouped.items():
        colour, fit = colours[family][0], lines.get(family)
        if fit is not None:
            inside = (fit.x >= across.low) & (fit.x <= across.high) & (fit.y >= up.low) & (fit.y <= up.high)
            parts.append(draw.path(across.place(fit.x), up.place(np.where(inside, fit.y, np.nan)), colour))
        for row in own:
            x, y = float(across.place(number(row["flops"]))), float(up.place(number(row["accuracy"])))
            parts.append(draw.dot(x, y, colour, f"{row.get('model', family)}: {percent(number(row['accuracy']))}", 3.4))
    title = " ".join(filter(None, ("Published accuracy", facts.get("metric") and f"on {facts['metric']}")))
    return finish(title, legend, (across, up), "FLOPs", f"{title} of {plural(len(rows), 'model')} by FLOPs", parts)
