"""The frame of every page that vitrail writes: one file that needs no network, with its own style and one script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from vitrail.analysis.palette import DARK, LIGHT
from vitrail.files import disk_errors, replace_file
from vitrail.reports.charts import SANS, standalone
from vitrail.reports.html import Markup, tag

PANES = ("cobalt", "emerald", "amber", "cobalt", "violet", "cobalt", "ruby")


def write_page(folder: Path, page: str, plots: Mapping[str, Markup]) -> Path:
    """Writes ``report.html`` and its drawings as ``plots/*.svg`` into ``folder``; returns the page's path.

    Raises `DiskError` where the folder cannot be written.
    """
    with disk_errors(folder):
        (folder / "plots").mkdir(parents=True, exist_ok=True)
    for name, drawing in plots.items():
        replace_file(folder / "plots" / f"{name}.svg", standalone(drawing))
    replace_file(folder / "report.html", page)
    return folder / "report.html"


def frame(kind: str, title: str, date: str, opening: Markup, parts: Mapping[str, Markup | None]) -> str:
    """The whole document: ``opening`` below the heading, then a section with a link for each part that is not None."""
    named = {name.lower().replace(" ", "-"): (name, part) for name, part in parts.items() if part is not None}
    links = (tag("a", name, href=f"#{key}") for key, (name, _) in named.items())
    eyebrow = tag("p", " · ".join(filter(None, (kind, date))), class_="eyebrow")
    header = tag("header", eyebrow, tag("h1", title), tag("nav", *links, aria_label="Sections"))
    bodies = (tag("section", part, id=key) for key, (_, part) in named.items())
    footer = tag("footer", "Written by vitrail. The page is one file and asks nothing of the network.")
    main = tag("main", header, opening, *bodies, footer)
    script = (files("vitrail.reports") / "report.js").read_text("utf-8")
    body = tag("body", stained_glass(), main, tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head(title, script), body, lang='en')}\n"


def head(title: str, script: str) -> Markup:
    """The page's head. Its policy forbids the browser every request, and any script but ``script``."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:image/svg+xml;base64," + base64.b64encode(ICON.encode()).decode()),
        tag("title", title, " · vitrail"),
        tag("style", Markup(stylesheet())),
    )


def stylesheet() -> str:
    """The page's style: the palette of the drawings, then ``report.css``."""

    def palette(colours: Mapping[str, str]) -> str:
        return ";".join(f"--{name}:{colour}" for name, colour in colours.items())

    serif = "'Iowan Old Style','Palatino Linotype',Palatino,'Source Serif 4','Liberation Serif',Georgia,serif"
    mono = "ui-monospace,'SF Mono',Menlo,Consolas,'Liberation Mono',monospace"
    fonts = f"--sans:{SANS};--serif:{serif};--mono:{mono};--lead:#23262e"
    dark = f"@media(prefers-color-scheme:dark){{:root{{{palette(DARK)}}}}}"
    printed = f"@media print{{:root{{{palette(LIGHT)}}}}}"
    own = (files("vitrail.reports") / "report.css").read_text("utf-8")
    return f":root{{color-scheme:light dark;{fonts};{palette(LIGHT)}}}{dark}{printed}\n{own}"


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#23262e"/>'
    '<path d="M2 2h5v6H2z" fill="#234f9e"/><path d="M8 2h6v4H8z" fill="#c07a12"/>'
    '<path d="M2 9h5v5H2z" fill="#25785a"/><path d="M8 7h6v7H8z" fill="#b22a40"/></svg>'
)


def stained_glass() -> Markup:
    """The strip of leaded panes above the page, which gives the workbench its name."""
    panes, left, lean = [], 0, 0
    for index in range(40):
        width, slant = 34 + (index * 29 + index**2 * 7) % 67, (index * 5) % 11 - 5
        right = left + width
        corners = f"{left + lean},0 {right + slant},0 {right - slant},14 {left - lean},14"
        panes.append(tag("polygon", points=corners, fill=LIGHT[PANES[(index * 3 + index // 5) % len(PANES)]]))
        left, lean = right, slant
    leads = {"stroke": "var(--lead)", "stroke_width": 2.5}
    return tag("svg", *panes, viewBox="0 0 2400 14", preserveAspectRatio="xMidYMid slice", class_="window",
               aria_hidden="true", **leads)  # fmt: skip
