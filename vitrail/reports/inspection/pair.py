"""The page and the numbers of two models beside each other: what their heads, positions and first layers have in common.

Distances in pixels are those of each model's own input; what is compared is relative to uniform attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.render import save_png
from vitrail.analysis.weight_changes import WeightChange
from vitrail.files import ensure_folder, replace_nan
from vitrail.markup import Markup
from vitrail.reports.charts import colour_scale
from vitrail.reports.data_uris import pixels
from vitrail.reports.facts import describe_model
from vitrail.reports.inspection import charts
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.inspection.findings import GLOBAL, LOCAL, relative_distances, summarise_heads
from vitrail.reports.inspection.numbers import numbers
from vitrail.reports.inspection.one_model import MARKS, draw_pictures, every_tile, list_heads, number
from vitrail.reports.page import Cell, Table, render, write_page
from vitrail.text import decimal, large, percent, plural, sentence

Pair = tuple[Inspection, Inspection]
Changes = Sequence[WeightChange]
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


def pair_numbers(pair: Pair, changes: Changes = ()) -> dict[str, Any]:
    """Returns the contents of ``numbers.json``: those of both models, the second minus the first where both have one, and the
    ``changes`` of the weights.
    """
    one, other = map(summarise_figures, pair)
    return replace_nan(
        {
            "models": [{"name": each.title, **numbers(each), "figures": summarise_figures(each)} for each in pair],
            "findings": {
                first.claim: [first.holds, second.holds] for first, second in zip(pair[0].findings, pair[1].findings)
            },
            "differences": {name: other[name] - one[name] for name in FIGURES if name in one and name in other},
            "weight_changes": [asdict(change) for change in changes],
            "notes": list(pair[0].notes),
        }
    )


def write_pair(out: Path, pair: Pair, changes: Changes = ()) -> Path:
    """Writes ``report.html`` into ``out``, with its images as PNG and its charts as SVG; returns the path of the page. The notes
    are those of the first model.

    Raises `DiskError` if the folder cannot be written.
    """
    sheets, plots, one = [draw_pictures(each) for each in pair], drawings(pair), pair[0]
    ensure_folder(out)
    for place, pictures in enumerate(sheets, 1):
        for name, picture in pictures.items():
            save_png(out / f"{name}-{place}.png", picture)
    seen = [each for each in pair if each.heads]
    models = {
        each.title: describe_model(each.model, each.parameters, each.multiply_adds, each.image_size) for each in pair
    }
    page = render(
        "pair.html",
        "vitrail inspect --against",
        f"{pair[0].title} against {pair[1].title}",
        one.date,
        pair=pair,
        marks=MARKS,
        models=list_models(pair),
        seen=[f"{plural(each.images, 'image')} by {each.title}" for each in seen],
        same_images=len(seen) == len(pair) and pair[0].images == pair[1].images,
        figures=list_figures(pair),
        same_pixels=_same_pixels(pair),
        local=LOCAL,
        plots=plots,
        heads=list_values(pair),
        changes=list_changes(changes),
        sheets=[{name: pixels(picture) for name, picture in pictures.items()} for pictures in sheets],
        tiles=[every_tile(each.positions.similarity) if each.positions else 1 for each in pair],
        variances=[float(np.sum(each.filters.explained[: len(each.filters.pictures)])) for each in pair],
        similarity_scale=colour_scale(-1, 1, "cosine similarity"),
        run=one.details({**models, "Data": one.data}),
    )
    return write_page(out, page, plots, ".")


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


def list_models(pair: Pair) -> Table:
    """Returns the table that describes both models."""
    rows = [
        (
            each.title,
            sentence(each.model),
            " × ".join(map(str, each.image_size)),
            " × ".join(map(str, each.patch_size)) if each.patch_size else "–",
            large(each.parameters),
            large(each.multiply_adds),
        )
        for each in pair
    ]
    columns = ("model", "kind", "pixels", "patches", "parameters", "multiply-adds")
    return Table("The two models", columns, rows, text=2)


def list_figures(pair: Pair) -> Table | None:
    """Returns the table of figures of both models with their differences; None without any."""
    known, rows = [summarise_figures(each) for each in pair], []
    for name, (words, write) in FIGURES.items():
        values = [figures.get(name, math.nan) for figures in known]
        if any(map(math.isfinite, values)):
            rows.append((words, *map(write, values), _spell_change(values[1] - values[0], in_points=write is percent)))
    columns = ("figure", *(each.title for each in pair), "difference")
    return Table("Figures of both models", columns, rows) if rows else None


def list_changes(changes: Changes) -> Table | None:
    """Returns the table of the changes of dense layers; None without any."""
    rows = [
        (
            Cell(f"{change.layer} {change.part}".rstrip(), key=place),
            number(change.relative, 4),
            number(change.directions, 1),
            number(change.full, 0),
        )
        for place, change in enumerate(changes)
    ]
    columns = ("layer", "relative change", "directions", "of")
    return Table("Changes of the dense layers", columns, rows, sorted_by="layer") if rows else None


def _spell_change(change: float, *, in_points: bool) -> str:
    """Formats a difference with its sign, of shares in percentage points. NaN is a dash."""
    if not math.isfinite(change):
        return "–"
    # adding zero turns a rounded -0.0 into 0.0
    return f"{round(100 * change, 1) + 0:+.1f} points" if in_points else f"{round(change, 2) + 0:+.2f}"


def list_values(pair: Pair) -> dict[str, Table]:
    """Returns the values of all heads by title: head by head if the layers are alike, as before and after a fine-tuning."""
    shapes = [[len(layer.distance) for layer in each.heads] for each in pair]
    if shapes[0] != shapes[1]:
        return {f"Values of all heads, {each.title}": list_heads(each.heads) for each in pair if each.heads}
    rows = []
    for layer, both in enumerate(zip(*(each.heads for each in pair))):
        for head, values in enumerate(zip(*((of.distance / of.uniform).tolist() for of in both))):
            cells = [number(value, 3) for value in (*values, values[1] - values[0])]
            rows.append([Cell(layer, key=layer), Cell(head, key=head), *cells])
    columns = ("layer", "head", *(each.title for each in pair), "difference")
    name = "Distance of each head, relative to uniform attention"
    return {"Values of all heads": Table(name, columns, rows, sorted_by="layer")}
