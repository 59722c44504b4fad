"""The page of a comparison of models by speed, memory and largest batch over image sizes (ViT paper, appendix D.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.throughput import MOST, Speed
from vitrail.files import disk_errors, replace_file
from vitrail.markup import Markup, join, tag
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, Series, log_axis
from vitrail.reports.components import describe_run, header, lead, list_versions, make_scrollable, notes
from vitrail.reports.page import frame
from vitrail.text import large, plural

COLOURS = ("cobalt", "amber", "emerald", "ruby", "violet")
MOST_MODELS = 2 * len(COLOURS)  # the second five are dashed


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
class Comparison:
    """All results: the costs, each model at all its sizes, and how they were measured."""

    costs: Sequence[ComparedCost]
    precision: str
    device: str
    notes: Sequence[str] = ()
    command: str = ""
    machine: str = ""
    versions: Mapping[str, str]
    date: str = ""


def write_comparison(out: Path, comparison: Comparison) -> Path:
    """Writes ``report.html`` and its charts as SVG into ``out``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    plots = draw_charts(comparison.costs)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    for name, drawing in plots.items():
        replace_file(out / f"{name}.svg", draw.standalone(drawing))
    models = list(dict.fromkeys(cost.model for cost in comparison.costs))
    figures = tag("div", *(tag("figure", drawing) for drawing in plots.values()), class_="charts")
    parts = {
        "Speed and memory": join(tag("h2", "Speed and memory"), _explain(comparison), figures),
        "All figures": join(tag("h2", "All figures"), _table(comparison.costs)),
        "Run details": describe_run(
            comparison.command,
            {
                "Models": ", ".join(models),
                "Precision": comparison.precision,
                "Machine": comparison.machine,
                "Versions": list_versions(comparison.versions),
            },
        ),
    }
    title = f"Cost of {plural(len(models), 'model')}"
    page = frame("vitrail inspect --cost", title, comparison.date, notes(comparison.notes) or Markup(""), parts)
    replace_file(out / "report.html", page)
    return out / "report.html"


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
    models = list(dict.fromkeys(cost.model for cost in costs))
    sides = np.array([math.sqrt(math.prod(cost.size)) for cost in costs])
    series = []
    for at, model in enumerate(models):
        own = sorted((side, value) for side, value, cost in zip(sides, values, costs) if cost.model == model)
        x, y = np.array(own, np.float64).T
        dashed = at >= len(COLOURS)
        series.append(Series(model, x, y, COLOURS[at % len(COLOURS)], marked=True, dashed=dashed))
    legend, below = draw.legend(series)
    floor = below + draw.HEIGHT - draw.TOP
    marks = sorted(set(sides.tolist()))
    across = Axis(
        marks[0] / 1.1,
        marks[-1] * 1.1,
        draw.LEFT,
        draw.WIDTH - draw.RIGHT,
        log=True,
        marks=marks,
        words="{:.0f}".format,
    )
    up = log_axis(np.array([value for value in values if value > 0]), (floor - draw.BOTTOM, below), _spell)
    says = f"{title} against the image side: " + "; ".join(_list_ends(line, _spell) for line in series)
    lines = join(*(draw.draw_series(line, across, up, "side") for line in series))
    parts = (draw.heading(title), legend, draw.axes(across, up, "image side, pixels"), lines)
    return draw.svg(draw.WIDTH, floor, says, *parts)


def _list_ends(line: Series, words: Callable[[float], str]) -> str:
    known = [(x, y) for x, y in zip(line.x.tolist(), line.y.tolist()) if math.isfinite(y)]
    return f"{line.label} " + (", ".join(f"{words(y)} at {x:.0f}" for x, y in known) or "not measured")


def _spell(value: float) -> str:
    return f"{value:.2g}" if value < 10 else large(value)


def _explain(comparison: Comparison) -> Markup:
    """Returns what the charts show and how it was measured."""
    words = (
        "Against the side of the image (if it is not square, the side of a square of the same area), on logarithmic axes; the "
        "paper's figure 12. Images per second are the median of passes in which the models take turns, so that other load on "
        "the machine affects all of them. "
    )
    kinds = {cost.largest_batch_is for cost in comparison.costs}
    if "predicted" in kinds:
        words += (
            "The largest batch is not run on a CPU, where a process that takes all memory may be killed by the system. It is "
            "predicted from the tensors of passes of one and two images and the memory that was available."
        )
    elif "measured" in kinds:
        words += (
            "The largest batch was run; batches 3 % larger ran out of memory, unless it is "
            f"{MOST:,}, where the search ends."
        )
    else:
        words += "The largest batch was not measured: this device does not report its free memory."
    return lead(words)


def _table(costs: Sequence[ComparedCost]) -> Markup:
    rows = []
    for cost in costs:
        speed = cost.speed
        cells = (
            spell_size(cost.size),
            large(cost.parameters),
            large(cost.multiply_adds),
            "–" if speed is None else f"{speed.median:,.3g}",
            "–" if speed is None else f"{speed.slowest:,.3g} to {speed.fastest:,.3g}",
            "–" if speed is None else f"{speed.batch:,}",
            "–" if cost.bytes_per_image is None else large(cost.bytes_per_image, "B"),
            "–" if cost.largest_batch is None else f"{cost.largest_batch:,}",
        )
        rows.append(tag("tr", tag("th", cost.model, scope="row"), *(tag("td", cell) for cell in cells)))
    largest = "largest batch" + (" (predicted)" if any(cost.largest_batch_is == "predicted" for cost in costs) else "")
    columns = (
        "model",
        "pixels",
        "parameters",
        "multiply-adds",
        "images/s",
        "slowest to fastest",
        "batch",
        "memory per image",
        largest,
    )
    return make_scrollable(tag("table", header(columns), tag("tbody", *rows)), "Cost by model and image size")
