"""Renders pages from templates: one self-contained file with its style sheet and one script.

A page is a template of templates/ and the values for it. A template calls ``section`` for each `Section` of the page; what
it writes outside of them stands above. All text is escaped unless it is `Markup`, and an unknown name is an error.
Tables are values, too: a new column of a table touches the function that makes the `Table` and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from vitrail.analysis.palette import DARK_RULE, ICON, LIGHT, OF_LIGHT, SHARED
from vitrail.files import ensure_folder, replace_file
from vitrail.markup import UNWRITABLE, Markup, join, tag
from vitrail.reports.charts import standalone
from vitrail.text import decimal, large, number, percent, plural, scientific, sentence

PANES = ("cobalt", "emerald", "amber", "cobalt", "violet", "cobalt", "ruby")


@dataclass(frozen=True)
class Section:
    """A section of a page: its name in the navigation, what it shows, and its heading unless that is in the body."""

    name: str
    body: Markup
    title: str = ""

    @property
    def id(self) -> str:
        return self.name.lower().replace(" ", "-")


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, a remark below it, its key for sorting, and the length of its bar as a share."""

    text: object
    gloss: str = ""
    key: object = None
    share: float | None = None


@dataclass(frozen=True)
class Table:
    """A table: the first ``text`` columns are text, the others numbers; cells are texts or `Cell`.

    ``sorted_by`` names the column by which it is sorted, and makes the headings sort it. The first cell of a row is its
    heading unless there are several text columns without one (``headed``).
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: int = 1
    sorted_by: str | None = None
    headed: bool = True
    kind: str | None = None

    @property
    def cells(self) -> list[list[Cell]]:
        return [[each if isinstance(each, Cell) else Cell(each) for each in row] for row in self.rows]


# the templates of pages and cards
TEMPLATES: dict[str, Any] = {"loader": PackageLoader("vitrail.reports"), "undefined": StrictUndefined}
TEMPLATES |= {"trim_blocks": True, "lstrip_blocks": True}


@cache
def environment() -> Environment:
    """Returns the templates with the functions that format values."""
    found = Environment(**TEMPLATES, autoescape=True)
    formats = (percent, decimal, large, plural, sentence, number, scientific, show_code)
    found.filters |= {format.__name__: format for format in formats}
    return found


def show_code(words: str) -> Markup:
    """Returns escaped text in which what stands in backticks is set as code."""
    return join(*(tag("code", part) if place % 2 else part for place, part in enumerate(re.split(r"`([^`]*)`", words))))


def render(template: str, kind: str, title: str, date: str, **values: Any) -> str:
    """Returns the document of a template, ``kind`` and ``date`` in the line above its title."""
    sections: list[Section] = []

    def section(name: str, title: str = "", *, caller: Callable[[], str]) -> str:
        sections.append(Section(name, Markup(caller()), title or name))
        return ""

    opening = environment().get_template(template).render(section=section, **values)
    return frame(kind, title, date, Markup(opening), sections)


def frame(kind: str, title: str, date: str, opening: Markup, sections: Sequence[Section]) -> str:
    """Returns the document: title, navigation, ``opening``, then the sections.

    Its content security policy forbids all requests and all scripts except its own.
    """
    script = (files("vitrail.reports") / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            eyebrow=" · ".join(filter(None, (kind, date))),
            opening=opening,
            sections=sections,
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            icon=base64.b64encode(ICON.encode()).decode(),
            style=Markup(stylesheet()),
            script=Markup(script),
            window=list(_cut_panes()),
        )
    )
    return UNWRITABLE.sub("\ufffd", page)


def write_page(folder: Path, page: str, plots: Mapping[str, Markup], subfolder: str = "plots") -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    ensure_folder(folder / subfolder)
    for name, drawing in plots.items():
        replace_file(folder / subfolder / f"{name}.svg", standalone(drawing))
    replace_file(folder / "report.html", page)
    return folder / "report.html"


def stylesheet() -> str:
    """Returns the style sheet: fonts and colours of the charts, then ``report.css``."""
    printed = f"@media print{{:root{{{OF_LIGHT}}}}}"
    own = (files("vitrail.reports") / "report.css").read_text("utf-8")
    return f":root{{color-scheme:light dark;{SHARED};{OF_LIGHT}}}{DARK_RULE}{printed}\n{own}"


def _cut_panes() -> list[tuple[str, str]]:
    """Returns the corners and the colour of each pane of the decorative strip at the top of the page."""
    panes, left, lean = [], 0, 0
    for index in range(40):
        width, slant = 34 + (index * 29 + index**2 * 7) % 67, (index * 5) % 11 - 5
        right = left + width
        corners = f"{left + lean},0 {right + slant},0 {right - slant},14 {left - lean},14"
        panes.append((corners, LIGHT[PANES[(index * 3 + index // 5) % len(PANES)]]))
        left, lean = right, slant
    return panes
