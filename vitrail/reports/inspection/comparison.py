"""The page of a comparison of models by speed, memory and largest batch over image sizes (ViT paper, appendix D.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.cost import LARGEST_BATCH, Speed
from vitrail.markup import Markup
from vitrail.reports import charts as draw
from vitrail.reports.facts import Origin
from vitrail.reports.page import Table, render, write_page
from vitrail.text import large, plural

MAX_MODELS = 2 * len(draw.COLOURS)


@dataclass(frozen=True, kw_only=True)
class ComparedCost:
    """One model at one image size. None is what was not measured.

    ``largest_batch_is`` is "measured", in which case that batch was run, "predicted" from the available memory, or None.
    """

    model: str
    size: tuple[int, int]
    tokens: int
    parameters: int
    multiply_adds: int
    bytes_per_image: int | None = None
    largest_batch: int | None = None
    largest_batch_is: str | None = None
    speed: Speed | None = None

    def to_row(self) -> dict[str, Any]:
        """Returns a row of the table, plain values by column."""
        speed = self.speed or Speed(0, math.nan, math.nan, math.nan)
        return {
            "model": self.model,
            "height": self.size[0],
            "width": self.size[1],
            "parameters": self.parameters,
            "multiply_adds": self.multiply_adds,
            "tokens": self.tokens,
            "batch": speed.batch,
            "images_per_second": round(speed.median, 3),
            "slowest": round(speed.slowest, 3),
            "fastest": round(speed.fastest, 3),
            "bytes_per_image": self.bytes_per_image,
            "largest_batch": self.largest_batch,
            "largest_batch_is": self.largest_batch_is,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison(Origin):
    """All results: the costs, each model at all its sizes, and how they were measured."""

    costs: Sequence[ComparedCost]
    precision: str
    device: str
    notes: Sequence[str] = ()


def write_comparison(out: Path, comparison: Comparison) -> Path:
    """Writes ``report.html`` and its charts as SVG into ``out``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    plots, models = draw_charts(comparison.costs), list(dict.fromkeys(cost.model for cost in comparison.costs))
    page = render(
        "comparison.html",
        "vitrail inspect --cost",
        f"Cost of {plural(len(models), 'model')}",
        comparison.date,
        notes_lines=comparison.notes,
        plots=list(plots.values()),
        batches={cost.largest_batch_is for cost in comparison.costs},
        most=f"{LARGEST_BATCH:,}",
        costs=list_costs(comparison.costs),
        run=comparison.details({"Models": ", ".join(models), "Precision": comparison.precision}),
    )
    return write_page(out, page, plots, ".")


def spell_size(size: tuple[int, int]) -> str:
    """Formats (height, width): "224" for a square, otherwise "224x160"."""
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"


def draw_charts(costs: Sequence[ComparedCost]) -> dict[str, Markup]:
    """Returns the charts that the data allow, by file name."""
    plots = {}
    if any(cost.speed for cost in costs):
        values = [cost.speed.median if cost.speed else math.nan for cost in costs]
        plots["images-per-second"] = _chart("Images per second", costs, values)
    if any(cost.largest_batch for cost in costs):
        values = [cost.largest_batch or math.nan for cost in costs]
        plots["largest-batch"] = _chart("Largest batch", costs, values)
    return plots


def _chart(title: str, costs: Sequence[ComparedCost], values: Sequence[float]) -> Markup:
    """Draws one line for each model on logarithmic axes, with the legend in rows above."""
    sides = np.array([math.sqrt(math.prod(cost.size)) for cost in costs])
    lines: dict[str, Any] = {}
    for model in dict.fromkeys(cost.model for cost in costs):
        own = sorted((side, value) for side, value, cost in zip(sides, values, costs) if cost.model == model)
        lines[model] = np.array(own, np.float64).T
    series = draw.tell_apart(lines)
    marks = sorted(set(sides.tolist()))
    across = draw.horizontal_axis(marks[0] / 1.1, marks[-1] * 1.1, log=True, marks=marks, words="{:.0f}".format)
    known = np.array([value for value in values if value > 0])
    up = draw.log_axis(known, draw.HEIGHT - draw.BOTTOM, draw.TOP, _spell)
    says = [f"{line.label} {line.list_points(_spell) or 'not measured'}" for line in series]
    says = f"{title} against the image side: {'; '.join(says)}"
    return draw.chart(title, series, across, up, "image side, pixels", says, rows=True)


def _spell(value: float) -> str:
    return f"{value:.2g}" if value < 10 else large(value)


def list_costs(costs: Sequence[ComparedCost]) -> Table:
    """Returns the table of all costs. A new column is one more name and one more cell here."""
    rows = []
    for cost in costs:
        speed = cost.speed
        rows.append(
            (
                cost.model,
                spell_size(cost.size),
                large(cost.parameters),
                large(cost.multiply_adds),
                "–" if speed is None else f"{speed.median:,.3g}",
                "–" if speed is None else f"{speed.slowest:,.3g} to {speed.fastest:,.3g}",
                "–" if speed is None else f"{speed.batch:,}",
                "–" if cost.bytes_per_image is None else large(cost.bytes_per_image, "B"),
                "–" if cost.largest_batch is None else f"{cost.largest_batch:,}",
            )
        )
    largest = "largest batch" + (" (predicted)" if any(cost.largest_batch_is == "predicted" for cost in costs) else "")
    columns = ("model", "pixels", "parameters", "multiply-adds", "images/s", "slowest to fastest", "batch")
    return Table("Cost by model and image size", (*columns, "memory per image", largest), rows)
