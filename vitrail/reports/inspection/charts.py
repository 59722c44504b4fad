"""The charts of an inspection, as SVG.

L attention layers, H heads per layer; the stages of a pyramid differ in H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from vitrail.analysis.cost import CostPoint
from vitrail.analysis.equivariance import Response
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.palette import LIGHT, map_colours
from vitrail.markup import Markup, join, tag
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, Series
from vitrail.text import plural

TALL = 300  # height of the chart with one dot per head
MOST_MARKS = 16  # labels on the axis of layers
BRIGHT = 0.5  # level of the colour scale above which labels are dark
HOLLOW = "no spatial queries"


def distance_chart(heads: Sequence[HeadFigures], title: str = "Attention distance", *, highest: float = 0.0) -> Markup:
    """Draws the mean attention distance against depth, one dot per head (ViT paper, figure 7, right, and figure 11). The
    vertical axis reaches at least to ``highest`` pixels.
    """
    layers, distances = np.arange(float(len(heads))), [np.asarray(layer.distance, np.float64) for layer in heads]
    uniform = np.array([layer.uniform for layer in heads])
    values = np.concatenate([*distances, uniform, [highest]])
    up = _linear_axis(values, "{:g} px".format, height=TALL)
    across = _depth_axis(len(heads))
    means = Series("mean over heads", layers, np.array([layer.mean() for layer in distances]), "amber")
    radius, dots = min(3.4, 0.28 * float(across.place(2) - across.place(1))), []
    for layer, layer_heads in zip(layers.tolist(), distances):
        for head, far in enumerate(layer_heads.tolist()):
            if math.isfinite(far):
                says = f"layer {layer:.0f}, head {head}: {far:.1f} px"
                place = float(across.place(layer)), float(up.place(far))
                dots.append(draw.dot(*place, "cobalt", says, radius, fill_opacity=0.75, class_="head"))
    words = _label_gaps([not np.isfinite(layer).any() for layer in distances], across, up)
    drawn = sum(np.isfinite(layer).any() for layer in distances)
    says = f"Mean attention distance of {plural(sum(map(len, distances)), 'head')} in {plural(int(drawn), 'layer')}"
    lines = [means, _level_line("uniform attention", layers, uniform)]
    return draw.chart(title, lines, across, up, "layer", says, *dots, *words)


def _label_gaps(gaps: Sequence[bool], across: Axis, up: Axis) -> list[Markup]:
    """Returns a vertical label for each run of layers without dots."""
    words, first = [], 0
    for is_gap, run in groupby(gaps):
        last = first + len(list(run))
        if is_gap:
            x, y = float(across.place((first + last - 1) / 2)) + 3.5, (up.start + up.stop) / 2
            words.append(draw.text(x, y, HOLLOW, anchor="middle", transform=f"rotate(-90 {x:.1f} {y:.1f})"))
        first = last
    return words


def shares_chart(title: str, models: Mapping[str, Sequence[float]]) -> Markup:
    """Draws one value for each layer of two models, named by ``models``, against the relative depth of the layer."""
    series = [
        Series(name, np.linspace(0, 1, len(values)), np.asarray(values, np.float64), colour, marked=True)
        for (name, values), colour in zip(models.items(), ("cobalt", "amber"))
    ]
    across = Axis(-0.03, 1.03, draw.LEFT, draw.WIDTH - draw.RIGHT, marks=[0, 0.25, 0.5, 0.75, 1])
    up = _linear_axis(np.concatenate([line.y for line in series] + [[1.0]]), "{:.2g}".format)
    says = f"{title}: " + "; ".join(f"{line.label} {_list_points(line.x, line.y, '')}" for line in series)
    return draw.chart(title, series, across, up, "relative depth", says)


def head_map(title: str, values: Sequence[np.ndarray]) -> Markup:
    """Draws shares (H,) of each layer as a heat map on the scale from 0 to 1: one column per layer, one row per head."""
    rows, left = max(map(len, values)), 40.0
    width = min(34.0, (draw.WIDTH - left) / len(values))
    height = min(24.0, max(8.0, 320 / rows))
    every = math.ceil(max(len(values), 1) / MOST_MARKS)
    parts = [draw.heading(title), draw.text(left - 8, 37, "head", anchor="end", font_style="italic")]
    for column, layer in enumerate(values):
        x = left + column * width
        if column % every == 0:
            parts.append(draw.text(x + width / 2, 37, column, anchor="middle"))
        for row, share in enumerate(np.asarray(layer, np.float64).tolist()):
            says = f"layer {column}, head {row}: {f'{share:.2f}' if math.isfinite(share) else HOLLOW}"
            parts.append(_cell((x, 44 + row * height, width, height), share, says))
    for row in range(0, rows, math.ceil(14 / height)):
        parts.append(draw.text(left - 8, 44 + (row + 0.5) * height + 3.8, row, anchor="end"))
    below = 44 + rows * height
    parts.append(draw.text(left + len(values) * width, below + 17, "layer", anchor="end", font_style="italic"))
    says = f"{title}: {plural(len(values), 'layer')} of up to {plural(rows, 'head')}"
    return draw.svg(draw.WIDTH, below + 24, says, *parts)


def _cell(where: tuple[float, float, float, float], share: float, says: str) -> Markup:
    """Draws the cell of one head, with its value if there is room."""
    x, y, width, height = where
    box = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1}
    pane = tag("rect", tag("title", says), **{key: f"{value:.1f}" for key, value in box.items()}, fill=_paint(share))
    if not math.isfinite(share) or width < 24 or height < 13:
        return pane
    ink = LIGHT["ink"] if share > BRIGHT else LIGHT["paper"]
    middle = {"x": f"{x + width / 2:.1f}", "y": f"{y + height / 2 + 3.8:.1f}", "text_anchor": "middle"}
    return join(pane, tag("text", f"{share:.2f}", **middle, font_size=10.5, fill=ink, pointer_events="none"))


def _paint(level: float) -> str:
    return "#" + bytes(map_colours(np.array(level)).tolist()).hex()


def scale(low: float, high: float, label: str) -> Markup:
    """Draws the colour scale from ``low`` to ``high`` with its label."""
    steps, wide = 92, draw.WIDTH / 92
    box = {"y": 0, "width": wide, "height": 9, "shape_rendering": "crispEdges"}
    bar = join(*(tag("rect", x=step * wide, **box, fill=_paint(step / (steps - 1))) for step in range(steps)))
    frame = tag("rect", y=0.5, x=0.5, width=draw.WIDTH - 1, height=8, fill="none", stroke="var(--rule)")
    words = (draw.text(0, 24, f"{low:g}"), draw.text(draw.WIDTH / 2, 24, label, anchor="middle"))
    end = draw.text(draw.WIDTH, 24, f"{high:g}", anchor="end")
    return draw.svg(draw.WIDTH, 28, f"Colour scale from {low:g} to {high:g}: {label}", bar, frame, *words, end)


def shift_chart(shifts: Mapping[int, Response]) -> Markup:
    """Draws the change of the features under shifts, beside the distance between different images."""
    pixels = np.array(sorted(shifts), np.float64)
    moved = np.array([shifts[int(pixel)].moved for pixel in pixels])
    apart = np.array([math.nan if (far := shifts[int(pixel)].apart) is None else far for pixel in pixels])
    ends = math.log2(pixels[0]) - 0.3, math.log2(pixels[-1]) + 0.3
    across = Axis(2.0 ** ends[0], 2.0 ** ends[1], draw.LEFT, draw.WIDTH - draw.RIGHT, log=True, marks=pixels.tolist())
    up = _linear_axis(np.concatenate([moved, apart]), "{:.2g}".format)
    series = [
        Series("shifted image", pixels, moved, "cobalt", marked=True),
        Series("different images", pixels, apart, "muted", dashed=True),
    ]
    says = f"Change of the features for {plural(len(pixels), 'shift')}: " + _list_points(pixels, moved, "px")
    away = 15 if moved.max() > 0.75 * up.high else -8  # labels below the line at the top of the chart, else above it
    labels = (
        draw.text(float(across.place(at)), float(up.place(value)) + away, up.words(value), anchor="middle", size=10)
        for at, value in zip(pixels, moved)
    )
    return draw.chart("Feature change", series, across, up, "shift, pixels", says, *labels)


def depth_chart(
    title: str, name: str, values: Sequence[float | None], unit: str = "", uniform: Sequence[float] = ()
) -> Markup:
    """Draws one value per feature map; None is a gap."""
    depth, known = np.arange(float(len(values))), np.array([math.nan if value is None else value for value in values])
    series = [Series(name, depth, known, "cobalt", marked=True)]
    if uniform:
        series.append(_level_line("uniform", depth, np.array(uniform)))
    most = None if unit else 1.0
    up = _linear_axis(np.concatenate([known, np.array(uniform)]), f"{{:.3g}}{unit}".format, most=most)
    says = f"{title}: " + _list_points(depth, known, "")
    return draw.chart(title, series, _depth_axis(len(values)), up, "feature map", says)


def cost_chart(
    title: str, points: Sequence[CostPoint], columns: tuple[str, str], words: Callable[[float], str]
) -> Markup:
    """Draws two columns of ``points`` against tokens on logarithmic axes: default and with full attention matrices."""
    points = sorted(points, key=lambda point: point.tokens)
    tokens = np.array([point.tokens for point in points], np.float64)
    lines = [
        np.array([math.nan if (value := getattr(point, column)) is None else value for point in points], np.float64)
        for column in columns
    ]
    names = (("default", "cobalt"), ("full attention matrices", "amber"))
    series = [
        Series(name, tokens, values, colour, marked=True)
        for (name, colour), values in zip(names, lines)
        if np.isfinite(values).any()
    ]
    known = np.concatenate(lines)
    across, reach = (draw.LEFT, draw.WIDTH - draw.RIGHT), (draw.HEIGHT - draw.BOTTOM, draw.TOP)
    up = draw.log_axis(known[np.isfinite(known) & (known > 0)], reach, words)
    return draw.chart(
        title,
        series,
        replace(draw.log_axis(tokens, across, "{:,.0f}".format), marks=list(dict.fromkeys(tokens.tolist()))),
        up,
        "tokens",
        f"{title} against tokens: "
        + "; ".join(f"{line.label} {_list_points(tokens, line.y, '', words)}" for line in series),
    )


def _list_points(x: np.ndarray, y: np.ndarray, unit: str, words: Callable[[float], str] = "{:.3g}".format) -> str:
    """Lists all finite points as text, for screen readers."""
    return ", ".join(
        f"{words(value)} at {at:g}{unit and ' ' + unit}" for at, value in zip(x, y) if math.isfinite(value)
    )


def _level_line(name: str, layers: np.ndarray, values: np.ndarray) -> Series:
    """Returns a dashed line with one level per layer, as levels differ between the stages of a pyramid."""
    ends = np.stack([layers - 0.5, layers + 0.5, layers + 0.5], 1).ravel()
    return Series(
        name, ends, np.stack([values, values, np.full(len(values), math.nan)], 1).ravel(), "muted", dashed=True
    )


def _depth_axis(count: int) -> Axis:
    marks = np.arange(0.0, count, math.ceil(max(count, 1) / MOST_MARKS)).tolist()
    return Axis(-0.5, count - 0.5, draw.LEFT, draw.WIDTH - draw.RIGHT, marks=marks)


def _linear_axis(
    values: np.ndarray, words: Callable[[float], str], *, most: float | None = None, height: float = draw.HEIGHT
) -> Axis:
    """Returns a linear axis from 0, or the minimum if negative, to ``most`` or just above the maximum."""
    top = values[np.isfinite(values)].max(initial=0.0) * 1.08 if most is None else most
    return Axis(
        min(0.0, values[np.isfinite(values)].min(initial=0.0)), top or 1.0, height - draw.BOTTOM, draw.TOP, words=words
    )
