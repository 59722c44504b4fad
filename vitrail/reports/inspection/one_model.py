"""The page of one inspected model. Sections without data are omitted; images and charts are separate files, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.cost import CostPoint, fit_growth
from vitrail.analysis.equivariance import Response
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.render import draw_filters, draw_mosaic, draw_scale_bar, save_png, to_uint8
from vitrail.analysis.tokens import NEAR, OUTLIER
from vitrail.files import ensure_folder
from vitrail.markup import Markup
from vitrail.reports.charts import colour_scale, heat_map
from vitrail.reports.data_uris import Picture, data_uri, overlay_attention, photograph, pixels
from vitrail.reports.facts import describe_model
from vitrail.reports.inspection import charts
from vitrail.reports.inspection.facts import Biases, Filters, Inspection, Painted, Prototypes, Sample, Tokens
from vitrail.reports.page import Cell, Table, render, write_page
from vitrail.text import decimal, large, percent, plural

MARKS = {True: ("✓", "true", "holds"), False: ("✗", "false", "fails"), None: ("–", "not tested", "open")}
METHODS = {
    "attention": "attention, last layer",
    "rollout": "attention rollout",
    "gradient": "gradient relevance",
    "query": "attention of the query",
}
MAX_OF_VARIANCE = 0.9
POOR = 0.15  # of the variance, below which three components say little
MAX_TILES = 16  # tiles per side of the position mosaic
COLUMNS = 7  # of filters: 28 filters make four rows, as in the paper
TILE = 96  # pixels per filter
PROTOTYPE_COLUMNS, PROTOTYPE_IMAGES = 6, 2
MOSAIC = 784  # pixels of the similarity mosaic per side, without gaps


def write_inspection(out: Path, inspection: Inspection) -> Path:
    """Writes ``report.html`` into ``out``, with its images as PNG and its charts as SVG; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    pictures, plots = draw_pictures(inspection), drawings(inspection)
    ensure_folder(out)
    for name, picture in pictures.items():
        save_png(out / f"{name}.png", picture)
    if inspection.positions is not None:
        bar = draw_scale_bar(-1, 1, label="cosine similarity", width=pictures["positions"].shape[1])
        save_png(out / "positions.png", np.concatenate([pictures["positions"], bar]))
    for number, sample in enumerate(inspection.samples or inspection.queries, 1):
        for name, attention in sample.maps.items():
            save_png(out / f"{name}-{number}.png", overlay_attention(sample.picture, attention, sample.reach_of(name)))
    page = render(
        "inspection.html",
        "vitrail inspect",
        inspection.title,
        inspection.date,
        inspection=inspection,
        marks=MARKS,
        tested=[finding for finding in inspection.findings if finding.of_paper and finding.holds is not None],
        plots=plots,
        pictures={name: pixels(picture) for name, picture in pictures.items()},
        variance=summarise_variance(inspection.filters),
        every=every_tile(inspection.positions.similarity) if inspection.positions else 1,
        similarity_scale=colour_scale(-1, 1, "cosine similarity"),
        share_scale=colour_scale(0, 1, "share"),
        offset_scale=colour_scale(0, 1, "from the lowest to the highest value of a head"),
        reach=summarise_reach(inspection.heads),
        entropy=summarise([layer.entropy for layer in inspection.heads]),
        prefix=summarise([layer.prefix for layer in inspection.heads]),
        heads=list_heads(inspection.heads),
        painted=inspection.painted and show_components(inspection.painted),
        norms=inspection.tokens and list_norms(inspection.tokens),
        samples=[(sample, *show(sample)) for sample in inspection.samples],
        queries=[(sample, *show(sample)) for sample in inspection.queries],
        prototypes=inspection.prototypes and show_prototypes(inspection.prototypes),
        biases=inspection.biases and summarise_biases(inspection.biases),
        growth=fit_powers(inspection.cost),
        costs=list_costs("image", [(point.size, point) for point in inspection.cost]),
        costs_by_patch=list_costs("patch", [(point.patch_size, point) for point in inspection.cost_by_patch]),
        run=inspection.details(list_details(inspection)),
    )
    return write_page(out, page, plots, ".")


