"""The page and the numbers of two models beside each other: what their heads, positions and first layers have in common.

Distances in pixels are those of each model's own input; what is compared is relative to uniform attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.pictures import save_png
from vitrail.files import disk_errors, replace_file
from vitrail.markup import Markup, join, tag
from vitrail.reports.charts import standalone
from vitrail.reports.components import describe_model, describe_run, header, lead, list_versions, make_scrollable, notes
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.inspection.findings import GLOBAL, LOCAL, relative_distances, summarise_heads
from vitrail.reports.inspection.heads import heads_table, number
from vitrail.reports.inspection.numbers import numbers, replace_nan
from vitrail.reports.inspection.page import draw_pictures
from vitrail.reports.inspection.sections import every_tile, pixels, verdict
from vitrail.reports.page import frame
from vitrail.text import decimal, large, percent, plural, sentence

Pair = tuple[Inspection, Inspection]
LONGEST_LABEL = 14  # letters of a name in the legend of a chart
# figures of `summarise_figures`: their names on the page, and how they are written
Write = Callable[[float], str]
FIGURES: dict[str, tuple[str, Write]] = {
    "local_heads": (f"local heads (distance below {LOCAL:g})", percent),
    "global_heads": (f"global heads (distance at least {GLOBAL:g})", percent),
    "distance": ("distance, mean of all heads", partial(decimal, digits=2)),
    "distance_low": ("distance, lowest third of the layers", partial(decimal, digits=2)),
    "distance_high": ("distance, highest third of the layers", partial(decimal, digits=2)),
    "growth": ("rank correlation of distance with depth", partial(decimal, digits=2)),
    "position_neighbour_rate": ("positions most similar to an adjacent one", percent),
    "position_similarity_row": ("similarity of positions, same row", partial(decimal, digits=2)),
    "position_similarity_column": ("similarity of positions, same column", partial(decimal, digits=2)),
    "position_similarity_elsewhere": ("similarity of positions, elsewhere", partial(decimal, digits=2)),
}


def summarise_figures(inspection: Inspection) -> dict[str, float]:
    """Returns the figures of a model by their names in `FIGURES`, as far as they were measured."""
    figures = summarise_heads(inspection.heads)
    if (positions := inspection.positions) is not None:
        lines = positions.lines
        figures |= {
            "position_neighbour_rate": positions.neighbour_rate,
            "position_similarity_row": lines.row,
            "position_similarity_column": lines.column,
            "position_similarity_elsewhere": lines.elsewhere,
        }
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def pair_numbers(pair: Pair) -> dict[str, Any]:
    """Returns the contents of ``numbers.json``: those of both models, and the second minus the first where both have one."""
    one, other = map(summarise_figures, pair)
    return replace_nan(
        {
            "models": [{"name": each.title, **numbers(each), "figures": summarise_figures(each)} for each in pair],
            "findings": {
                first.claim: [first.holds, second.holds] for first, second in zip(pair[0].findings, pair[1].findings)
            },
            "differences": {name: other[name] - one[name] for name in FIGURES if name in one and name in other},
            "notes": list(pair[0].notes),
        }
    )


def write_pair(out: Path, pair: Pair) -> Path:
    """Writes ``report.html`` into ``out``, with its images as PNG and its charts as SVG; returns the path of the page. The notes
    are those of the first model.

    Raises `DiskError` if the folder cannot be written.
    """
    sheets, plots = [draw_pictures(each) for each in pair], drawings(pair)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    for place, pictures in enumerate(sheets, 1):
        for name, picture in pictures.items():
            save_png(out / f"{name}-{place}.png", picture)
    for name, drawing in plots.items():
        replace_file(out / f"{name}.svg", standalone(drawing))
    parts = {
        "Findings": join(tag("h2", "Findings of the ViT paper"), _findings_table(pair)),
        "Figures": _figures_section(pair),
        "Distance": _distance_section(pair, plots),
        "Positions": _positions_section(pair, sheets),
        "Filters": _filters_section(pair, sheets),
        "Run details": _run_section(pair),
    }
    opening = join(_headline(pair), notes(pair[0].notes))
    title = f"{pair[0].title} against {pair[1].title}"
    replace_file(out / "report.html", frame("vitrail inspect --against", title, pair[0].date, opening, parts))
    return out / "report.html"


def drawings(pair: Pair) -> dict[str, Markup]:
    """Returns the charts of attention by file name: the heads of each model, and both together by relative depth."""
    plots, known = {}, [each for each in pair if each.heads]
    far = [np.append(np.asarray(layer.distance), layer.uniform) for each in known for layer in each.heads]
    reach = max((float(values[np.isfinite(values)].max(initial=0.0)) for values in far), default=0.0)
    highest = reach if _same_pixels(pair) else 0.0
    for place, each in enumerate(pair, 1):
        if each.heads:
            plots[f"attention-distance-{place}"] = charts.distance_chart(each.heads, _label(each), highest=highest)
    relative = {_label(each): relative_distances(each.heads) for each in known}
    if len(relative) == len(pair) and all(relative.values()):
        means = {name: [float(layer.mean()) for layer in layers] for name, layers in relative.items()}
        local = {name: [float((layer < LOCAL).mean()) for layer in layers] for name, layers in relative.items()}
        plots["distance-by-depth"] = charts.shares_chart("Mean distance", means)
        plots["local-heads"] = charts.shares_chart("Local heads", local)
    return plots


def _same_pixels(pair: Pair) -> bool:
    """Whether distances in pixels of both models can be compared."""
    return pair[0].image_size == pair[1].image_size


def _label(inspection: Inspection) -> str:
    """Returns the name of a model for a legend; of a long one the end, in which paths differ."""
    name = inspection.title
    return name if len(name) <= LONGEST_LABEL else "…" + name[1 - LONGEST_LABEL :]


def _headline(pair: Pair) -> Markup:
    """Returns a description of both models."""
    rows = []
    for each in pair:
        patches = " × ".join(map(str, each.patch_size)) if each.patch_size else "–"
        cells = (
            sentence(each.model),
            " × ".join(map(str, each.image_size)),
            patches,
            large(each.parameters),
            large(each.multiply_adds),
        )
        kinds = ("text", None, None, None, None)
        body = (tag("td", words, class_=kind) for words, kind in zip(cells, kinds))
        rows.append(tag("tr", tag("th", each.title, scope="row"), *body))
    columns = ("model", "kind", "pixels", "patches", "parameters", "multiply-adds")
    table = make_scrollable(tag("table", header(columns, text=2), tag("tbody", *rows)), "The two models")
    seen = [f"{plural(each.images, 'image')} by {each.title}" for each in pair if each.heads]
    same = len(seen) == len(pair) and pair[0].images == pair[1].images
    words = f"of both models were measured on the same {plural(pair[0].images, 'image')}"
    words = words if same else f"were measured on {', '.join(seen)}"
    return join(table, lead(f"The heads {words}.") if seen else None)


def _findings_table(pair: Pair) -> Markup:
    """Returns the findings as rows, with the verdict on each model and the measured values."""
    rows = []
    for both in zip(*(each.findings for each in pair)):
        cells = [tag("td", verdict(finding), lead(finding.words), class_="text") for finding in both]
        rows.append(tag("tr", tag("th", both[0].claim, scope="row"), *cells))
    columns = ("finding", *(each.title for each in pair))
    table = tag("table", header(columns, text=3), tag("tbody", *rows), class_="verdicts")
    return make_scrollable(table, "Findings of the ViT paper")


def _figures_section(pair: Pair) -> Markup:
    """Returns the table of figures of both models with their differences."""
    known = [summarise_figures(each) for each in pair]
    rows = []
    for name, (words, write) in FIGURES.items():
        values = [figures.get(name, math.nan) for figures in known]
        if any(map(math.isfinite, values)):
            cells = [*map(write, values), _spell_change(values[1] - values[0], in_points=write is percent)]
            rows.append(tag("tr", tag("th", words, scope="row"), *(tag("td", cell) for cell in cells)))
    if not rows:
        return join(tag("h2", "Figures"), lead("Neither attention nor positions could be measured."))
    columns = ("figure", *(each.title for each in pair), "difference")
    words = (
        "Distances are relative to that of uniform attention in the same layer, so that models of other image sizes, patches "
        "and windows can be compared. The difference is the second model minus the first."
    )
    table = make_scrollable(tag("table", header(columns), tag("tbody", *rows)), "Figures of both models")
    return join(tag("h2", "Figures"), lead(words), table)


def _spell_change(change: float, *, in_points: bool) -> str:
    """Formats a difference with its sign, of shares in percentage points. NaN is a dash."""
    if not math.isfinite(change):
        return "–"
    # adding zero turns a rounded -0.0 into 0.0
    return f"{round(100 * change, 1) + 0:+.1f} points" if in_points else f"{round(change, 2) + 0:+.2f}"


def _distance_section(pair: Pair, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the charts of attention distances, and the values of all heads."""
    if not plots:
        return None
    words = (
        "Each dot is one head: the mean distance between a query patch and the patches that it attends to, in pixels of the "
        "model's own input; the dashed line is uniform attention (ViT paper, figures 7, right, and 11)."
    )
    if "local-heads" in plots:
        words += " Both charts have one scale." if _same_pixels(pair) else ""
        words += (
            " In the other two, depth is relative, 0 for the first layer and 1 for the last, and so is the distance, to that of "
            f"uniform attention; local heads are those below {LOCAL:g}, as a share of the layer's."
        )
    figures = tag("div", *(tag("figure", drawing) for drawing in plots.values()), class_="charts")
    return join(tag("h2", "Attention distance"), lead(words), figures, *_values(pair))


