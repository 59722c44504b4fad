"""Draws the charts of reports as SVG, for light and dark backgrounds, without a plotting library.

Colours are names of `LIGHT` and `DARK`, written as ``var(--name)``; `standalone` resolves them for separate files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.analysis.palette import LIGHT
from vitrail.markup import Markup, join, tag
from vitrail.tasks.classification.metric import Bins
from vitrail.tasks.metric import divide
from vitrail.text import percent, plural, shorten, whole

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 42, 36  # margins of a chart, in SVG units
DASHES = "4 4"
WIDEST = 1.18  # width of the letters of a wide or bold font, relative to the estimated width
LETTER = 0.58  # approximate mean width of a letter, relative to the font size
NARROW, BROAD = "fijlrtI.,:;'|() ", "mwMW@%"


@dataclass(frozen=True)
class Series:
    """One line of a chart, x and y (n,); non-finite values of y are gaps. ``marked`` draws a dot at each point.

    ``smooth`` adds a moving average to a long line. ``dashed`` marks a reference line.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    colour: str
    marked: bool = False
    smooth: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """Maps data to SVG units, linearly or logarithmically, with ticks at ``marks`` or, without marks, at round values."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    least_step: float = 0.0
    marks: Sequence[float] = ()
    words: Callable[[float], str] = field(default=lambda value: f"{value:g}")

    def place(self, value: np.ndarray | float) -> np.ndarray:
        low, high, value = (np.log10(number) if self.log else number for number in (self.low, self.high, value))
        return self.start + (np.asarray(value) - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.marks:
            return list(self.marks)
        if self.log:
            low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            every = max(1, (high - low) // 4)
            powers = [10.0**power for power in range(low, high + 1, every)]
            return [power for power in powers if self.low <= power * 1.0001 and power <= self.high * 1.0001]
        step = max(round_step((self.high - self.low) / 4), self.least_step)
        first = math.ceil(self.low / step - 1e-9)
        return [(first + index) * step for index in range(int((self.high - first * step) / step + 1e-9) + 1)]


def round_step(wish: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 times a power of ten that is not below ``wish``."""
    power = 10.0 ** math.floor(math.log10(wish))
    return power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= wish * 0.9999)


def standalone(drawing: Markup) -> str:
    """Returns the drawing as a self-contained SVG file in the light colours, without CSS variables."""
    style = f"text{{font-family:{SANS}}} svg{{background:{LIGHT['card']}}}"
    styled = drawing.replace(">", f"><style>{style}</style>", 1)
    return re.sub(r"var\(--(\w+)\)", lambda variable: LIGHT.get(variable[1], variable[0]), styled) + "\n"


def svg(width: float, height: float, says: str, *parts: object, **more: object) -> Markup:
    """Returns an SVG element; ``says`` is the description for screen readers."""
    box = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {height:g}", "role": "img"}
    return tag("svg", tag("title", says), *parts, **box, **more)


def text(
    x: float,
    y: float,
    words: object,
    *,
    colour: str = "muted",
    size: float | str = 11,
    anchor: str = "start",
    **more: object,
) -> Markup:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    return tag("text", words, **where, fill=f"var(--{colour})", font_size=size, text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "rule", **more: object) -> Markup:
    points = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", **{key: f"{value:.1f}" for key, value in points.items()}, stroke=f"var(--{colour})", **more)


def rectangle(x: float, y: float, width: float, height: float, colour: str, *inside: object, **more: object) -> Markup:
    box = {"x": x, "y": y, "width": width, "height": height}
    return tag("rect", *inside, **{key: f"{value:.1f}" for key, value in box.items()}, fill=f"var(--{colour})", **more)


