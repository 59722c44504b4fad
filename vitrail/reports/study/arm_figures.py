"""Figures of single arms: the accuracy by learning rate (ViT paper, figure 9), arms side by side, and heads and positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.markup import Markup, join, tag
from vitrail.reports import bands
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.reports.inspection.charts import distance_chart
from vitrail.reports.study.data_figures import by_limit, label_of
from vitrail.reports.study.units import tick
from vitrail.text import decimal, number, percent, plural, scientific

Row = Mapping[str, Any]
SMALL = 220  # width of a small chart, in SVG units
ROW, NAME = 24.0, 180.0  # height of an arm and width of its name


def rates(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of accuracy by learning rate, a small chart for each arm on common axes."""
    arms = [row for row in numbers.get("rates") or () if read_rates(row).size]
    if not arms:
        return None
    points = np.concatenate([read_rates(row) for row in arms])
    across = bands.logarithmic(points[:, 0], scientific)
    across = replace(across, start=40.0, stop=SMALL - 10.0)
    marks = sorted(set(points[:, 0].tolist()))
    across = replace(across, marks=draw.spread(marks, across))
    up = bands.vertical(points[:, 1], lambda value: tick(value, "share"), 44.0, 134.0)
    drawn = {f"rates-{at:02}-{row.get('arm', '')}": draw_rates(row, across, up) for at, row in enumerate(arms, 1)}
    plots |= drawn
    edges = [str(row.get("arm", "")) for row in arms if row.get("edge")]
    words = (
        "Validation accuracy by learning rate, with the same grid, seeds and length for every arm; all charts share their "
        "axes. A comparison is fair where both optima lie inside of the grid. The line marks the chosen rate, the filled dot "
        "the nearest one of the grid."
    )
    if edges:
        words += f" At the edge of its grid: {', '.join(edges)}; a better rate may lie outside."
    figures = tag("div", *(tag("figure", drawing) for drawing in drawn.values()), class_="multiples")
    return join(tag("h2", "Learning rates"), lead(words), figures)


def read_rates(row: Row) -> np.ndarray:
    """Returns the learning rates and accuracies (n, 2), sorted, of the finite points."""
    pairs = [(number(point.get("lr")), number(point.get("accuracy"))) for point in row.get("points") or ()]
    return np.array(sorted(pair for pair in pairs if pair[0] > 0 and math.isfinite(pair[1])), np.float64).reshape(-1, 2)


def draw_rates(row: Row, across: Axis, up: Axis) -> Markup:
    """Draws the accuracies of one arm by learning rate."""
    points, best, name = read_rates(row), number(row.get("best")), str(row.get("arm", ""))
    colour = "ruby" if row.get("edge") else "cobalt"
    parts = [
        draw.text(0, 14, draw.fit(name, SMALL, 12.5), colour="ink", size=12.5, font_weight=600),
        draw.text(0, 28, draw.fit(str(row.get("experiment", "")), 110, 10.5), size=10.5),
    ]
    if row.get("edge"):
        parts.append(draw.text(SMALL - 10, 28, "edge of the grid", size=10.5, colour="ruby", anchor="end"))
    for value in up.ticks():
        y = float(up.place(value))
        parts += [
            draw.line(across.start, y, across.stop, y),
            draw.text(across.start - 6, y + 3.8, up.words(value), anchor="end"),
        ]
    parts += [
        draw.text(float(across.place(mark)), up.start + 17, across.words(mark), anchor="middle")
        for mark in across.ticks()
    ]
    if across.low <= best <= across.high:
        at = float(across.place(best))
        parts.append(draw.line(at, up.stop, at, up.start, colour, stroke_width=1, stroke_dasharray="2 3"))
    parts += [
        bands.minor_marks(across, up.start),
        draw.path(across.place(points[:, 0]), up.place(points[:, 1]), colour),
    ]
    for rate, accuracy in points.tolist():
        chosen = math.isfinite(best) and rate == min(
            points[:, 0].tolist(), key=lambda other: abs(math.log(other / best))
        )
        says = f"{name} at {scientific(rate)}: {percent(accuracy)}"
        mark = draw.dot if chosen else bands.ring
        parts.append(mark(float(across.place(rate)), float(up.place(accuracy)), colour, says, 3.2))
    listed = ", ".join(f"{percent(accuracy)} at {scientific(rate)}" for rate, accuracy in points.tolist())
    return draw.svg(SMALL, up.start + 24, f"{name}, validation accuracy by learning rate: {listed}", *parts)