def drawings(inspection: Inspection) -> dict[str, Markup]:
    """Returns all charts that the data allow, by file name."""
    plots = {}
    if inspection.heads:
        plots["attention-distance"] = charts.distance_chart(inspection.heads)
        entropies, shares = zip(*((np.asarray(each.entropy), np.asarray(each.prefix)) for each in inspection.heads))
        plots["entropy"] = heat_map("Attention entropy", entropies)
        if has_prefix(inspection.heads):
            plots["attention-to-prefix"] = heat_map("Attention to prefix tokens", shares)
    if (biases := inspection.biases) is not None:
        moved = [response.concordance for response in biases.maps]
        distances, uniform = (
            [getattr(locality, name) for locality in biases.locality] for name in ("distance", "uniform")
        )
        plots["shifts"] = charts.shift_chart(biases.shifts)
        plots["equivariance"] = charts.depth_chart("Equivariance of feature maps", "concordance", moved)
        plots["locality"] = charts.depth_chart("Effective receptive field", "this model", distances, " px", uniform)
    if (tokens := inspection.tokens) is not None:
        plots["patch-norms"] = charts.norms_chart(tokens.maps)
        plots["patch-norms-histogram"] = charts.norm_histogram(tokens.maps[tokens.shown], tokens.shown)
        if (places := tokens.maps[tokens.shown].places).any():
            plots["outliers"] = charts.places_chart(places, tokens.shown)
    if inspection.cost:
        plots["cost-time"] = charts.cost_chart("Time", inspection.cost, ("seconds", "plain_seconds"), format_time)
        held = ("bytes", "plain_bytes")
        plots["cost-memory"] = charts.cost_chart("Memory", inspection.cost, held, lambda value: large(value, "B"))
    return plots


