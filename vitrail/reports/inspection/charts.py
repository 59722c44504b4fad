"""The charts of an inspection.

L attention layers, H heads per layer; the stages of a pyramid differ in H.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.analysis.cost import CostPoint
from vitrail.analysis.equivariance import Response
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.tokens import NEAR, OUTLIER, MapNorms
from vitrail.markup import Markup, tag
from vitrail.reports import charts as draw
from vitrail.reports.charts import Format, Series
from vitrail.text import percent, plural

BARS = 48  # of a histogram


def distance_chart(heads: Sequence[HeadFigures], title: str = "Attention distance", *, highest: float = 0.0) -> Markup:
    """Draws the mean attention distance against depth, one dot per head (ViT paper, figure 7, right, and figure 11). The
    vertical axis reaches at least to ``highest`` pixels.
    """
    layers, distances = np.arange(float(len(heads))), [np.asarray(layer.distance, np.float64) for layer in heads]
    uniform = np.array([layer.uniform for layer in heads])
    up = draw.tight_axis(np.concatenate([*distances, uniform, [highest]]), "{:g} px".format, height=300)
    across = draw.depth_axis(len(heads))
    means = Series("mean over heads", layers, np.array([layer.mean() for layer in distances]), "amber")
    radius, dots = min(3.4, 0.28 * (across.at(2) - across.at(1))), []
    for layer, layer_heads in enumerate(distances):
        for head, far in enumerate(layer_heads.tolist()):
            if math.isfinite(far):
                says, style = f"layer {layer}, head {head}: {far:.1f} px", {"fill_opacity": 0.75, "class_": "head"}
                dots.append(draw.dot(across.at(layer), up.at(far), "cobalt", says, radius, **style))
    gaps = [not np.isfinite(layer).any() for layer in distances]
    says = (
        f"Mean attention distance of {plural(sum(map(len, distances)), 'head')} in {plural(gaps.count(False), 'layer')}"
    )
    lines = [means, draw.level_line("uniform attention", layers, uniform)]
    return draw.chart(title, lines, across, up, "layer", says, *dots, *draw.name_gaps(gaps, across, up))


def shares_chart(title: str, models: Mapping[str, Sequence[float]]) -> Markup:
    """Draws one value for each layer of two models, named by ``models``, against the relative depth of the layer."""
    series = [
        Series(name, np.linspace(0, 1, len(values)), np.asarray(values, np.float64), colour, marked=True)
        for (name, values), colour in zip(models.items(), ("cobalt", "amber"))
    ]
    across = draw.horizontal_axis(-0.03, 1.03, marks=[0, 0.25, 0.5, 0.75, 1])
    up = draw.tight_axis(np.concatenate([line.y for line in series] + [[1.0]]), "{:.2g}".format)
    says = f"{title}: " + "; ".join(f"{line.label} {line.list_points()}" for line in series)
    return draw.chart(title, series, across, up, "relative depth", says)


def shift_chart(shifts: Mapping[int, Response]) -> Markup:
    """Draws the change of the features under shifts, beside the distance between different images."""
    pixels = np.array(sorted(shifts), np.float64)
    moved = np.array([shifts[int(pixel)].moved for pixel in pixels])
    apart = np.array([math.nan if (far := shifts[int(pixel)].apart) is None else far for pixel in pixels])
    low, high = pixels[0] * 2**-0.3, pixels[-1] * 2**0.3
    across = draw.horizontal_axis(low, high, log=True, marks=pixels.tolist())
    up = draw.tight_axis(np.concatenate([moved, apart]), "{:.2g}".format)
    series = [
        Series("shifted image", pixels, moved, "cobalt", marked=True),
        Series("different images", pixels, apart, "muted", dashed=True),
    ]
    says = f"Change of the features for {plural(len(pixels), 'shift')}: {series[0].list_points(unit='px')}"
    away = 15 if moved.max() > 0.75 * up.high else -8  # labels below the line at the top of the chart, else above it
    labels = (
        draw.text(across.at(pixel), up.at(value) + away, up.words(value), anchor="middle", size=10)
        for pixel, value in zip(pixels, moved)
    )
    return draw.chart("Feature change", series, across, up, "shift, pixels", says, *labels)


def depth_chart(
    title: str, name: str, values: Sequence[float | None], unit: str = "", uniform: Sequence[float] = ()
) -> Markup:
    """Draws one value per feature map; None is a gap."""
    depth, known = np.arange(float(len(values))), np.array([math.nan if value is None else value for value in values])
    series = [Series(name, depth, known, "cobalt", marked=True)]
    if uniform:
        series.append(draw.level_line("uniform", depth, np.array(uniform)))
    most = None if unit else 1.0
    up = draw.tight_axis(np.concatenate([known, np.array(uniform)]), f"{{:.3g}}{unit}".format, most=most)
    says = f"{title}: {series[0].list_points()}"
    return draw.chart(title, series, draw.depth_axis(len(values)), up, "feature map", says)


def norms_chart(maps: Sequence[MapNorms]) -> Markup:
    """Draws the largest norm and the 98th percentile of each map, relative to its median, on a logarithmic axis."""
    depth = np.arange(float(len(maps)))
    high, largest = (
        np.array([getattr(map_, name) / map_.median if map_.median else math.nan for map_ in maps])
        for name in ("high", "largest")
    )
    series = [
        Series("maximum", depth, largest, "ruby", marked=True),
        Series("98th percentile", depth, high, "cobalt", marked=True),
        Series(f"{OUTLIER:g} × median", np.array([-0.5, len(maps) - 0.5]), np.full(2, OUTLIER), "muted", dashed=True),
    ]
    known = np.concatenate([largest[largest > 0], high[high > 0], [1.0, OUTLIER]])
    up = draw.log_axis(known, draw.HEIGHT - draw.BOTTOM, draw.TOP, "{:g} ×".format)
    says = f"Patch norms relative to the median: {'; '.join(f'{one.label} {one.list_points()}' for one in series[:2])}"
    return draw.chart("Norms, × median", series, draw.depth_axis(len(maps)), up, "feature map", says)


def norm_histogram(map_: MapNorms, index: int) -> Markup:
    """Draws how many patches of a map have which norm, relative to the median, on logarithmic axes; outliers are red."""
    ratios = map_.ratios[map_.ratios > 0]
    low, high = min(0.5, ratios.min(initial=1.0)), max(4.0, ratios.max(initial=1.0) * 1.05)
    counts, ends = np.histogram(ratios, np.geomspace(low, high, BARS + 1))
    marks = [mark for mark in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000) if low <= mark <= high]
    across = draw.horizontal_axis(low, high, log=True, marks=marks, words="{:g} ×".format)
    up = draw.Axis(
        0.7, max(counts.max(), 1) * 1.3, draw.HEIGHT - draw.BOTTOM, draw.TOP, log=True, words="{:,.0f}".format
    )
    bars = [
        draw.rectangle(
            across.at(start) + 0.5,
            up.at(count),
            across.at(stop) - across.at(start) - 1,
            up.start - up.at(count),
            "ruby" if start >= OUTLIER else "cobalt",
            tag("title", f"{start:.2g} to {stop:.2g} times the median: {plural(int(count), 'patch', 'patches')}"),
        )
        for start, stop, count in zip(ends, ends[1:], counts.tolist())
        if count
    ]
    lines = [
        draw.line(across.at(end), up.stop, across.at(end), up.start, "muted", stroke_dasharray=draw.DASHES)
        for end in (NEAR, OUTLIER)
    ]
    says = f"Histogram of the norms of {plural(map_.norms.size, 'patch', 'patches')}: {percent(map_.outliers)} are outliers"
    label = "norm, relative to the median"
    return draw.chart(f"Patches of feature map {index} by norm", [], across, up, label, says, *bars, *lines)


def places_chart(places: np.ndarray, index: int) -> Markup:
    """Draws the share of images with an outlier in each cell of a map, (h, w)."""
    rows, columns = places.shape
    side = min((draw.HEIGHT - 32) / rows, draw.WIDTH / columns)
    parts = [draw.heading(f"Outliers of feature map {index} by place")]
    parts.append(draw.rectangle(0, 28, columns * side, rows * side, draw.paint(0.0)))
    for row, column in np.argwhere(places > 0).tolist():
        share = float(places[row, column])
        says = tag("title", f"row {row}, column {column}: {percent(share)} of the images")
        parts.append(draw.rectangle(column * side, 28 + row * side, side, side, draw.paint(share), says))
    often = np.unravel_index(places.argmax(), places.shape)
    says = f"Places of outliers: most often at row {often[0]}, column {often[1]}, in {percent(float(places.max()))}"
    return draw.svg(draw.WIDTH, 30 + rows * side, f"{says} of the images", *parts)


def cost_chart(title: str, points: Sequence[CostPoint], columns: tuple[str, str], words: Format) -> Markup:
    """Draws two columns of ``points`` against tokens on logarithmic axes: default and with full attention matrices."""
    points = sorted(points, key=lambda point: point.tokens)
    tokens = np.array([point.tokens for point in points], np.float64)
    series = []
    for (name, colour), column in zip((("default", "cobalt"), ("full attention matrices", "amber")), columns):
        values = [getattr(point, column) for point in points]
        known = np.array([math.nan if value is None else value for value in values], np.float64)
        if np.isfinite(known).any():
            series.append(Series(name, tokens, known, colour, marked=True))
    values = np.concatenate([line.y for line in series])
    marks = list(dict.fromkeys(tokens.tolist()))
    across = draw.log_axis(tokens, draw.LEFT, draw.WIDTH - draw.RIGHT, "{:,.0f}".format, marks=marks)
    up = draw.log_axis(values[np.isfinite(values) & (values > 0)], draw.HEIGHT - draw.BOTTOM, draw.TOP, words)
    says = f"{title} against tokens: " + "; ".join(f"{line.label} {line.list_points(words)}" for line in series)
    return draw.chart(title, series, across, up, "tokens", says)