def thin(x: np.ndarray, y: np.ndarray, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Reduces a line to about ``most`` points by averaging runs of equal length; a run without finite values is a gap."""
    run = max(1, math.ceil(len(x) / most))
    starts, finite = np.arange(0, len(x), run), np.isfinite(y)
    lengths = np.diff(np.append(starts, len(x)))
    sums = np.add.reduceat(np.where(finite, y, 0), starts)
    return np.add.reduceat(x, starts) / lengths, divide(sums, np.add.reduceat(finite.astype(float), starts))


def smooth_values(y: np.ndarray, window: int) -> np.ndarray:
    """Returns the centred moving average of the finite values; gaps are preserved."""
    finite, kernel = np.isfinite(y), np.ones(window)
    sums = np.convolve(np.where(finite, y, 0), kernel, "same")
    return np.where(finite, divide(sums, np.convolve(finite.astype(float), kernel, "same")), np.nan)


def path(
    x: np.ndarray, y: np.ndarray, colour: str, *, width: float = 1.8, opacity: float = 1, **more: object
) -> Markup:
    """Returns a polyline with gaps at non-finite y; a point between two gaps is drawn as a dot."""
    moves, before = [], False
    for across, down in zip(x, y):
        if here := bool(np.isfinite(down)):
            moves.append(f"{'L' if before else 'M'}{across:.1f} {down:.1f}" + ("" if before else "h0"))
        before = here
    style = {"stroke": f"var(--{colour})", "stroke_width": width, "stroke_linecap": "round", "stroke_linejoin": "round"}
    return tag("path", d=" ".join(moves), fill="none", opacity=f"{opacity:g}", **style, **more)


def vertical_axis(
    values: np.ndarray, words: Callable[[float], str], *, least: float | None, most: float | None
) -> Axis:
    """Returns an axis that fits ``values``, logarithmic if the largest value would flatten the others."""
    values = values[np.isfinite(values)]
    values = values if len(values) else np.array([0.0, 1.0])
    reach = HEIGHT - BOTTOM, TOP
    high, positive = values.max(), values[values > 0]
    if most is None and len(positive) and positive.min() < high and high > 30 * np.median(positive):
        return Axis(10.0 ** math.floor(math.log10(positive.min())), high * 1.2, *reach, log=True, words=words)
    low = values.min() if least is None else min(least, values.min())
    high = high if most is None else most
    if low >= high:
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    step = round_step((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Axis(low, high, *reach, words=words)


def log_axis(values: np.ndarray, reach: tuple[float, float], words: Callable[[float], str]) -> Axis:
    """Returns a logarithmic axis around all values, with marks at 1, 2 and 5 times powers of ten."""
    low, high = float(values.min()) / 1.25, float(values.max()) * 1.25
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 100 * low else (1,)
    marks = [step * 10.0**power for power in powers for step in steps]
    return Axis(low, high, *reach, log=True, words=words, marks=[mark for mark in marks if low <= mark <= high])


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    words: Callable[[float], str] = "{:g}".format,
    least: float | None = 0.0,
    most: float | None = None,
) -> Markup:
    """Draws lines against the training step; ``least`` and ``most`` fix the ends of the vertical axis."""
    steps = np.concatenate([line.x for line in series])
    start, stop = float(steps.min()), float(steps.max())
    alone = start == stop  # a single record is centred
    across = Axis(start - alone, stop + alone, LEFT, WIDTH - RIGHT, least_step=1, words=whole)
    up = vertical_axis(np.concatenate([line.y for line in series]), words, least=least, most=most)
    ends = [f"{line.label} ends at {words(last[-1])}" for line in series if len(last := line.y[np.isfinite(line.y)])]
    says = f"{title} over {plural(int(stop), 'step')}: {', '.join(ends) or 'no finite value'}"
    return chart(title, series, across, up, "step", says)


def chart(
    title: str, series: Sequence[Series], across: Axis, up: Axis, label: str, says: str, *below: object
) -> Markup:
    """Draws lines on two axes. ``label`` names the horizontal axis; ``below`` is drawn under the lines."""
    drawn = join(*(draw_series(line, across, up, label) for line in series))
    return svg(WIDTH, up.start + BOTTOM, says, heading(title, series), axes(across, up, label), *below, drawn)


def draw_series(series: Series, across: Axis, up: Axis, label: str) -> Markup:
    """Draws one line; a noisy line is drawn faintly below its moving average."""
    x, y = series.x, np.where(series.y > 0, series.y, np.nan) if up.log else series.y
    x, y = (x, y) if series.marked else thin(x, y)
    noisy = series.smooth and len(x) > 40
    style: dict[str, Any] = (
        {"width": 1.2, "opacity": 0.3} if noisy else {"stroke_dasharray": DASHES if series.dashed else None}
    )
    parts = [path(across.place(x), up.place(y), series.colour, **style)]
    if noisy:
        parts.append(path(across.place(x), up.place(smooth_values(y, len(y) // 25 | 1)), series.colour))
    if series.marked or len(x) == 1:
        for step, value in zip(x[np.isfinite(y)], y[np.isfinite(y)]):
            hover = f"{label} {step:,.0f}: {up.words(value)}"
            parts.append(dot(float(across.place(step)), float(up.place(value)), series.colour, hover))
    return join(*parts)


def dot(x: float, y: float, colour: str, says: str, radius: float = 2.4, **more: object) -> Markup:
    where = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": radius}
    return tag("circle", tag("title", says), **where, fill=f"var(--{colour})", **more)


def heading(title: str, series: Sequence[Series] = ()) -> Markup:
    """Returns the title of a chart at the left and its legend at the right."""
    parts, right = [text(0, 14, title, colour="ink", size=13.5, font_weight=600)], float(WIDTH - RIGHT)
    for item in reversed(series if len(series) > 1 else ()):
        parts.append(text(right, 14, item.label, size=11.5, anchor="end"))
        right -= 11.5 * length_of(item.label) + 8
        style = {"stroke_width": 1.8, "stroke_dasharray": DASHES} if item.dashed else {"stroke_width": 2.4}
        parts.append(line(right - 16, 10, right, 10, item.colour, stroke_linecap="round", **style))
        right -= 30
    return join(*parts)


def legend(series: Sequence[Series]) -> tuple[Markup, float]:
    """Returns the names of all lines in rows below the title, and where the plot may begin."""
    parts, x, y = [], 0.0, 34.0
    for item in series:
        name = shorten(item.label, 34)
        wide = 22 + 11.5 * length_of(name) + 18
        if x and x + wide > WIDTH:
            x, y = 0.0, y + 17
        style = {"stroke_width": 1.8, "stroke_dasharray": DASHES} if item.dashed else {"stroke_width": 2.4}
        parts.append(line(x, y - 4, x + 16, y - 4, item.colour, stroke_linecap="round", **style))
        parts.append(text(x + 22, y, name, size=11.5))
        x += wide
    return join(*parts), y + 20


def length_of(words: str) -> float:
    """Estimates the width of a line of text, relative to the font size."""
    return sum(0.3 if letter in NARROW else 0.95 if letter in BROAD else 0.6 for letter in words)


def fit(words: str, width: float, size: float) -> str:
    """Truncates a line of text to ``width`` SVG units at a font size, also in fonts wider than usual, with an ellipsis."""
    kept = next(count for count in range(len(words), -1, -1) if WIDEST * length_of(words[:count]) * size <= width)
    return shorten(words, max(kept, 1))


def axes(across: Axis, up: Axis, label: str) -> Markup:
    """Returns horizontal grid lines with their values, and the tick labels of the horizontal axis."""
    bottom, parts = up.start, []
    for value in up.ticks():
        y = float(up.place(value))
        parts += [line(across.start, y, across.stop, y), text(across.start - 8, y + 3.8, up.words(value), anchor="end")]
    for value in across.ticks():
        x = float(across.place(value))
        parts.append(text(x, bottom + 17, across.words(value), anchor="middle"))
    return join(*parts, text(across.stop, bottom + 32, label, anchor="end", font_style="italic"))


def confusion_chart(
    counts: np.ndarray, classes: Sequence[str], *, noun: str = "image", in_percent: bool = False
) -> Markup:
    """Draws the confusion matrix (K, K), rows are true classes. Blue is correct, red is wrong; darker is a larger share.

    Args:
        noun: what is counted, in the singular.
        in_percent: cells show the share of their row instead of the count.
    """
    count = len(classes)
    cell = min(60.0, max(13.0, 400 / count))
    names, size = [shorten(name, 16) for name in classes], min(12.0, cell * 0.62)
    longest = max(map(len, names)) * size * LETTER
    flat = longest < cell
    left, top = 22 + max(longest, 14), 46 if flat else 34 + longest * 0.8
    side, shares = cell * count, divide(counts, counts.sum(1, keepdims=True).repeat(count, 1))
    parts = [text(left, 14, "predicted →", font_style="italic"), text(0, top - 7, "true ↓", font_style="italic")]
    for index, name in enumerate(names):
        x, y = left + (index + 0.5) * cell, top + (index + 0.5) * cell
        turned = {"anchor": "middle"} if flat else {"transform": f"rotate(-45 {x:.1f} {top - 6:.1f})"}
        parts.append(text(left - 8, y + size * 0.36, name, colour="ink", size=size, anchor="end"))
        parts.append(text(x, top - 7, name, colour="ink", size=size, **turned))
        for column in range(count):
            number, share = int(counts[index, column]), float(shares[index, column])
            named = plural(number, noun)
            hover = f"{named} of {classes[index]} predicted as {classes[column]} ({percent(share)})"
            shown = f"{share * 100:.0f}" if in_percent else whole(number)
            where, colour = (left + column * cell, y - cell / 2, cell), "cobalt" if index == column else "ruby"
            parts.append(confusion_cell(where, shown if number else "", share, colour, hover))
    right, total = int(np.trace(counts)), plural(int(counts.sum()), noun)
    says = f"Confusion matrix of {plural(count, 'class', 'classes')}: {right:,} of {total} on the diagonal"
    width = left + side + (4 if flat else longest * 0.75)
    return svg(width, top + side + 4, says, *parts, style=f"width:{width * 1.15:.0f}px;max-width:100%")


def confusion_cell(where: tuple[float, float, float], shown: str, share: float, colour: str, hover: str) -> Markup:
    """Draws one cell. Opacity grows with the square root of the share, so that single mistakes stay visible."""
    x, y, cell = where
    side = cell - 1.5
    if not shown:
        return rectangle(x + 0.75, y + 0.75, side, side, "rule", rx=2, opacity=0.4)
    depth = math.sqrt(share) * 0.9 + 0.06
    pane = rectangle(x + 0.75, y + 0.75, side, side, colour, tag("title", hover), rx=2, opacity=f"{depth:.2f}")
    if cell < 22:
        return pane
    size, ink = min(13.0, cell * 0.36), "card" if depth > 0.55 else "ink"
    number = {"colour": ink, "size": f"{size:.1f}", "anchor": "middle", "pointer_events": "none"}
    return join(pane, text(x + cell / 2, y + cell / 2 + size * 0.36, shown, **number))


def reliability_chart(bins: Bins) -> Markup:
    """Draws accuracy against confidence, with the gap to the diagonal coloured, and the number of predictions per bin."""
    height, floor = 340, 246.0
    across = Axis(0, 1, LEFT, WIDTH - RIGHT, words=lambda value: percent(value, 0))
    up = Axis(0, 1, floor, TOP - 10, words=lambda value: percent(value, 0))
    width = (across.stop - across.start) / len(bins.counts)
    parts = [axes(across, up, "confidence"), heading("Reliability diagram")]
    for index in np.flatnonzero(bins.counts):
        x, images = across.start + index * width + 1, int(bins.counts[index])
        accuracy, confidence = float(bins.accuracy[index]), float(bins.confidence[index])
        agreed, reached, claimed = (
            float(up.place(share)) for share in (min(accuracy, confidence), accuracy, confidence)
        )
        hover = f"{plural(images, 'prediction')}: mean confidence {percent(confidence)}, accuracy {percent(accuracy)}"
        tall = 44 * math.sqrt(images / bins.counts.max())
        gap = ("cobalt", 0.35) if accuracy > confidence else ("ruby", 0.5)
        panes = (
            rectangle(x, agreed, width - 2, floor - agreed, "cobalt", opacity=0.9),
            rectangle(x, min(reached, claimed), width - 2, abs(reached - claimed), gap[0], opacity=gap[1]),
            rectangle(x, 326 - tall, width - 2, tall, "muted", opacity=0.55),
        )
        parts.append(tag("g", tag("title", hover), *panes, opacity=0.4 if images < 5 else None))
    corner = (across.start, floor, across.stop, float(up.place(1)))
    parts += [
        line(*corner, "muted", stroke_dasharray=DASHES),
        text(LEFT, 338, "predictions per bin (square-root scale)", size=10),
    ]
    answers = plural(int(bins.counts.sum()), "prediction")
    says = f"Reliability diagram of {answers}: expected calibration error {percent(bins.error)}"
    return svg(WIDTH, height, says, *parts)


def interval_strip(value: float, low: float, high: float, baseline: float | None) -> Markup:
    """Draws a value in [0, 1] with its interval and the majority-class baseline."""
    says = f"{percent(value)} on a scale from 0 to 100, interval {percent(low)} to {percent(high)}"
    return strip(value, (low, high), baseline, "most frequent class", says)


def gain_strip(value: float, before: float | None, chance: float | None) -> Markup:
    """Draws a value in [0, 1] with its value before training and the chance level."""
    if before is None:
        return strip(value, (value, value), chance, "chance", f"{percent(value)} on a scale from 0 to 100")
    says = f"{percent(value)} on a scale from 0 to 100, {percent(before)} before training"
    return strip(value, (min(before, value), max(before, value)), chance, "chance", says)


def strip(value: float, stretch: tuple[float, float], baseline: float | None, named: str, says: str) -> Markup:
    """Draws a dot on a scale from 0 to 1, a highlighted range, and the named mark of a baseline."""
    across = Axis(0, 1, 6, WIDTH - 6)
    start, stop, spot = (float(across.place(share)) for share in (*stretch, value))
    parts = [line(across.start, 16, across.stop, 16, "rule", stroke_width=6, stroke_linecap="round")]
    parts.append(rectangle(start, 11, max(stop - start, 3), 10, "cobalt", rx=3, opacity=0.35))
    parts.append(dot(spot, 16, "cobalt", percent(value), radius=5))
    parts += [text(0, 40, "0"), text(WIDTH, 40, percent(1), anchor="end")]
    if baseline is not None:
        x, words = float(across.place(baseline)), f"{named}: {percent(baseline)}"
        parts.append(line(x, 8, x, 24, "muted", stroke_width=1.5))
        parts.append(text(min(max(x - 4, 14), WIDTH - 46 - LETTER * 11 * len(words)), 40, words))
    return svg(WIDTH, 46, says, *parts)