def side_by_side(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of the experiments that compare arms at one level, a dot with its interval for each arm."""
    arms, curves = numbers.get("arms") or (), (numbers.get("curves") or {}).get("compute") or {}
    drawn_elsewhere = {*by_limit(arms), *(curves.get("experiments") or ())}
    grouped: dict[str, list[Row]] = {}
    for row in arms:
        finite = math.isfinite(number((row.get("accuracy") or {}).get("estimate")))
        if finite and row.get("experiment") not in drawn_elsewhere:
            grouped.setdefault(str(row.get("experiment", "")), []).append(row)
    charts = {f"arms-{name}": intervals(name, rows) for name, rows in grouped.items() if len(rows) > 1}
    if not charts:
        return None
    plots |= charts
    words = (
        "Test accuracy of the arms of each experiment, the mean of their seeds with its 95\u202f% interval. Scales differ "
        "between charts."
    )
    figures = tag("div", *(tag("figure", drawing) for drawing in charts.values()), class_="charts")
    return join(tag("h2", "Arms side by side"), lead(words), figures)


def intervals(title: str, rows: Sequence[Row]) -> Markup:
    """Draws a dot with its interval for each arm, one below the other."""
    names = [draw.fit(label_of(row), NAME, 12) for row in rows]
    own = [row["accuracy"] for row in rows]
    values = np.array([[number(each.get(name)) for name in ("estimate", "low", "high")] for each in own])
    left = max(60.0, 14 + 12 * draw.WIDEST * max(map(draw.length_of, names)))
    known, top = values[np.isfinite(values)], 34.0
    floor = top + ROW * len(rows)
    fitted = bands.vertical(known, lambda value: tick(value, "share"), 0, 0)
    across = replace(fitted, start=left, stop=draw.WIDTH - 62.0)
    parts = [draw.heading(draw.fit(title, draw.WIDTH, 13.5))]
    for mark in across.ticks():
        x = float(across.place(mark))
        parts += [draw.line(x, top, x, floor), draw.text(x, floor + 16, across.words(mark), anchor="middle")]
    for at, (name, (estimate, low, high)) in enumerate(zip(names, values.tolist())):
        y = top + ROW * (at + 0.5)
        parts.append(draw.text(left - 12, y + 4, name, colour="ink", size=12, anchor="end"))
        if math.isfinite(low) and math.isfinite(high):
            start, stop = float(across.place(low)), float(across.place(high))
            parts.append(draw.line(start, y, stop, y, "cobalt", stroke_width=5, stroke_linecap="round", opacity=0.35))
        says = f"{name}: {percent(estimate)} [{percent(low)}, {percent(high)}]"
        parts.append(draw.dot(float(across.place(estimate)), y, "cobalt", says, 4))
        parts.append(draw.text(draw.WIDTH, y + 4, percent(estimate), colour="ink", size=12, anchor="end"))
    says = f"{title}: " + ", ".join(f"{name} {percent(float(value[0]))}" for name, value in zip(names, values))
    return draw.svg(draw.WIDTH, floor + 22, says, *parts)


def heads(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of attention distances by depth, where they were measured; adds its charts to ``plots``."""
    drawn = []
    for row in numbers.get("heads") or ():
        if layers := [read_layer(layer) for layer in row.get("layers") or () if layer.get("distance")]:
            drawn.append((str(row.get("model", "")), distance_chart(layers)))
    if not drawn:
        return None
    plots |= {f"heads-{at:02}-{name}": drawing for at, (name, drawing) in enumerate(drawn, 1)}
    words = (
        "Mean attention distance of each head, by depth (the paper's figures 7 and 11). The dashed line is the distance of "
        "attention that is uniform over the image."
    )
    figures = (tag("figure", tag("h3", name), drawing) for name, drawing in drawn)
    return join(tag("h2", "Attention by depth"), lead(words), tag("div", *figures, class_="charts"))


def read_layer(layer: Row) -> HeadFigures:
    distances = torch.tensor([number(value) for value in layer["distance"]])
    return HeadFigures(distances, number(layer.get("uniform")), torch.empty(0), torch.empty(0))


def positions(numbers: Row) -> Markup | None:
    """Returns the section of what position embeddings learned, where it was measured."""
    rows = numbers.get("positions") or ()
    if not rows:
        return None
    body = []
    for row in rows:
        trained, untrained = (percent(number(row.get(name))) for name in ("neighbour_rate", "untrained_neighbour_rate"))
        cells = (trained, untrained, decimal(number(row.get("row_column_excess")), 2))
        body.append(tag("tr", tag("th", row.get("model", ""), scope="row"), *(tag("td", cell) for cell in cells)))
    columns = ("model", "neighbours, trained", "neighbours, untrained", "row and column excess")
    table = make_scrollable(tag("table", header(columns), tag("tbody", *body)), "Position embeddings")
    words = (
        f"How often the most similar other position of a patch is adjacent to it, in {plural(len(rows), 'model')}, beside the "
        "same network before training; and by how much positions of the same row or column are more similar than others "
        "(figure 7)."
    )
    return join(tag("h2", "Position embeddings"), lead(words), table)
