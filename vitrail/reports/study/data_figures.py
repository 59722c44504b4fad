"""Accuracy by the number of training images (ViT paper, figures 3 and 4), and the differences between arms below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from vitrail.markup import Markup, join, tag
from vitrail.reports import bands
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, Estimates, Series
from vitrail.reports.components import lead
from vitrail.reports.study.units import MINUS, spell, tick
from vitrail.text import number, percent, whole

Row = Mapping[str, Any]
COLOURS = ("cobalt", "amber", "emerald", "ruby", "violet")
COMPUTE = "compute-limited"
SMALL = 150.0  # height of the charts below the accuracies, without their margins


@dataclass(frozen=True)
class Ground:
    """The horizontal axis of training images with all its levels, and those that are compute-limited."""

    across: Axis
    limits: Sequence[float]
    limited: set[float]

    def hatch(self, up: Axis) -> Markup:
        """Hatches around each compute-limited level, up to the middle towards the next one."""
        places = [float(self.across.place(limit)) for limit in self.limits]
        edges = [self.across.start, *((left + right) / 2 for left, right in pairwise(places)), self.across.stop]
        spans: list[list[float]] = []
        for limit, left, right in zip(self.limits, edges, edges[1:]):
            if limit in self.limited and spans and spans[-1][1] == left:
                spans[-1][1] = right
            elif limit in self.limited:
                spans.append([left, right])
        return join(*(bands.hatch(left, right, up.stop, up.start, COMPUTE) for left, right in spans))


class Colours(dict[str, tuple[str, bool]]):
    """The colour of each name, the same in all figures, and whether its lines are dashed: those after the fifth are."""

    def __missing__(self, name: str) -> tuple[str, bool]:
        if (folded := name.casefold()) != name:
            return self[folded]
        self[name] = COLOURS[len(self) % len(COLOURS)], len(self) >= len(COLOURS)
        return self[name]

    def line(self, name: str, points: Estimates) -> Series:
        colour, dashed = self[name]
        return Series(name, points.x, points.y, colour, dashed=dashed)


def by_limit(arms: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Returns the rows of each arm by experiment, of experiments in which an arm has at least two limits."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in arms:
        found.setdefault(str(row.get("experiment", "")), {}).setdefault(label_of(row), []).append(row)
    return {
        name: lines
        for name, lines in found.items()
        if any(len({row.get("limit") for row in rows}) > 1 for rows in lines.values())
    }


def label_of(row: Row) -> str:
    """Names an arm with its levels, except the number of images."""
    return ", ".join([str(row.get("arm", "")), *levels_of(row)])


def levels_of(row: Row) -> list[str]:
    """Names the levels of an arm, except the number of images."""
    levels = (row.get("levels") or {}).items()
    return [f"{str(path).split('.')[-1]} {value}" for path, value in levels if path != "data.limit"]


def read_accuracies(rows: Iterable[Row], x: str) -> Estimates:
    """Reads the accuracies of arms at the values of ``x``, a figure of the arm."""
    return draw.read_estimates(
        [{**(row.get("accuracy") or {}), "x": row.get(x)} for row in rows if number(row.get(x)) > 0]
    )


def data(numbers: Row, colours: Colours, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of accuracy by training images; adds its charts to ``plots``."""
    extra = {str(row.get("experiment", "")): row for row in (numbers.get("curves") or {}).get("data") or ()}
    experiments, parts = by_limit(numbers.get("arms") or ()), []
    for name, lines in experiments.items():
        charts = draw_experiment(lines, extra.get(name, {}), colours)
        plots |= {f"data-{name}-{kind}": chart for kind, chart in charts.items()}
        columns = (("accuracy", "difference"), ("needed",))
        figures = [tag("figure", *(charts[kind] for kind in kinds if kind in charts), class_="stacked")
                   for kinds in columns if charts.keys() & {*kinds}]  # fmt: skip
        if figures:
            parts += [tag("h3", name) if len(experiments) > 1 else None, tag("div", *figures, class_="charts")]
    if not parts:
        return None
    shown = [row for lines in experiments.values() for rows in lines.values() for row in rows]
    words = explain(shown, [own for name, own in extra.items() if name in experiments])
    return join(tag("h2", "Accuracy by training images"), lead(words), *parts)


