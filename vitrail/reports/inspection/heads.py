"""The sections about attention heads: attention distance, entropy, and attention to prefix tokens.

L attention layers, H heads per layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.markup import Markup, join, tag
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.inspection.sections import section
from vitrail.text import decimal, plural


def distance(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the section of attention distances (figure 7, right) with a table of all heads."""
    if not inspection.heads:
        return None
    words = (
        "Each dot is one head. The attention distance is the mean distance between a query patch and the patches it attends "
        "to, weighted by attention and averaged over all queries and images; it is analogous to the receptive field size of a "
        "convolution. The dashed line is the distance of uniform attention: heads far below it are local, heads near or above "
        "it are global (ViT paper, figures 7, right, and 11)."
    )
    return join(
        section("Attention distance", words, tag("figure", plots["attention-distance"]), reach(inspection)),
        tag("details", tag("summary", "Values of all heads"), heads_table(inspection)),
    )


def reach(inspection: Inspection) -> list[Markup]:
    """Returns sentences about the most local and the most global head and about uniform attention."""
    named = [
        (float(far), layer, head)
        for layer, figures in enumerate(inspection.heads)
        for head, far in enumerate(np.asarray(figures.distance))
        if math.isfinite(far)
    ]
    if not named:
        return [tag("p", "No layer has spatial queries, so attention distances are undefined.")]

    def describe(place: tuple[float, int, int]) -> Markup:
        return join(tag("strong", f"{place[0]:.1f} px"), f" (layer {place[1]}, head {place[2]})")

    uniform = [figures.uniform for figures in inspection.heads if math.isfinite(figures.uniform)]
    low, high = min(uniform), max(uniform)
    uniform_distance = f"{low:.1f} px" if high - low < 0.05 else f"{low:.1f} to {high:.1f} px (by layer)"
    figures = [
        tag("p", "The smallest mean attention distance of a head is ", describe(min(named)), ", the largest is ",
            describe(max(named)), "."),
        tag("p", f"The distance of uniform attention is {uniform_distance}. Layers and heads are numbered from 0."),
    ]  # fmt: skip
    if missing := len(inspection.heads) - len(uniform):
        figures.append(lead(f"In {plural(missing, 'layer')}, only prefix tokens are queries."))
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
        "share of uniform",
        "entropy",
        *(["to prefix tokens"] if prefixed else []),
    ]
    table = tag("table", header(columns, sorted_by="layer"), tag("tbody", *rows))
    return make_scrollable(table, "Values of all heads")


def number(value: float, digits: int) -> Markup:
    """Returns a sortable table cell; NaN is a dash."""
    return tag("td", decimal(value, digits), data_value=f"{value:.6f}" if math.isfinite(value) else "")


def has_prefix(heads: Sequence[HeadFigures]) -> bool:
    """Whether spatial tokens attend to prefix tokens in any layer."""
    return any(np.nan_to_num(np.asarray(layer.prefix)).any() for layer in heads)


def entropy(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the section of attention entropies and of attention to prefix tokens."""
    if not inspection.heads:
        return None
    words = (
        "Each cell is one head; its value is the entropy of the attention divided by the maximum entropy. 0 means that all "
        "attention is on one key, 1 that it is uniform. Grey cells are layers without spatial queries."
    )
    maps = [tag("figure", plots["entropy"], tag("figcaption", summary([layer.entropy for layer in inspection.heads])))]
    if "attention-to-prefix" in plots:
        shares = summary([layer.prefix for layer in inspection.heads])
        caption = f"Share of the attention of patches that goes to prefix tokens (class token, registers). {shares}"
        maps.append(tag("figure", plots["attention-to-prefix"], tag("figcaption", caption)))
    legend = tag("div", charts.scale(0, 1, "share"), class_="legend")
    return join(tag("h2", "Attention entropy"), lead(words), tag("div", *maps, class_="charts"), legend)


def summary(values: Sequence[Any]) -> str:
    """Returns a sentence with mean, minimum and maximum over the heads (H,) of all layers."""
    shares = np.concatenate([np.asarray(layer, np.float64) for layer in values])
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return "Undefined in all layers."
    return f"Mean over heads {shares.mean():.2f}, minimum {shares.min():.2f}, maximum {shares.max():.2f}."
