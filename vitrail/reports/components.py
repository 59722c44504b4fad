"""Components that several report pages share: paragraphs, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.analysis.pictures import find_light_range, overlay
from vitrail.reports.facts import RunFacts
from vitrail.reports.html import SHORT_SIDE_OF_A_DRAWING, Markup, data_uri, join, tag
from vitrail.reports.wording import as_yaml, large
from vitrail.runtime.progress import duration

SHARPEST = 224  # pixels of an enlarged drawing


def lead(*words: object) -> Markup:
    return tag("p", *words, class_="lead")


def show_figure(value: str, name: str, *words: Markup | None) -> Markup:
    """The head of a page: the one figure and its name, beside what it means."""
    figure = tag("div", tag("p", value, class_="figure-value"), tag("p", name, class_="figure-name"))
    return tag("div", figure, tag("div", *words, class_="words"), class_="headline")


def list_figures(rows: Sequence[tuple[str, str, str]]) -> Markup | None:
    """Other figures in a row: the name of each, its value and what it means."""
    items = (
        tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", gloss, class_="gloss"))
        for name, value, gloss in rows
    )
    return tag("dl", *items, class_="more") if rows else None


def notes(words: Sequence[str]) -> Markup | None:
    """What a careful reader should know before believing the figures."""
    if not words:
        return None
    return tag("aside", tag("h2", "Worth knowing"), tag("ul", *(tag("li", note) for note in words)), class_="notes")


def charts(words: Sequence[str], drawings: Sequence[Markup]) -> Markup | None:
    """The drawings over the training step, below what is to be said of them."""
    if not drawings:
        return None
    figures = tag("div", *(tag("figure", drawing) for drawing in drawings), class_="charts")
    return join(tag("h2", "How the training went"), lead(*words), figures)


def make_scrollable(table: Markup, name: str) -> Markup:
    """A table that scrolls by itself, with the keyboard too."""
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def header(names: Sequence[str], *, text: int = 1, sorted_by: str | None = None) -> Markup:
    """The head of a table: ``text`` columns of words, then numbers; with ``sorted_by`` each heading is a button."""
    cells = []
    for index, name in enumerate(names):
        words = tag("button", name, type="button") if sorted_by else name
        kind, order = "text" if index < text else None, "ascending" if name == sorted_by else None
        cells.append(tag("th", words, scope="col", class_=kind, aria_sort=order))
    return tag("thead", tag("tr", *cells))


def photograph(picture: np.ndarray, alt: str) -> Markup:
    """A picture as the model got it; a small one keeps its hard edges."""
    small = min(picture.shape[:2]) <= SHORT_SIDE_OF_A_DRAWING
    return tag("img", src=data_uri(picture), alt=alt, class_="drawing" if small else None)


def pane(image: Markup, caption: str) -> Markup:
    return tag("figure", image, tag("figcaption", caption))


def overlay_attention(picture: np.ndarray, looked: np.ndarray, reach: tuple[float, float] = (1.0, 1.0)) -> np.ndarray:
    """The picture, light where the map ``looked`` (h, w) is large: uint8 (H, W, 3). For ``reach`` see `overlay`."""
    # a small one is enlarged first, so that the light is smooth over hard pixels
    small = min(picture.shape[:2]) <= SHORT_SIDE_OF_A_DRAWING
    times = math.ceil(SHARPEST / max(picture.shape[:2])) if small else 1
    return overlay(picture.repeat(times, 0).repeat(times, 1), looked, reach=reach, range=find_light_range(looked))


def run(facts: RunFacts, own: Mapping[str, str]) -> Markup:
    """What to repeat to get the same, and what it was measured on; ``own`` are rows that not every run has."""
    took = duration(facts.seconds) if facts.seconds is not None else None
    speed = f"{facts.images_per_second:,.0f} images/s" if facts.images_per_second else None
    rows = {
        "Model": describe_model(facts.model, facts.parameters, facts.multiply_adds, facts.image_size),
        "Recipe": facts.recipe,
        "Data": ": ".join(filter(None, (facts.data, facts.layout))),
        "Images": ", ".join(f"{count:,} {name}" for name, count in facts.images.items()),
        **own,
        "Time": ", ".join(filter(None, (took, speed))),
        "Machine": facts.machine,
        "Versions": list_versions(facts.versions),
    }
    settings = None
    if facts.config:
        text = tag("pre", tag("code", as_yaml(facts.config)))
        settings = tag("details", tag("summary", "Every setting, as resolved"), text)
    return join(describe_run(facts.command, rows), settings)


def describe_run(command: str, rows: Mapping[str, str]) -> Markup:
    """The command and what it worked with, without the rows that have no words."""
    lines = (join(tag("dt", name), tag("dd", words)) for name, words in rows.items() if words)
    return join(
        tag("h2", "What was run"), show_commands(command) if command else None, tag("dl", *lines, class_="facts")
    )


def show_commands(*commands: str) -> Markup:
    """Lines for a shell."""
    return tag("pre", tag("code", "\n".join(commands)), class_="command")


def describe_model(
    about: str, parameters: int | None, multiply_adds: int | None, image_size: tuple[int, int] | None
) -> str:
    """The model in a line, as far as it is known."""
    size = " × ".join(map(str, image_size)) + " pixels" if image_size else None
    sums = f"{large(multiply_adds)} multiply-adds an image" if multiply_adds else None
    return ", ".join(filter(None, (about, f"{large(parameters)} parameters" if parameters else None, sums, size)))


def list_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version != "absent")
