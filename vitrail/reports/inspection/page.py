"""The report of an inspection: a self-contained page, with its images and charts also as separate files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitrail.analysis.pictures import draw_filters, draw_mosaic, draw_scale_bar, save_png
from vitrail.files import disk_errors, replace_file
from vitrail.markup import Markup, join
from vitrail.reports.charts import standalone
from vitrail.reports.components import notes, overlay_attention
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection import heads as heads
from vitrail.reports.inspection import sections as sections
from vitrail.reports.inspection.facts import Inspection
from vitrail.reports.page import frame
from vitrail.text import large

COLUMNS = 7  # of filters: 28 filters make four rows, as in the paper
TILE = 96  # pixels per filter
MOSAIC = 784  # pixels of the similarity mosaic per side, without gaps


def write_inspection(out: Path, inspection: Inspection) -> Path:
    """Writes ``report.html`` into ``out``, with its images as PNG and its charts as SVG; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    pictures, plots = draw_pictures(inspection), drawings(inspection)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        save_png(out / f"{name}.png", picture)
    if inspection.positions is not None:
        bar = draw_scale_bar(-1, 1, label="cosine similarity", width=pictures["positions"].shape[1])
        save_png(out / "positions.png", np.concatenate([pictures["positions"], bar]))
    for number, sample in enumerate(inspection.samples, 1):
        for name, attention in sample.maps.items():
            save_png(out / f"{name}-{number}.png", overlay_attention(sample.picture, attention, sample.reach_of(name)))
    for name, drawing in plots.items():
        replace_file(out / f"{name}.svg", standalone(drawing))
    replace_file(out / "report.html", page(inspection, pictures, plots))
    return out / "report.html"


def page(inspection: Inspection, pictures: Mapping[str, np.ndarray], plots: Mapping[str, Markup]) -> str:
    """Returns the whole document."""
    parts = {
        "Filters": sections.filters(inspection.filters, pictures["filters"]),
        "Positions": sections.positions(inspection.positions, pictures["positions"]) if inspection.positions else None,
        "Distance": heads.distance(inspection, plots),
        "Entropy": heads.entropy(inspection, plots),
        "Samples": sections.samples(inspection),
        "Biases": sections.biases(inspection, plots),
        "Cost": sections.cost(inspection, plots),
        "Run details": sections.run(inspection),
    }
    return frame(
        "vitrail inspect",
        inspection.title,
        inspection.date,
        join(sections.headline(inspection), notes(inspection.notes)),
        parts,
    )


def drawings(inspection: Inspection) -> dict[str, Markup]:
    """Returns all charts that the data allow, by file name."""
    plots = {}
    if inspection.heads:
        plots["attention-distance"] = charts.distance_chart(inspection.heads)
        plots["entropy"] = charts.head_map(
            "Attention entropy", [np.asarray(layer.entropy) for layer in inspection.heads]
        )
        if heads.has_prefix(inspection.heads):
            shares = [np.asarray(layer.prefix) for layer in inspection.heads]
            plots["attention-to-prefix"] = charts.head_map("Attention to prefix tokens", shares)
    if (biases := inspection.biases) is not None:
        moved = [response.concordance for response in biases.maps]
        distances, uniform = (
            [getattr(locality, name) for locality in biases.locality] for name in ("distance", "uniform")
        )
        plots["shifts"] = charts.shift_chart(biases.shifts)
        plots["equivariance"] = charts.depth_chart("Equivariance of feature maps", "concordance", moved)
        plots["locality"] = charts.depth_chart("Effective receptive field", "this model", distances, " px", uniform)
    if inspection.cost:
        held = ("bytes", "plain_bytes")
        plots["cost-time"] = charts.cost_chart(
            "Time", inspection.cost, ("seconds", "plain_seconds"), sections.spell_time
        )
        plots["cost-memory"] = charts.cost_chart("Memory", inspection.cost, held, lambda value: large(value, "B"))
    return plots


def draw_pictures(inspection: Inspection) -> dict[str, np.ndarray]:
    """Returns the images of the filters and of the position similarities."""
    filters = inspection.filters.pictures
    cell = max(1, round(TILE / max(filters.shape[1:3])))
    pictures = {"filters": draw_filters(filters, min(COLUMNS, max(len(filters), 1)), cell=cell)}
    if inspection.positions is not None:
        similarity = inspection.positions.similarity
        every = sections.every_tile(similarity)
        tiles = similarity[::every, ::every]
        cell = max(1, MOSAIC // max(tiles.shape[0] * tiles.shape[2], tiles.shape[1] * tiles.shape[3]))
        pictures["positions"] = draw_mosaic(tiles, cell=cell)
    return pictures
