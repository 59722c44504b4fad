"""Draws estimates with their intervals: bands, error bars, axes with minor marks, and strips of a single interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitrail.markup import Markup, join, tag
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis
from vitrail.text import number

CAP = 2.5  # half the width of the ends of an error bar, in SVG units
LEAST_CAPPED = 12.0  # height of an error bar below which its ends would only thicken its dot
HATCH = 7.0  # distance of the lines of a hatched area
STRIP = 380.0  # width of a strip, in SVG units
LEAST_GAP = 46.0  # between the middles of two labels of a horizontal axis


@dataclass(frozen=True)
class Estimates:
    """Estimates y at x with the ends of their intervals, (n,) each, sorted by x; NaN where unknown."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """All finite values of y and of the intervals."""
        values = np.concatenate([self.y, self.low, self.high])
        return values[np.isfinite(values)]


def read_estimates(rows: Iterable[Mapping[str, Any]], x: str = "x") -> Estimates:
    """Reads mappings with ``estimate``, ``low`` and ``high``; those without a finite position ``x`` are left out."""
    columns = (x, "estimate", "low", "high")
    found = sorted([number(row.get(name)) for name in columns] for row in rows if math.isfinite(number(row.get(x))))
    return Estimates(*np.array(found, np.float64).reshape(-1, 4).T)


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


def round_marks(axis: Axis) -> list[float]:
    """Returns 1, 2 and 5 times powers of ten on a logarithmic axis, or powers alone where these are many."""
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    steps = (1, 2, 5) if axis.high < 300 * axis.low else (1,)
    marks = [step * 10.0**power for power in powers for step in steps]
    return [mark for mark in marks if axis.low <= mark <= axis.high]


def spread(marks: Sequence[float], axis: Axis) -> list[float]:
    """Returns the marks from the right that are at least `LEAST_GAP` apart."""
    kept: list[float] = []
    for mark in sorted(marks, reverse=True):
        if not kept or abs(float(axis.place(kept[-1]) - axis.place(mark))) >= LEAST_GAP:
            kept.append(mark)
    return kept[::-1]


def minor_marks(axis: Axis, floor: float) -> Markup:
    """Draws the minor marks of a logarithmic horizontal axis, 1 to 9 times powers of ten, and longer ones at its labels."""
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    minor = [step * 10.0**power for power in powers for step in range(1, 10)]
    places = [(float(axis.place(mark)), 3.0) for mark in minor if axis.low <= mark <= axis.high]
    places += [(float(axis.place(mark)), 5.0) for mark in axis.ticks()]
    return join(*(draw.line(x, floor, x, floor + long, "muted", stroke_width=0.8) for x, long in places))


def band(points: Estimates, across: Axis, up: Axis, colour: str) -> Markup | None:
    """Draws the area between the ends of the intervals, over runs of at least two neighbouring points."""
    known = np.isfinite(points.low) & np.isfinite(points.high)
    runs = np.split(np.arange(len(known)), np.flatnonzero(~known))
    outlines = []
    for run in (run[known[run]] for run in runs):
        if len(run) > 1:
            x = across.place(np.concatenate([points.x[run], points.x[run][::-1]]))
            y = up.place(np.concatenate([points.high[run], points.low[run][::-1]]))
            outlines.append("M" + "L".join(f"{right:.1f} {down:.1f}" for right, down in zip(x, y)) + "Z")
    return tag("path", d="".join(outlines), fill=f"var(--{colour})", opacity=0.16) if outlines else None


def error_bars(points: Estimates, across: Axis, up: Axis, colour: str) -> Markup:
    """Draws a vertical bar with caps over each interval that is known."""
    parts = []
    for x, low, high in zip(points.x, points.low, points.high):
        if math.isfinite(low) and math.isfinite(high):
            at, bottom, top = float(across.place(x)), float(up.place(low)), float(up.place(high))
            caps = (bottom, top) if bottom - top > LEAST_CAPPED else ()
            d = f"M{at:.1f} {bottom:.1f}V{top:.1f}" + "".join(f"M{at - CAP:.1f} {y:.1f}h{2 * CAP}" for y in caps)
            parts.append(tag("path", d=d, stroke=f"var(--{colour})", stroke_width=1.3, fill="none"))
    return join(*parts)


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


def zone_strip(
    value: tuple[float, float, float],
    zone: tuple[float, float],
    words: Callable[[float], str],
    *,
    colour: str,
    none: float,
    label: str,
    says: str,
    log: bool = False,
) -> Markup:
    """Draws an estimate and its interval over the zone in which a claim holds, on a scale of its own.

    Args:
        value: estimate, low and high, finite.
        zone: the ends of the zone; infinite where it is open.
        words: formats a value of the scale.
        none: the value of no effect, marked by a line.
        label: stands above the zone.
        log: whether the scale is logarithmic; all values must be positive then.
    """
    across = _scale([*value, *(end for end in zone if math.isfinite(end)), none], words, log)
    floor, top = 46.0, 20.0
    ends = [float(across.place(min(max(end, across.low), across.high))) for end in zone]
    parts = [draw.rectangle(ends[0], top, ends[1] - ends[0], floor - top, "emerald", opacity=0.13)]
    for end, at in zip(zone, ends):
        if math.isfinite(end):
            parts.append(draw.line(at, top, at, floor, "emerald", stroke_width=1.4, stroke_dasharray="3 2"))
    parts.append(draw.text(*_inside((ends[0] + ends[1]) / 2, label), label, size=11.5, anchor="middle"))
    parts.append(draw.line(across.start, floor, across.stop, floor, "muted", stroke_width=0.8))
    at = float(across.place(none))
    parts.append(draw.line(at, top, at, floor, "muted", stroke_width=1))
    for mark in across.ticks():
        x = float(across.place(mark))
        parts.append(draw.line(x, floor, x, floor + 4, "muted", stroke_width=0.8))
        parts.append(draw.text(x, floor + 16, words(mark), size=11.5, anchor="middle"))
    estimate, low, high = (float(across.place(number)) for number in value)
    parts.append(draw.rectangle(low, 29.5, max(high - low, 2), 7, colour, rx=3.5, opacity=0.5))
    parts.append(draw.dot(estimate, 33, colour, words(value[0]), radius=5))
    return draw.svg(STRIP, floor + 22, says, *parts)


def _inside(x: float, words: str) -> tuple[float, float]:
    """Returns where a centred line of text at ``x`` fits into the width of a strip, above it."""
    half = 6.2 * draw.length_of(words)
    return min(max(x, half), STRIP - half), 13.0


def _scale(values: Sequence[float], words: Callable[[float], str], log: bool) -> Axis:
    """Returns a horizontal axis around all values."""
    reach = {"start": 14.0, "stop": STRIP - 14.0, "words": words}
    if log:
        low, high = math.log2(min(values)), math.log2(max(values))
        margin = 0.08 * (high - low) or 1.0
        low, high = low - margin, high + margin
        every = math.ceil((high - low) / 7)
        powers = range(math.ceil(low / every) * every, math.floor(high) + 1, every)
        return Axis(2.0**low, 2.0**high, log=True, marks=[2.0**power for power in powers], **reach)
    margin = 0.08 * (max(values) - min(values)) or 0.1 * abs(values[0]) or 1.0
    return Axis(min(values) - margin, max(values) + margin, **reach)
