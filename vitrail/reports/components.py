"""Components shared by several report pages: paragraphs, tables and images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.analysis.pictures import find_light_range, overlay
from vitrail.markup import Markup, join, tag
from vitrail.reports.facts import RunFacts, as_yaml, describe_compute
from vitrail.reports.html import SHORT_SIDE_OF_A_DRAWING, data_uri
from vitrail.runtime.progress import duration
from vitrail.text import large, plural

SHARPEST = 224  # pixels of the longer side of an enlarged image
FEW = 100  # images; below, the 95 % interval of an accuracy of 80 % is wider than 15 points


def lead(*words: object) -> Markup:
    return tag("p", *words, class_="lead")


def show_figure(value: str, name: str, *words: Markup | None) -> Markup:
    """Returns the headline of a page: a value with its name, beside its explanation."""
    figure = tag("div", tag("p", value, class_="figure-value"), tag("p", name, class_="figure-name"))
    return tag("div", figure, tag("div", *words, class_="words"), class_="headline")


def list_figures(rows: Sequence[tuple[str, str, str]]) -> Markup | None:
    """Returns a row of metrics: (name, value, description) each."""
    items = (
        tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", gloss, class_="gloss"))
        for name, value, gloss in rows
    )
    return tag("dl", *items, class_="more") if rows else None


def notes(words: Sequence[str]) -> Markup | None:
    """Returns the box of notes about the run, or None without notes."""
    if not words:
        return None
    return tag("aside", tag("h2", "Notes"), tag("ul", *(tag("li", note) for note in words)), class_="notes")


def warn_of_few(images: int) -> list[str]:
    """Returns a sentence about metrics of few images, or an empty list."""
    if images >= FEW:
        return []
    return [
        f"Only {plural(images, 'image was', 'images were')} evaluated; the metrics are uncertain (see the intervals)."
    ]


def charts(words: Sequence[str], drawings: Sequence[Markup]) -> Markup | None:
    """Returns the section of charts against the training step, below sentences about them."""
    if not drawings:
        return None
    figures = tag("div", *(tag("figure", drawing) for drawing in drawings), class_="charts")
    return join(tag("h2", "Training curves"), lead(*words), figures)


def make_scrollable(table: Markup, name: str) -> Markup:
    """Wraps a table in its own scrollable region, which the keyboard can reach."""
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def header(names: Sequence[str], *, text: int = 1, sorted_by: str | None = None) -> Markup:
    """Returns a table head: ``text`` text columns, then numeric ones. With ``sorted_by``, headings are sort buttons."""
    cells = []
    for index, name in enumerate(names):
        words = tag("button", name, type="button") if sorted_by else name
        kind, order = "text" if index < text else None, "ascending" if name == sorted_by else None
        cells.append(tag("th", words, scope="col", class_=kind, aria_sort=order))
    return tag("thead", tag("tr", *cells))


def photograph(picture: np.ndarray, alt: str) -> Markup:
    """Returns an image element. Small images are shown without smoothing."""
    small = min(picture.shape[:2]) <= SHORT_SIDE_OF_A_DRAWING
    return tag("img", src=data_uri(picture), alt=alt, class_="drawing" if small else None)


def pane(image: Markup, caption: str) -> Markup:
    return tag("figure", image, tag("figcaption", caption))


def overlay_attention(
    picture: np.ndarray, attention: np.ndarray, reach: tuple[float, float] = (1.0, 1.0)
) -> np.ndarray:
    """Overlays the attention map ``attention`` (h, w) on an image: uint8 (H, W, 3). For ``reach`` see `overlay`."""
    # small images are enlarged first, so that the map is smooth while their pixels keep hard edges
    small = min(picture.shape[:2]) <= SHORT_SIDE_OF_A_DRAWING
    times = math.ceil(SHARPEST / max(picture.shape[:2])) if small else 1
    return overlay(picture.repeat(times, 0).repeat(times, 1), attention, reach=reach, range=find_light_range(attention))


def run(facts: RunFacts, own: Mapping[str, str]) -> Markup:
    """Returns the run details: command, settings and environment. ``own`` are rows specific to the task."""
    took = duration(facts.seconds) if facts.seconds is not None else None
    speed = f"{facts.images_per_second:,.0f} images/s" if facts.images_per_second else None
    rows = {
        "Model": describe_model(facts.model, facts.parameters, facts.multiply_adds, facts.image_size),
        "Recipe": facts.recipe,
        "Data": ": ".join(filter(None, (facts.data, facts.layout))),
        "Images": ", ".join(f"{count:,} {name}" for name, count in facts.images.items()),
        **own,
        "Compute": describe_compute(facts.operations, facts.device_hours),
        "Time": ", ".join(filter(None, (took, speed))),
        "Machine": facts.machine,
        "Versions": list_versions(facts.versions),
    }
    settings = None
    if facts.config:
        text = tag("pre", tag("code", as_yaml(facts.config)))
        settings = tag("details", tag("summary", "Full configuration"), text)
    return join(describe_run(facts.command, rows), settings)


def describe_run(command: str, rows: Mapping[str, str]) -> Markup:
    """Returns the section of run details: the command and the rows that are not empty."""
    lines = (join(tag("dt", name), tag("dd", words)) for name, words in rows.items() if words)
    return join(
        tag("h2", "Run details"), show_commands(command) if command else None, tag("dl", *lines, class_="facts")
    )


def show_commands(*commands: str) -> Markup:
    """Returns a block of shell commands."""
    return tag("pre", tag("code", "\n".join(commands)), class_="command")


def describe_model(
    about: str, parameters: int | None, multiply_adds: int | None, image_size: tuple[int, int] | None
) -> str:
    """Describes the model in one line, as far as it is known."""
    size = " × ".join(map(str, image_size)) + " pixels" if image_size else None
    sums = f"{large(multiply_adds)} multiply-adds per image" if multiply_adds else None
    return ", ".join(filter(None, (about, f"{large(parameters)} parameters" if parameters else None, sums, size)))


def list_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version != "absent")