def explain(arms: Sequence[Row], extra: Sequence[Row]) -> str:
    """Returns what the charts show, as far as they show it."""
    words = "Test accuracy by the number of training images, with 95\u202f% intervals (the paper's figures 3 and 4)."
    if any(row.get("fits") for row in extra):
        words += " Thin dotted lines are fitted laws, dashed where they go beyond the images that were measured."
    if any(row.get("needed") for row in extra):
        words += " Images needed: how many times as many the first arm needs for the accuracy of the second."
    if any(row.get("regime") == COMPUTE for row in arms):
        words += (
            " Hollow dots are compute-limited: training ended before the network had fitted its own images, so that more of "
            "them could not help. Where the area is hatched, this holds of at least one arm, and no claim about data is judged "
            "there."
        )
    return words


def draw_experiment(lines: Mapping[str, Sequence[Row]], extra: Row, colours: Colours) -> dict[str, Markup]:
    """Returns the charts of one experiment on a common axis: accuracies, differences, and images needed."""
    points = {name: read_accuracies(rows, "limit") for name, rows in lines.items()}
    limits = np.unique(np.concatenate([own.x for own in points.values()]))
    if not len(limits):
        return {}
    fitted = [draw.read_estimates(row.get("points") or ()).x for row in extra.get("fits") or ()]
    across = bands.logarithmic(np.concatenate([limits, *fitted]), whole, marks=limits.tolist())
    limited = {number(row.get("limit")) for rows in lines.values() for row in rows if row.get("regime") == COMPUTE}
    ground = Ground(across, limits.tolist(), limited)
    charts = {"accuracy": accuracies(lines, points, extra, ground, colours)}
    differences = [(f"{row.get('plus')} {MINUS} {row.get('minus')}", row) for row in extra.get("differences") or ()]
    if differences:
        unit = str(differences[0][1].get("unit", "points"))
        title = f"Difference, {unit}"
        charts["difference"] = compare(title, differences, unit, 0.0, ground)
    needed = [(f"{row.get('arm')} / {row.get('against')}", row) for row in extra.get("needed") or ()]
    if needed:
        charts["needed"] = compare("Images needed", needed, "ratio", 1.0, ground)
    return charts


def accuracies(
    lines: Mapping[str, Sequence[Row]], points: Mapping[str, Estimates], extra: Row, ground: Ground, colours: Colours
) -> Markup:
    """Draws the accuracies of all arms with bands; fitted laws are thin, dashed where they are extrapolated."""
    across, named = ground.across, [colours.line(name, own) for name, own in points.items()]
    legend, top = name_lines(named)
    floor = top + draw.HEIGHT - draw.TOP - draw.BOTTOM
    up = bands.vertical(
        np.concatenate([own.values for own in points.values()]), lambda value: tick(value, "share"), top, floor
    )
    parts: list[Markup | None] = [ground.hatch(up)]
    parts += [draw.band(own, across, up, colours[name][0]) for name, own in points.items()]
    parts += [line for row in extra.get("fits") or () for line in draw_fit(row, across, up, colours)]
    for name, line in zip(points, named):
        parts += [draw.draw_series(line, across, up, "images"), draw.error_bars(points[name], across, up, line.colour)]
        parts += dots(lines[name], "limit", (across, up), line.colour, lambda row: row.get("regime") == COMPUTE)
    ends = (
        f"{name} {percent(float(own.y[-1]))} at {whole(own.x[-1])} images" for name, own in points.items() if len(own.x)
    )
    says = f"Test accuracy by training images: {', '.join(ends)}"
    return finish("Test accuracy", legend, (across, up), "training images", says, parts)


