"""The sections of an inspection about its heads: how far each looks, how sharply, and how much at tokens without a place.

L layers of attention, H heads of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.reports.html import Markup, join, tag
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.inspection.sections import section
from vitrail.reports.wording import decimal, plural


def distance(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """Figure 7, right, and the numbers of every head."""
    if not inspection.heads:
        return None
    words = (
        "Each dot is a head, at the mean distance between the patch that asks and the patches that it attends to, weighted by "
        "attention and taken over all patches and images; it is what the size of a receptive field is for a convolution. On "
        "the dashed line a head attends to all its keys alike, so dots far below it are local, those near or above it global "
        "(ViT paper, figures 7, right, and 11)."
    )
    return join(
        section("How far each head looks", words, tag("figure", plots["attention-distance"]), reach(inspection)),
        tag("details", tag("summary", "The numbers of every head"), heads_table(inspection)),
    )


def reach(inspection: Inspection) -> list[Markup]:
    """The nearest and the farthest head, and what uniform attention would be."""
    named = [
        (float(far), layer, head)
        for layer, figures in enumerate(inspection.heads)
        for head, far in enumerate(np.asarray(figures.distance))
        if math.isfinite(far)
    ]
    if not named:
        return [tag("p", "In no layer do patches ask, so that no head has a distance.")]

    def describe(place: tuple[float, int, int]) -> Markup:
        return join(tag("strong", f"{place[0]:.1f} px"), f" (layer {place[1]}, head {place[2]})")

    uniform = [figures.uniform for figures in inspection.heads if math.isfinite(figures.uniform)]
    low, high = min(uniform), max(uniform)
    alike = f"{low:.1f} px" if high - low < 0.05 else f"{low:.1f} to {high:.1f} px (by layer)"
    figures = [
        tag("p", "On average over places and images, the nearest head looks ", describe(min(named)), " far, the farthest ",
            describe(max(named)), "."),
        tag("p", f"Uniform attention would look {alike} far. Layers and heads count from 0, as in --layer and --head."),
    ]  # fmt: skip
    if missing := len(inspection.heads) - len(uniform):
        figures.append(lead(f"In {plural(missing, 'layer')} no place asks, only tokens without one."))
    return figures


def heads_table(inspection: Inspection) -> Markup:
    prefixed, rows = has_prefix(inspection.heads), []
    for layer, figures in enumerate(inspection.heads):
        shares = zip(
            *(np.asarray(values, np.float64).tolist() for values in (figures.distance, figures.entropy, figures.prefix))
        )
        for head, (far, entropy, prefix) in enumerate(shares):
            cells = [number(far, 1), number(far / figures.uniform, 2), number(entropy, 3)]
            cells += [number(prefix, 3)] if prefixed else []
            first = tag("th", f"{layer}", scope="row", data_value=layer)
            rows.append(tag("tr", first, tag("td", head, data_value=head), *cells))
    columns = [
        "layer",
        "head",
        "distance, px",
        "of uniform",
        "entropy",
        *(["to tokens without a place"] if prefixed else []),
    ]
    table = tag("table", header(columns, sorted_by="layer"), tag("tbody", *rows))
    return make_scrollable(table, "The numbers of every head")


def number(value: float, digits: int) -> Markup:
    """A cell that can be sorted; what is undefined is a dash."""
    return tag("td", decimal(value, digits), data_value=f"{value:.6f}" if math.isfinite(value) else "")


def has_prefix(heads: Sequence[HeadFigures]) -> bool:
    """Does any of the attention of places go to tokens without one?"""
    return any(np.nan_to_num(np.asarray(layer.prefix)).any() for layer in heads)


def entropy(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """How sharply each head looks, and how much at tokens without a place."""
    if not inspection.heads:
        return None
    words = (
        "A cell is a head, its number the entropy of its attention as a share of the largest there can be: 0 looks at one key, "
        "1 at all alike. Dark columns are layers that choose and bright ones layers that average; a grey cell is a layer in "
        "which no place asks."
    )
    maps = [tag("figure", plots["entropy"], tag("figcaption", summary([layer.entropy for layer in inspection.heads])))]
    if "attention-to-prefix" in plots:
        shares = summary([layer.prefix for layer in inspection.heads])
        caption = f"How much of the attention of patches goes to the class token, registers and their like. {shares}"
        maps.append(tag("figure", plots["attention-to-prefix"], tag("figcaption", caption)))
    legend = tag("div", charts.scale(0, 1, "share"), class_="legend")
    return join(tag("h2", "How sharply each head looks"), lead(words), tag("div", *maps, class_="charts"), legend)


def summary(values: Sequence[Any]) -> str:
    """The mean and the ends of the shares (H,) of all layers in a sentence."""
    shares = np.concatenate([np.asarray(layer, np.float64) for layer in values])
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return "No layer has such a figure."
    return f"The mean over heads is {shares.mean():.2f}, the least {shares.min():.2f}, the most {shares.max():.2f}."