def draw_pictures(inspection: Inspection) -> dict[str, np.ndarray]:
    """Returns the images of the filters, of the position similarities, of offsets and of components."""
    filters = inspection.filters.pictures
    cell = max(1, round(TILE / max(filters.shape[1:3])))
    pictures = {"filters": draw_filters(filters, min(COLUMNS, max(len(filters), 1)), cell=cell)}
    if inspection.positions is not None:
        similarity = inspection.positions.similarity
        every = every_tile(similarity)
        tiles = similarity[::every, ::every]
        cell = max(1, MOSAIC // max(tiles.shape[0] * tiles.shape[2], tiles.shape[1] * tiles.shape[3]))
        pictures["positions"] = draw_mosaic(tiles, cell=cell)
    if (found := inspection.rotations) is not None:
        for name in ("attention", "kernel"):
            tiles = np.stack([scale_tiles(getattr(layer, name).numpy()) for layer in found.layers])  # (L, H, ...)
            cell = max(1, MOSAIC // (tiles.shape[1] * tiles.shape[3]))
            pictures[f"offsets-{name}"] = draw_mosaic(tiles, range=(0.0, 1.0), cell=cell)
    if (painted := inspection.painted) is not None:
        tiles = painted.components.pictures()
        pictures["components"] = draw_filters(tiles, COLUMNS, cell=max(1, TILE // max(tiles.shape[1:3])))
    return pictures


def scale_tiles(values: np.ndarray) -> np.ndarray:
    """Scales the map of each head (H, h, w) to 0 to 1; one that is equal everywhere is 0."""
    low, high = values.min((1, 2), keepdims=True), values.max((1, 2), keepdims=True)
    return np.divide(values - low, high - low, out=np.zeros_like(values), where=high > low)


def every_tile(similarity: np.ndarray) -> int:
    """Returns the step between the rows and columns of positions (h, w, h, w) that are shown, so that tiles stay legible."""
    return math.ceil(max(similarity.shape[:2]) / MAX_TILES)


def summarise_variance(layer: Filters) -> dict[str, Any] | None:
    """Returns how much variance the components explain; None if there is only one filter, or all are equal."""
    # rounding: the fp32 ratios of all components do not sum to exactly 1
    count, explained = len(layer.pictures), np.cumsum(layer.explained, dtype=np.float64).round(6)
    if not count or not explained[-1]:
        return None
    needed = int(np.flatnonzero(explained >= MAX_OF_VARIANCE)[0]) + 1
    return {"count": count, "share": float(explained[count - 1]), "most": MAX_OF_VARIANCE, "needed": needed}


def summarise_reach(heads: Sequence[HeadFigures]) -> dict[str, Any] | None:
    """Returns the most local and the most global head as (pixels, layer, head), and the distance of uniform attention."""
    named = [
        (float(far), layer, head)
        for layer, figures in enumerate(heads)
        for head, far in enumerate(np.asarray(figures.distance))
        if math.isfinite(far)
    ]
    if not named:
        return None
    uniform = [figures.uniform for figures in heads if math.isfinite(figures.uniform)]
    low, high = min(uniform), max(uniform)
    distance = f"{low:.1f} px" if high - low < 0.05 else f"{low:.1f} to {high:.1f} px (by layer)"
    return {"nearest": min(named), "farthest": max(named), "uniform": distance, "missing": len(heads) - len(uniform)}


def list_heads(heads: Sequence[HeadFigures]) -> Table:
    """Returns the table of the values of all heads."""
    prefixed, rows = has_prefix(heads), []
    for layer, figures in enumerate(heads):
        shares = (np.asarray(each, np.float64).tolist() for each in (figures.distance, figures.entropy, figures.prefix))
        for head, (far, entropy, prefix) in enumerate(zip(*shares)):
            cells = [number(far, 1), number(far / figures.uniform, 2), number(entropy, 3)]
            cells += [number(prefix, 3)] if prefixed else []
            rows.append([Cell(layer, key=layer), Cell(head, key=head), *cells])
    columns = ["layer", "head", "distance, px", "share of uniform", "entropy"]
    columns += ["to prefix tokens"] if prefixed else []
    return Table("Values of all heads", columns, rows, sorted_by="layer")


def list_norms(tokens: Tokens) -> Table:
    """Returns the table of the norms of each feature map."""
    rows = []
    for index, map_ in enumerate(tokens.maps):
        shape = " × ".join(map(str, map_.norms.shape[1:]))
        norms = [number(value, 2) for value in (map_.median, map_.high, map_.largest)]
        shares = [percent(map_.outliers, 2), percent(map_.near, 2)]
        rows.append([index, shape, *norms, *shares, "artefacts" if map_.is_bimodal else "–"])
    shares = (f"above {OUTLIER:g} × median", f"{NEAR:g} to {OUTLIER:g} × median")
    return Table("Norms of patches", ("map", "patches", "median", "98th percentile", "maximum", *shares, "found"), rows)


def number(value: float, digits: int) -> Cell:
    """Returns a sortable table cell; NaN is a dash."""
    return Cell(decimal(value, digits), key=f"{value:.6f}" if math.isfinite(value) else "")


def has_prefix(heads: Sequence[HeadFigures]) -> bool:
    """Whether spatial tokens attend to prefix tokens in any layer."""
    return any(np.nan_to_num(np.asarray(layer.prefix)).any() for layer in heads)


def summarise(values: Sequence[Any]) -> str:
    """Returns a sentence with mean, minimum and maximum over the heads (H,) of all layers."""
    shares = np.concatenate([np.asarray(layer, np.float64) for layer in values]) if values else np.zeros(0)
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return "Undefined in all layers."
    return f"Mean over heads {shares.mean():.2f}, minimum {shares.min():.2f}, maximum {shares.max():.2f}."


def show(sample: Sample) -> tuple[Picture, list[tuple[str, str, str]]]:
    """Returns the picture of a sample, and (data URI, method, steepness) of each of its maps."""
    maps = []
    for name, attention in sample.maps.items():
        overlaid = overlay_attention(sample.picture, attention, sample.reach_of(name))
        # the ratio of peak and mean: the overlay does not show it, as each map has its own scale
        mean = float(attention.mean())
        peak = f"peak {float(attention.max()) / mean:.1f} × its mean" if mean > 0 else "zero everywhere"
        maps.append((data_uri(overlaid), METHODS.get(name, name), peak.replace(" ", "\u00a0")))
    return photograph(sample.picture), maps


def show_components(painted: Painted) -> dict[str, Any]:
    """Returns the pictures of images beside those of their components, and the shares of each component as a table."""
    found = painted.components
    shares = zip(("1, red", "2, green", "3, blue"), found.explained.tolist(), found.between.tolist())
    rows = [(name, percent(explained), percent(between)) for name, explained, between in shares]
    return {
        "pairs": [(photograph(each), photograph(map_)) for each, map_ in zip(painted.pictures, found.pictures())],
        "table": Table("Components of the patches", ("component", "explained", "of that between images"), rows),
        "explained": float(found.explained.sum()),
        "is_poor": float(found.explained.sum()) < POOR,
    }


def show_prototypes(prototypes: Prototypes) -> list[tuple[Picture, Picture]]:
    """Returns the pictures of the first images beside those of their prototypes, each on a scale of its own."""
    pairs = []
    for picture, maps in zip(prototypes.pictures[:PROTOTYPE_IMAGES], prototypes.maps):
        tiles = to_uint8(scale_tiles(maps))[..., None].repeat(3, -1)  # (P, r, c, 3)
        pairs.append((photograph(picture), pixels(draw_filters(tiles, PROTOTYPE_COLUMNS, cell=1))))
    return pairs


def summarise_biases(biases: Biases) -> dict[str, Any]:
    """Returns the sentences and figures of the section of inductive biases."""
    pixels, unplaced, unrotated = biases.permutation
    return {
        "images": plural(biases.images, "image"),
        "changed": describe_changes(biases.shifts),
        "concordance": describe_ends([response.concordance for response in biases.maps], 2),
        "distance": describe_ends([locality.distance for locality in biases.locality], 1, " px"),
        "permuted": pixels,
        "unplaced": unplaced,
        "unrotated": unrotated,
        "rounding": 1e-6,  # smaller changes of features are rounding errors
    }


def describe_changes(shifts: Mapping[int, Response]) -> str:
    """Returns a sentence about the shift that changes most predictions."""
    known = [(response.changed, shift) for shift, response in shifts.items() if response.changed is not None]
    if not known:
        return ""
    share, shift = max(known)
    if not share:
        return "No prediction changes."
    return f"A shift by {plural(shift, 'pixel')} changes most predictions: {percent(share)} of the images."


def describe_ends(values: Sequence[float | None], digits: int, unit: str = "") -> str:
    """Returns a sentence with the first and the last known value."""
    known = [f"{decimal(value, digits)}{unit} for map {at}" for at, value in enumerate(values) if value is not None]
    if not known:
        return "Undefined for all maps."
    return f"The value is {known[0]}." if len(known) == 1 else f"The value is {known[0]} and {known[-1]}."


def fit_powers(costs: Sequence[CostPoint]) -> list[float] | None:
    """Returns the exponents of the number of tokens of time and memory, each without and with full attention matrices."""
    names = ("seconds", "plain_seconds", "bytes", "plain_bytes")
    powers = [fit_growth(costs, name) for name in names] if costs else [math.nan]
    return powers if all(map(math.isfinite, powers)) else None


def list_costs(what: str, points: Sequence[tuple[tuple[int, int], CostPoint]]) -> Table:
    """Returns the table of costs with a row for each image or patch size."""
    rows = []
    for size, point in points:
        times = ["–" if value is None else format_time(value) for value in (point.seconds, point.plain_seconds)]
        held = ["–" if value is None else large(value, "B") for value in (point.bytes, point.plain_bytes)]
        rows.append([" × ".join(map(str, size)), f"{point.tokens:,}", large(point.multiply_adds), *times, *held])
    columns = (what, "tokens", "multiply-adds", "time", "time, full matrices", "memory", "memory, full matrices")
    return Table(f"Cost by {what} size", columns, rows)


def format_time(seconds: float) -> str:
    return f"{seconds * 1000:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def list_details(inspection: Inspection) -> dict[str, str]:
    """Returns the rows of the run details: model and data."""
    counts = [plural(inspection.images, "image") + " for the heads"] if inspection.heads else []
    counts += [f"{len(inspection.tokens.maps[0].norms):,} for the norms"] if inspection.tokens else []
    counts += [f"{inspection.biases.images:,} for the inductive biases"] if inspection.biases else []
    counts += [f"{len(inspection.samples):,} shown"] if inspection.samples else []
    size = inspection.image_size
    return {
        "Model": describe_model(inspection.model, inspection.parameters, inspection.multiply_adds, size),
        "Data": inspection.data,
        "Images": ", ".join(counts),
    }