def name_lines(series: Sequence[Series]) -> tuple[Markup | None, float]:
    """Returns the legend of several lines, None for a single one, and where the plot may begin."""
    return draw.legend(series) if len(series) > 1 else (None, 34.0)


def finish(
    title: str, legend: Markup | None, axes: tuple[Axis, Axis], label: str, says: str, parts: Sequence[Markup | None]
) -> Markup:
    """Returns the chart of ``parts`` on a logarithmic and a vertical axis, with its title, its legend and its marks."""
    across, up = axes
    frame = (draw.heading(title), legend, draw.axes(across, up, label), bands.minor_marks(across, up.start))
    return draw.svg(draw.WIDTH, up.start + draw.BOTTOM + 2, says, *frame, *parts)


def dots(
    rows: Sequence[Row], x: str, axes: tuple[Axis, Axis], colour: str, hollow: Callable[[Row], bool]
) -> list[Markup]:
    """Returns a dot for the accuracy of each arm at its value of ``x``, named for the pointer."""
    (across, up), parts = axes, []
    for row in rows:
        at, accuracy = number(row.get(x)), number((row.get("accuracy") or {}).get("estimate"))
        if at > 0 and math.isfinite(accuracy):
            regime = row.get("regime") or "regime not known"
            says = f"{label_of(row)}: {percent(accuracy)} at {across.words(at)}, {regime}"
            mark = bands.ring if hollow(row) else draw.dot
            parts.append(mark(float(across.place(at)), float(up.place(accuracy)), colour, says, 3.2))
    return parts


def draw_fit(row: Row, across: Axis, up: Axis, colours: Colours) -> list[Markup]:
    """Returns the line of a fitted law inside of the chart: solid where it was measured, dashed beyond."""
    points, last = draw.read_estimates(row.get("points") or ()), number(row.get("measured_to"))
    inside = (points.x >= across.low) & (points.x <= across.high) & (points.y >= up.low) & (points.y <= up.high)
    measured = points.x <= (last if math.isfinite(last) else math.inf)
    colour, parts = colours[str(row.get("arm", ""))][0], []
    for kept, dashes in ((measured, "1 3"), (~measured, draw.DASHES)):
        y = np.where(inside & kept, points.y, np.nan)
        if np.isfinite(y).any():
            parts.append(draw.path(across.place(points.x), up.place(y), colour, width=1, stroke_dasharray=dashes))
    return parts


def compare(title: str, rows: Sequence[tuple[str, Row]], unit: str, none: float, ground: Ground) -> Markup:
    """Draws lines with bands around the level ``none``, in colours that no arm has as long as there are few."""
    across, points = ground.across, [draw.read_estimates(row.get("points") or ()) for _, row in rows]
    named = [
        Series(label, own.x, own.y, COLOURS[-1 - at % 5]) for at, ((label, _), own) in enumerate(zip(rows, points))
    ]
    legend, top = name_lines(named)
    values = np.concatenate([own.values for own in points])
    up = bands.vertical(values, lambda value: tick(value, unit), top, top + SMALL, around=none)
    level = float(up.place(none))
    parts: list[Markup | None] = [ground.hatch(up), draw.line(across.start, level, across.stop, level, "muted")]
    for line, own in zip(named, points):
        parts += [draw.band(own, across, up, line.colour), draw.draw_series(line, across, up, "images")]
        parts.append(draw.error_bars(own, across, up, line.colour))
        for x, y in zip(own.x, own.y):
            if math.isfinite(y):
                says = f"{line.label}, {whole(x)} images: {spell(y, unit)}"
                parts.append(draw.dot(float(across.place(x)), float(up.place(y)), line.colour, says, 3.2))
    shown = title if len(named) > 1 else draw.fit(f"{title}: {named[0].label}", draw.WIDTH, 13.5)
    ends = (f"{line.label} {spell(float(own.y[-1]), unit)}" for line, own in zip(named, points) if len(own.x))
    says = f"{title} by training images; at the largest: {', '.join(ends)}"
    return finish(shown, legend, (across, up), "training images", says, parts)
