"""Marks that only the charts of studies have: axes with minor marks, hatched areas and hollow dots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vitrail.markup import Markup, join, tag
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, round_marks, spread

HATCH = 7.0  # distance of the lines of a hatched area


def vertical(
    values: np.ndarray, words: Callable[[float], str], top: float, floor: float, *, around: float | None = None
) -> Axis:
    """Returns a linear vertical axis from ``floor`` up to ``top`` that fits ``values``, and ``around`` if it is given."""
    values = values[np.isfinite(values)]
    shown = np.append(values, [] if around is None and len(values) else around or 0.0)
    axis = draw.vertical_axis(shown, words, least=float(shown.min()), most=float(shown.max()))
    return replace(axis, start=floor, stop=top)


def logarithmic(values: np.ndarray, words: Callable[[float], str], *, marks: Sequence[float] = ()) -> Axis:
    """Returns a logarithmic horizontal axis around positive ``values``; marks that would overlap are left out."""
    low, high = float(values.min()), float(values.max())
    margin = (high / low) ** 0.06 if high > low else 2.0
    axis = Axis(low / margin, high * margin, draw.LEFT, draw.WIDTH - draw.RIGHT, log=True, words=words)
    wanted = marks or round_marks(axis)
    return replace(axis, marks=spread(wanted, axis))


def minor_marks(axis: Axis, floor: float) -> Markup:
    """Draws the minor marks of a logarithmic horizontal axis, 1 to 9 times powers of ten, and longer ones at its labels."""
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    minor = [step * 10.0**power for power in powers for step in range(1, 10)]
    places = [(float(axis.place(mark)), 3.0) for mark in minor if axis.low <= mark <= axis.high]
    places += [(float(axis.place(mark)), 5.0) for mark in axis.ticks()]
    return join(*(draw.line(x, floor, x, floor + long, "muted", stroke_width=0.8) for x, long in places))


def hatch(left: float, right: float, top: float, floor: float, says: str) -> Markup:
    """Draws diagonal lines over a rectangle, with a name for the pointer."""
    height, lines = floor - top, []
    for start in np.arange(left - height, right, HATCH):  # a line from (start, floor) up to (start + height, top)
        first, last = max(start, left), min(start + height, right)
        if last > first:
            lines.append(f"M{first:.1f} {floor - (first - start):.1f}L{last:.1f} {floor - (last - start):.1f}")
    stroke = tag("path", d="".join(lines), stroke="var(--muted)", stroke_width=0.9, opacity=0.38, fill="none")
    area = draw.rectangle(left, top, right - left, height, "muted", opacity=0.06)
    return tag("g", tag("title", says), area, stroke)


def ring(x: float, y: float, colour: str, says: str, radius: float = 3.2) -> Markup:
    """Draws a hollow dot."""
    where = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": radius}
    return tag("circle", tag("title", says), **where, fill="var(--paper)", stroke=f"var(--{colour})", stroke_width=1.6)
