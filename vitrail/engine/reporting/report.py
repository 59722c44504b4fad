"""The report of a run: one page that needs no network. A part whose facts are missing leaves its section out."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.analysis.palette import DARK, LIGHT
from vitrail.engine.reporting import figures as draw
from vitrail.engine.reporting import sections
from vitrail.engine.reporting.facts import Mistake as Mistake
from vitrail.engine.reporting.facts import ReportFacts as ReportFacts
from vitrail.engine.reporting.markup import Markup, tag
from vitrail.engine.reporting.tally import worst_mistakes as worst_mistakes
from vitrail.engine.reporting.wording import large, scientific
from vitrail.files import disk_errors, replace_file

MATRIX_MOST = 32  # classes; beyond, the pairs say more than a matrix whose panes are pixels
PANES = ("cobalt", "emerald", "amber", "cobalt", "violet", "cobalt", "ruby")
LOSS = ("loss", "training", "cobalt")
SPEED = ("images_per_second", "images/s", "emerald")


def write_report(folder: Path, facts: ReportFacts) -> Path:
    """Writes ``report.html`` and its drawings as ``plots/*.svg`` into ``folder``; returns the page's path.

    Raises `DiskError` where the folder cannot be written.
    """
    plots = drawings(facts)
    with disk_errors(folder):
        (folder / "plots").mkdir(parents=True, exist_ok=True)
    for name, drawing in plots.items():
        replace_file(folder / "plots" / f"{name}.svg", draw.standalone(drawing))
    replace_file(folder / "report.html", page(facts, plots))
    return folder / "report.html"


def drawings(facts: ReportFacts) -> dict[str, Markup]:
    """Every drawing that the facts allow, by the name of its file."""
    plots = curves(facts.records)
    if facts.judged:
        plots["reliability"] = draw.reliability_chart(facts.calibration)
        if not facts.multi_label and 2 <= len(facts.classes) <= MATRIX_MOST:
            plots["confusion"] = draw.confusion_chart(facts.confusion, facts.classes)
    return plots


def curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """The charts over the training step, each from whichever of its columns were recorded."""

    def series(column: str, label: str, colour: str, **how: Any) -> list[draw.Series]:
        pairs = [(each["step"], each[column]) for each in records if each.get(column) is not None and "step" in each]
        x, y = np.array(pairs, np.float64).reshape(-1, 2).T
        return [draw.Series(label, x, y, colour, **how)] if pairs else []

    def marked(column: str, label: str) -> list[draw.Series]:
        return series(column, label, "amber", marked=True)

    share: dict[str, Any] = {"words": short_percent, "least": None, "most": 1.0}
    validation = marked("val_loss", "validation") or marked("val_nll", "validation")
    training, speed = (series(*each, smooth=True) for each in (LOSS, SPEED))
    wanted: dict[str, tuple[str, list[draw.Series], dict[str, Any]]] = {
        "loss": ("Loss", training + validation, {}),
        "accuracy": ("Validation accuracy", marked("val_top1", "top-1"), share),
        "average-precision": ("Validation mean average precision", marked("val_map", "mAP"), share),
        "learning-rate": ("Learning rate", series("lr", "learning rate", "violet"), {"words": scientific}),
        "speed": ("Images per second", speed, {"words": large}),
    }
    return {name: draw.line_chart(title, lines, **how) for name, (title, lines, how) in wanted.items() if lines}


def short_percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def page(facts: ReportFacts, plots: Mapping[str, Markup]) -> str:
    """The whole document."""
    parts = {
        "Curves": sections.curves(facts, plots),
        "Confusion": sections.confusion(facts, plots),
        "Classes": sections.classes(facts),
        "Mistakes": sections.mistakes(facts),
        "Calibration": sections.calibration(facts, plots),
        "What was run": sections.run(facts),
    }
    named = {title.lower().replace(" ", "-"): (title, part) for title, part in parts.items() if part is not None}
    links = (tag("a", title, href=f"#{name}") for name, (title, _) in named.items())
    eyebrow = tag("p", " · ".join(filter(None, ("vitrail report", facts.date))), class_="eyebrow")
    opening = tag("header", eyebrow, tag("h1", facts.title), tag("nav", *links, aria_label="Sections"))
    bodies = (tag("section", part, id=name) for name, (_, part) in named.items())
    footer = tag("footer", "Written by vitrail. The page is one file and asks nothing of the network.")
    main = tag("main", opening, sections.headline(facts), sections.notes(facts), *bodies, footer)
    script = (files("vitrail.engine.reporting") / "report.js").read_text("utf-8")
    body = tag("body", stained_glass(), main, tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head(facts.title, script), body, lang='en')}\n"


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
    fonts = f"--sans:{draw.SANS};--serif:{serif};--mono:{mono};--lead:#23262e"
    dark = f"@media(prefers-color-scheme:dark){{:root{{{palette(DARK)}}}}}"
    printed = f"@media print{{:root{{{palette(LIGHT)}}}}}"
    own = (files("vitrail.engine.reporting") / "report.css").read_text("utf-8")
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