def _values(pair: Pair) -> list[Markup]:
    """Returns the values of all heads: head by head if the layers are alike, as before and after a fine-tuning."""
    shapes = [[len(layer.distance) for layer in each.heads] for each in pair]
    if shapes[0] == shapes[1]:
        return [tag("details", tag("summary", "Values of all heads"), _changes_table(pair))]
    return [
        tag("details", tag("summary", f"Values of all heads, {each.title}"), heads_table(each))
        for each in pair
        if each.heads
    ]


def _changes_table(pair: Pair) -> Markup:
    """Returns the distance of each head in both models, relative to uniform attention, with the difference."""
    rows = []
    for layer, both in enumerate(zip(*(each.heads for each in pair))):
        for head, values in enumerate(zip(*((of.distance / of.uniform).tolist() for of in both))):
            first = tag("th", f"{layer}", scope="row", data_value=layer)
            cells = [number(value, 3) for value in (*values, values[1] - values[0])]
            rows.append(tag("tr", first, tag("td", head, data_value=head), *cells))
    columns = ("layer", "head", *(each.title for each in pair), "difference")
    table = tag("table", header(columns, sorted_by="layer"), tag("tbody", *rows))
    return make_scrollable(table, "Distance of each head, relative to uniform attention")


def _positions_section(pair: Pair, sheets: Sequence[Mapping[str, np.ndarray]]) -> Markup | None:
    """Returns the position similarities beside each other; None if neither model adds positions."""
    figures = []
    for each, pictures in zip(pair, sheets):
        if each.positions is None:
            figures.append(tag("figure", lead(f"{each.title} adds no position embeddings to its patches.")))
            continue
        rows, columns = each.positions.similarity.shape[:2]
        caption = f"{each.title}: {rows} × {columns} positions."
        if (every := every_tile(each.positions.similarity)) > 1:
            caption += f" Tiles of one in {every} rows and columns."
        alt = f"Similarity of the position embeddings of {each.title}"
        figures.append(tag("figure", pixels(pictures["positions"], alt), tag("figcaption", caption)))
    if not any(each.positions for each in pair):
        return None
    words = (
        "The tile in row r and column c shows the cosine similarity of the position embedding of that patch with those of all "
        "patches (ViT paper, figure 7, centre)."
    )
    legend = tag("div", charts.scale(-1, 1, "cosine similarity"), class_="legend")
    return join(tag("h2", "Position embedding similarity"), lead(words), tag("div", *figures, class_="charts"), legend)


def _filters_section(pair: Pair, sheets: Sequence[Mapping[str, np.ndarray]]) -> Markup:
    """Returns the principal components of the first layers beside each other."""
    figures = []
    for each, pictures in zip(pair, sheets):
        count = len(each.filters.pictures)
        share = percent(float(np.sum(each.filters.explained[:count])))
        caption = (
            f"{each.title}: {plural(count, 'component')} of {each.filters.width:,} filters, {share} of their variance."
        )
        alt = f"Principal components of the filters of {each.title}"
        figures.append(tag("figure", pixels(pictures["filters"], alt), tag("figcaption", caption)))
    words = (
        "The principal components of the filters of the first layer, in descending order of variance; mid grey is zero (ViT "
        "paper, figure 7, left). Those of a convolution overlap, those of patches do not."
    )
    return join(tag("h2", "First-layer filters"), lead(words), tag("div", *figures, class_="charts"))


def _run_section(pair: Pair) -> Markup:
    one = pair[0]
    models = {
        each.title: describe_model(each.model, each.parameters, each.multiply_adds, each.image_size) for each in pair
    }
    rows = {**models, "Data": one.data, "Machine": one.machine, "Versions": list_versions(one.versions)}
    return describe_run(one.command, rows)
