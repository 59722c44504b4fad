"""Draws the charts of all pages as SVG, for light and dark backgrounds.

An `Axis` maps values to SVG units and knows its ticks; charts are drawn on one or two of them: the lines of `chart` and
`line_chart`, the dots of `scatter_chart`, the bars of `reliability_chart`, the intervals of `strip` and `zone_strip`. The cells
of `confusion_chart` and `heat_map` need none. Colours are names of `LIGHT` and `DARK`, written as ``var(--name)``; `standalone`
resolves them for separate files. A new form of chart needs this file alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from vitrail.analysis.palette import FONTS, LIGHT, map_colours
from vitrail.data.sources.contents import choose_evenly
from vitrail.markup import Markup, join, tag
from vitrail.tasks.classification.metric import Bins
from vitrail.tasks.metric import divide
from vitrail.text import percent, plural, shorten, whole

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 42, 36  # margins of a chart, in SVG units
WIDEST = 6  # characters of a number beside the vertical axis, beyond which it is written smaller
DASHES = "4 4"
LETTER = 0.58  # approximate mean width of a letter, relative to the font size
NARROW, BROAD = "fijlrtI.,:;'|() ", "mwMW@%"
STRIP = 380.0  # width of a strip with a zone, in SVG units
COLOURS = ("cobalt", "amber", "emerald", "ruby", "violet")  # of many lines, of which the second five are dashed
UNDEFINED = "no spatial queries"  # a cell or a layer without a value

Format = Callable[[float], str]


# --- axes ---


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
    words: Format = field(default=lambda value: f"{value:g}")

    def place(self, values: np.ndarray | float) -> np.ndarray:
        """Returns the coordinates of values (n,)."""
        low, high, values = (np.log10(each) if self.log else each for each in (self.low, self.high, values))
        return self.start + (np.asarray(values) - low) / (high - low) * (self.stop - self.start)

    def at(self, value: float) -> float:
        """Returns the coordinate of one value."""
        return float(self.place(value))

    def ticks(self) -> list[float]:
        if self.marks:
            return list(self.marks)
        if self.log:
            low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            powers = [10.0**power for power in range(low, high + 1, max(1, (high - low) // 4))]
            return [power for power in powers if self.low <= power * 1.0001 and power <= self.high * 1.0001]
        step = max(round_step((self.high - self.low) / 4), self.least_step)
        if self.least_step and step % self.least_step:  # 2.5 where only whole numbers occur
            step *= 2
        first = math.ceil(self.low / step - 1e-9)
        return [(first + index) * step for index in range(int((self.high - first * step) / step + 1e-9) + 1)]


def round_step(wish: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 times a power of ten that is not below ``wish``."""
    power = 10.0 ** math.floor(math.log10(wish))
    return power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= wish * 0.9999)


def horizontal_axis(low: float, high: float, **options: Any) -> Axis:
    """Returns an axis over the width of a chart."""
    return Axis(low, high, LEFT, WIDTH - RIGHT, **options)


def vertical_axis(values: np.ndarray, words: Format, *, least: float | None = 0.0, most: float | None = None) -> Axis:
    """Returns an axis over the height of a chart that fits ``values`` and ends at round values.

    It is logarithmic if ``most`` is open and the largest value would flatten the others. ``least`` is shown in any case;
    without it the axis begins at the smallest value.
    """
    floor, values = HEIGHT - BOTTOM, values[np.isfinite(values)]
    values = values if len(values) else np.array([0.0, 1.0])
    high, positive = values.max(), values[values > 0]
    if most is None and len(positive) and positive.min() < high and high > 30 * np.median(positive):
        low = 10.0 ** math.floor(math.log10(positive.min()))
        return Axis(low, high * 1.2, floor, TOP, log=True, words=words)
    low = values.min() if least is None else min(least, values.min())
    high = high if most is None else most
    if low >= high:
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    step = round_step((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Axis(low, high, floor, TOP, words=words)


def tight_axis(values: np.ndarray, words: Format, *, most: float | None = None, height: float = HEIGHT) -> Axis:
    """Returns a linear vertical axis from 0, or the minimum if negative, to ``most`` or just above the maximum."""
    values = values[np.isfinite(values)]
    top = values.max(initial=0.0) * 1.08 if most is None else most
    return Axis(min(0.0, values.min(initial=0.0)), top or 1.0, height - BOTTOM, TOP, words=words)


def log_axis(values: np.ndarray, start: float, stop: float, words: Format, *, marks: Sequence[float] = ()) -> Axis:
    """Returns a logarithmic axis around positive values with ``marks``, or marks at round values."""
    axis = Axis(float(values.min()) / 1.25, float(values.max()) * 1.25, start, stop, log=True, words=words)
    return replace(axis, marks=marks or round_marks(axis))


def round_marks(axis: Axis) -> list[float]:
    """Returns 1, 2 and 5 times powers of ten on a logarithmic axis, or powers alone where these are many."""
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    steps = (1, 2, 5) if axis.high < 100 * axis.low else (1,)
    marks = [step * 10.0**power for power in powers for step in steps]
    return [mark for mark in marks if axis.low <= mark <= axis.high]


def depth_axis(count: int, most: int = 16) -> Axis:
    """Returns the axis of ``count`` layers, with at most ``most`` labels."""
    return horizontal_axis(-0.5, count - 0.5, marks=np.arange(0.0, count, math.ceil(max(count, 1) / most)).tolist())


def axes(across: Axis, up: Axis, label: str) -> Markup:
    """Returns horizontal grid lines with their values, and the tick labels of the horizontal axis."""
    bottom, parts = up.start, []
    for value in up.ticks():
        y = up.at(value)
        words = up.words(value)
        size = 11 * min(1, WIDEST / max(len(words), 1))
        parts += [
            line(across.start, y, across.stop, y),
            text(across.start - 8, y + 3.8, words, anchor="end", size=size),
        ]
    parts += [text(across.at(value), bottom + 17, across.words(value), anchor="middle") for value in across.ticks()]
    return join(*parts, text(across.stop, bottom + 32, label, anchor="end", font_style="italic"))


# --- elements ---


def standalone(drawing: Markup) -> str:
    """Returns the drawing as a self-contained SVG file in the light colours, without CSS variables."""
    style = f"text{{font-family:{FONTS['sans']}}} svg{{background:{LIGHT['card']}}}"
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


def rectangle(x: float, y: float, width: float, height: float, fill: str, *inside: object, **more: object) -> Markup:
    """Returns a rectangle, ``fill`` the name of a colour of the page or ``#rrggbb``."""
    box = {"x": x, "y": y, "width": width, "height": height}
    fill = fill if fill.startswith("#") else f"var(--{fill})"
    return tag("rect", *inside, **{key: f"{value:.1f}" for key, value in box.items()}, fill=fill, **more)


def dot(x: float, y: float, colour: str, says: str, radius: float = 2.4, **more: object) -> Markup:
    where = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": radius}
    return tag("circle", tag("title", says), **where, fill=f"var(--{colour})", **more)


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


def length_of(words: str) -> float:
    """Estimates the width of a line of text, relative to the font size."""
    return sum(0.3 if letter in NARROW else 0.95 if letter in BROAD else 0.6 for letter in words)


# --- lines ---


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

    def list_points(self, words: Format = "{:.3g}".format, unit: str = "") -> str:
        """Lists all finite points as text, for screen readers."""
        pairs = zip(self.x.tolist(), self.y.tolist())
        return ", ".join(f"{words(y)} at {x:g}{unit and ' ' + unit}" for x, y in pairs if math.isfinite(y))


def tell_apart(lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[Series]:
    """Returns lines x and y, (n,) each, by name, in colours of their own."""
    return [
        Series(name, x, y, COLOURS[at % len(COLOURS)], marked=True, dashed=at >= len(COLOURS))
        for at, (name, (x, y)) in enumerate(lines.items())
    ]


def level_line(name: str, layers: np.ndarray, values: np.ndarray) -> Series:
    """Returns a dashed line with one level per layer, as levels differ between the stages of a pyramid."""
    x = np.stack([layers - 0.5, layers + 0.5, layers + 0.5], 1).ravel()
    y = np.stack([values, values, np.full(len(values), math.nan)], 1).ravel()
    return Series(name, x, y, "muted", dashed=True)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    words: Format = "{:g}".format,
    least: float | None = 0.0,
    most: float | None = None,
) -> Markup:
    """Draws lines against the training step; ``least`` and ``most`` fix the ends of the vertical axis."""
    steps = np.concatenate([line.x for line in series])
    start, stop = float(steps.min()), float(steps.max())
    single = start == stop  # a single record is centred
    across = horizontal_axis(start - single, stop + single, least_step=1, words=whole)
    up = vertical_axis(np.concatenate([line.y for line in series]), words, least=least, most=most)
    ends = [f"{line.label} ends at {words(last[-1])}" for line in series if len(last := line.y[np.isfinite(line.y)])]
    says = f"{title} over {plural(int(stop), 'step')}: {', '.join(ends) or 'no finite value'}"
    return chart(title, series, across, up, "step", says)


def chart(
    title: str,
    series: Sequence[Series],
    across: Axis,
    up: Axis,
    label: str,
    says: str,
    *below: object,
    rows: bool = False,
) -> Markup:
    """Draws lines on two axes.

    Args:
        label: names the horizontal axis.
        below: is drawn under the lines.
        rows: puts the legend in rows below the title, for many or long names, and moves the chart down by them.
    """
    names, top = legend(series) if rows else (None, TOP)
    up = replace(up, start=up.start + top - TOP, stop=up.stop + top - TOP)
    drawn = join(*(draw_series(line, across, up, label.partition(",")[0]) for line in series))
    head = heading(title, () if rows else series)
    return svg(WIDTH, up.start + BOTTOM, says, head, names, axes(across, up, label), *below, drawn)


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
            parts.append(dot(across.at(step), up.at(value), series.colour, hover))
    return join(*parts)


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


def heading(title: str, series: Sequence[Series] = ()) -> Markup:
    """Returns the title of a chart at the left and its legend at the right."""
    parts, right = [text(0, 14, title, colour="ink", size=13.5, font_weight=600)], float(WIDTH - RIGHT)
    for item in reversed(series if len(series) > 1 else ()):
        parts.append(text(right, 14, item.label, size=11.5, anchor="end"))
        right -= 11.5 * length_of(item.label) + 8
        parts.append(_draw_key(right - 16, 10, item))
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
        parts += [_draw_key(x, y - 4, item), text(x + 22, y, name, size=11.5)]
        x += wide
    return join(*parts), y + 20


def _draw_key(x: float, y: float, item: Series) -> Markup:
    style = {"stroke_width": 1.8, "stroke_dasharray": DASHES} if item.dashed else {"stroke_width": 2.4}
    return line(x, y, x + 16, y, item.colour, stroke_linecap="round", **style)


# --- intervals ---


def strip(value: float, ends: tuple[float, float], says: str, baseline: float | None = None, named: str = "") -> Markup:
    """Draws a value on a scale from 0 to 1, a highlighted range, and the mark of a baseline with its name."""
    across = Axis(0, 1, 6, WIDTH - 6)
    start, stop = map(across.at, ends)
    parts = [line(across.start, 16, across.stop, 16, "rule", stroke_width=6, stroke_linecap="round")]
    parts.append(rectangle(start, 11, max(stop - start, 3), 10, "cobalt", rx=3, opacity=0.35))
    parts.append(dot(across.at(value), 16, "cobalt", percent(value), radius=5))
    parts += [text(0, 40, "0"), text(WIDTH, 40, percent(1), anchor="end")]
    if baseline is not None:
        x, words = across.at(baseline), f"{named}: {percent(baseline)}"
        parts.append(line(x, 8, x, 24, "muted", stroke_width=1.5))
        parts.append(text(min(max(x - 4, 14), WIDTH - 46 - LETTER * 11 * len(words)), 40, words))
    return svg(WIDTH, 46, f"{percent(value)} on a scale from 0 to 100{says}", *parts)


def zone_strip(
    value: tuple[float, float, float], zone: tuple[float, float], words: Format, *, colour: str, label: str, says: str
) -> Markup:
    """Draws an estimate and its interval over the zone in which a claim holds, on a scale of its own, with a line at 0.

    Args:
        value: estimate, low and high, finite.
        zone: the ends of the zone; infinite where it is open.
        words: formats a value of the scale.
        label: stands above the zone.
    """
    shown = [*value, *(end for end in zone if math.isfinite(end)), 0.0]
    margin = 0.08 * (max(shown) - min(shown)) or 1.0
    across = Axis(min(shown) - margin, max(shown) + margin, 14, STRIP - 14, words=words)
    floor, top = 46.0, 20.0
    ends = [across.at(min(max(end, across.low), across.high)) for end in zone]
    parts = [rectangle(ends[0], top, ends[1] - ends[0], floor - top, "emerald", opacity=0.13)]
    for end, x in zip(zone, ends):
        if math.isfinite(end):
            parts.append(line(x, top, x, floor, "emerald", stroke_width=1.4, stroke_dasharray="3 2"))
    half = 6.2 * length_of(label)  # the label stays inside of the strip
    middle = min(max((ends[0] + ends[1]) / 2, half), STRIP - half)
    parts.append(text(middle, 13, label, size=11.5, anchor="middle"))
    parts.append(line(across.start, floor, across.stop, floor, "muted", stroke_width=0.8))
    parts.append(line(across.at(0), top, across.at(0), floor, "muted", stroke_width=1))
    for mark in across.ticks():
        x = across.at(mark)
        parts.append(line(x, floor, x, floor + 4, "muted", stroke_width=0.8))
        parts.append(text(x, floor + 16, words(mark), size=11.5, anchor="middle"))
    estimate, low, high = map(across.at, value)
    parts.append(rectangle(low, 29.5, max(high - low, 2), 7, colour, rx=3.5, opacity=0.5))
    parts.append(dot(estimate, 33, colour, words(value[0]), radius=5))
    return svg(STRIP, floor + 22, says, *parts)


# --- bars ---


def reliability_chart(bins: Bins) -> Markup:
    """Draws accuracy against confidence, with the gap to the diagonal coloured, and the number of predictions per bin."""
    height, floor = 340, 246.0
    across = horizontal_axis(0, 1, words=lambda value: percent(value, 0))
    up = Axis(0, 1, floor, TOP - 10, words=lambda value: percent(value, 0))
    width = (across.stop - across.start) / len(bins.counts)
    parts = [axes(across, up, "confidence"), heading("Reliability diagram")]
    for index in np.flatnonzero(bins.counts):
        x, images = across.start + index * width + 1, int(bins.counts[index])
        accuracy, confidence = float(bins.accuracy[index]), float(bins.confidence[index])
        agreed, reached, claimed = map(up.at, (min(accuracy, confidence), accuracy, confidence))
        hover = f"{plural(images, 'prediction')}: mean confidence {percent(confidence)}, accuracy {percent(accuracy)}"
        tall = 44 * math.sqrt(images / bins.counts.max())
        gap = ("cobalt", 0.35) if accuracy > confidence else ("ruby", 0.5)
        panes = (
            rectangle(x, agreed, width - 2, floor - agreed, "cobalt", opacity=0.9),
            rectangle(x, min(reached, claimed), width - 2, abs(reached - claimed), gap[0], opacity=gap[1]),
            rectangle(x, 326 - tall, width - 2, tall, "muted", opacity=0.55),
        )
        parts.append(tag("g", tag("title", hover), *panes, opacity=0.4 if images < 5 else None))
    parts.append(line(across.start, floor, across.stop, up.at(1), "muted", stroke_dasharray=DASHES))
    parts.append(text(LEFT, 338, "predictions per bin (square-root scale)", size=10))
    answers = plural(int(bins.counts.sum()), "prediction")
    says = f"Reliability diagram of {answers}: expected calibration error {percent(bins.error)}"
    return svg(WIDTH, height, says, *parts)


def scatter_chart(title: str, true: np.ndarray, predicted: np.ndarray, most: int = 1000) -> Markup:
    """Draws predicted against true values, (n,) each, and the line where they are equal; at most ``most``, spread evenly."""
    height, both = 340, np.concatenate([true, predicted])
    finite = both[np.isfinite(both)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    margin = 0.05 * (high - low) or 1.0
    across = horizontal_axis(low - margin, high + margin)
    up = Axis(across.low, across.high, height - BOTTOM, TOP)
    diagonal = line(across.start, up.start, across.stop, up.stop, "muted", stroke_dasharray=DASHES)
    shown = [place for place in choose_evenly(len(true), most).tolist() if np.isfinite(predicted[place])]
    dots = (
        dot(across.at(x), up.at(y), "cobalt", f"true {x:.4g}, predicted {y:.4g}", opacity=0.6)
        for x, y in zip(true[shown].tolist(), predicted[shown].tolist())
    )
    says = f"{title}: predicted against true values of {plural(len(true), 'image')}"
    return svg(WIDTH, height, says, heading(f"{title}, predicted"), axes(across, up, "true"), diagonal, *dots)


# --- cells ---


def confusion_chart(
    counts: np.ndarray, classes: Sequence[str], *, noun: str = "image", in_percent: bool = False
) -> Markup:
    """Draws the confusion matrix (K, K), rows are true classes. Blue is correct, red is wrong; darker is a larger share.

    Args:
        noun: what is counted, in the singular.
        in_percent: cells show the share of their row instead of the count.
    """
    count = len(classes)
    side = min(60.0, max(13.0, 400 / count))
    names, size = [shorten(name, 16) for name in classes], min(12.0, side * 0.62)
    longest = max(map(len, names)) * size * LETTER
    flat = longest < side
    left, top = 22 + max(longest, 14), 46 if flat else 34 + longest * 0.8
    shares = divide(counts, counts.sum(1, keepdims=True).repeat(count, 1))
    parts = [text(left, 14, "predicted →", font_style="italic"), text(0, top - 7, "true ↓", font_style="italic")]
    for row, name in enumerate(names):
        x, y = left + (row + 0.5) * side, top + row * side
        turned = {"anchor": "middle"} if flat else {"transform": f"rotate(-45 {x:.1f} {top - 6:.1f})"}
        parts.append(text(left - 8, y + side / 2 + size * 0.36, name, colour="ink", size=size, anchor="end"))
        parts.append(text(x, top - 7, name, colour="ink", size=size, **turned))
        for column in range(count):
            box, held, share = (
                (left + column * side, y, side, side),
                int(counts[row, column]),
                float(shares[row, column]),
            )
            if not held:
                parts.append(cell(box, "rule", opacity=0.4))
                continue
            # opacity grows with the square root of the share, so that single mistakes stay visible
            depth = math.sqrt(share) * 0.9 + 0.06
            hover = f"{plural(held, noun)} of {classes[row]} predicted as {classes[column]} ({percent(share)})"
            shown = f"{share * 100:.0f}" if in_percent else whole(held)
            colour, ink = "cobalt" if row == column else "ruby", "var(--card)" if depth > 0.55 else "var(--ink)"
            digits = shown if side >= 22 else ""
            parts.append(cell(box, colour, hover, digits, ink, min(13.0, side * 0.36), opacity=f"{depth:.2f}"))
    right, total = int(np.trace(counts)), plural(int(counts.sum()), noun)
    says = f"Confusion matrix of {plural(count, 'class', 'classes')}: {right:,} of {total} on the diagonal"
    width = left + side * count + (4 if flat else longest * 0.75)
    return svg(width, top + side * count + 4, says, *parts, style=f"width:{width * 1.15:.0f}px;max-width:100%")


def heat_map(title: str, values: Sequence[np.ndarray]) -> Markup:
    """Draws shares (H,) of each layer on the scale from 0 to 1: one column per layer, one row per head."""
    rows, left = max(map(len, values)), 40.0
    width, height = min(34.0, (WIDTH - left) / len(values)), min(24.0, max(8.0, 320 / rows))
    parts = [heading(title), text(left - 8, 37, "head", anchor="end", font_style="italic")]
    for column, layer in enumerate(values):
        x = left + column * width
        if column in depth_axis(len(values)).marks:
            parts.append(text(x + width / 2, 37, column, anchor="middle"))
        for row, share in enumerate(np.asarray(layer, np.float64).tolist()):
            known = math.isfinite(share)
            says = f"layer {column}, head {row}: {f'{share:.2f}' if known else UNDEFINED}"
            digits = f"{share:.2f}" if known and width >= 24 and height >= 13 else ""
            ink = LIGHT["ink"] if share > 0.5 else LIGHT["paper"]
            parts.append(cell((x, 44 + row * height, width, height), paint(share), says, digits, ink))
    for row in range(0, rows, math.ceil(14 / height)):
        parts.append(text(left - 8, 44 + (row + 0.5) * height + 3.8, row, anchor="end"))
    below = 44 + rows * height
    parts.append(text(left + len(values) * width, below + 17, "layer", anchor="end", font_style="italic"))
    says = f"{title}: {plural(len(values), 'layer')} of up to {plural(rows, 'head')}"
    return svg(WIDTH, below + 24, says, *parts)


def cell(
    box: tuple[float, float, float, float],
    fill: str,
    says: str = "",
    digits: str = "",
    ink: str = "",
    size: float = 10.5,
    **more: object,
) -> Markup:
    """Draws one cell of a grid at (x, y, width, height), ``says`` for the pointer and ``digits`` in its middle."""
    x, y, width, height = box
    pane = rectangle(
        x + 0.75, y + 0.75, width - 1.5, height - 1.5, fill, tag("title", says) if says else None, rx=2, **more
    )
    if not digits:
        return pane
    middle = {"x": f"{x + width / 2:.1f}", "y": f"{y + height / 2 + size * 0.36:.1f}", "text_anchor": "middle"}
    return join(pane, tag("text", digits, **middle, font_size=f"{size:.1f}", fill=ink, pointer_events="none"))


def paint(level: float) -> str:
    return "#" + bytes(map_colours(np.array(level)).tolist()).hex()


def colour_scale(low: float, high: float, label: str) -> Markup:
    """Draws the colour scale from ``low`` to ``high`` with its label."""
    steps, wide = 92, WIDTH / 92
    box = {"y": 0, "width": wide, "height": 9, "shape_rendering": "crispEdges"}
    bar = join(*(tag("rect", x=step * wide, **box, fill=paint(step / (steps - 1))) for step in range(steps)))
    frame = tag("rect", y=0.5, x=0.5, width=WIDTH - 1, height=8, fill="none", stroke="var(--rule)")
    words = (text(0, 24, f"{low:g}"), text(WIDTH / 2, 24, label, anchor="middle"))
    end = text(WIDTH, 24, f"{high:g}", anchor="end")
    return svg(WIDTH, 28, f"Colour scale from {low:g} to {high:g}: {label}", bar, frame, *words, end)


def name_gaps(gaps: Sequence[bool], across: Axis, up: Axis) -> list[Markup]:
    """Returns a vertical label for each run of layers without a value."""
    words, first = [], 0
    for is_gap, run in groupby(gaps):
        last = first + len(list(run))
        if is_gap:
            x, y = across.at((first + last - 1) / 2) + 3.5, (up.start + up.stop) / 2
            words.append(text(x, y, UNDEFINED, anchor="middle", transform=f"rotate(-90 {x:.1f} {y:.1f})"))
        first = last
    return words
