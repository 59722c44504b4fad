"""The page of a study that still runs: cells done by experiment, and the time left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.markup import Markup, join, tag
from vitrail.reports.components import describe_run, header, lead, list_figures, make_scrollable
from vitrail.reports.page import Section, frame
from vitrail.reports.study.accounts import spell_time
from vitrail.text import number, percent, plural

Row = Mapping[str, Any]
STATES = {
    "planning": "The plan is being made.",
    "tuning": "Learning rates are being chosen; no final cell has been judged.",
    "running": "Final cells are being trained.",
    "judging": "All cells are trained; the claims are being judged.",
    "done": "The study is done.",
    "stopped": "No worker is running. `vitrail study work` continues where the study stopped.",
}


def count(rows: Sequence[Row], name: str) -> int:
    return sum(int(value) for row in rows if math.isfinite(value := number(row.get(name))))


def progress_page(progress: Row) -> str:
    """Returns the whole document."""
    rows = progress.get("experiments") or ()
    cells, done, failed = (count(rows, name) for name in ("cells", "done", "failed"))
    state, left = str(progress.get("state") or ""), number(progress.get("seconds_left"))
    share = (done + failed) / cells if cells else 0.0
    figure = tag(
        "div", tag("p", percent(share, 0), class_="figure-value"), tag("p", "of the cells", class_="figure-name")
    )
    remaining = tag("p", f"About {spell_time(left)} left.") if math.isfinite(left) else None
    words = (
        tag("p", tag("strong", state), f": {STATES.get(state, '')}"),
        remaining,
        bar(share, f"{done + failed:,} of {plural(cells, 'cell')}"),
        lead("Verdicts appear when all cells of their experiments are done. Reload the page to see newer figures."),
    )
    headline = tag("div", figure, tag("div", *words, class_="words"), class_="headline")
    figures = list_figures(
        [row for row in (
            ("cells done", f"{done:,}", f"of {cells:,}"),
            ("running", f"{count(rows, 'running'):,}", plural(count([progress], "workers"), "worker")),
            ("failed", f"{failed:,}" if failed else "", "after three attempts"),
            ("time used", spell_time(number(progress.get("seconds_used"))), ""),
            ("budget", spell_time(number(progress.get("budget_seconds"))), ""),
        ) if row[1]]
    )  # fmt: skip
    table = (
        make_scrollable(tag("table", header(COLUMNS), tag("tbody", *map(experiment, rows))), "Experiments")
        if rows
        else None
    )
    parts = {
        "Experiments": join(tag("h2", "Experiments"), table) if table is not None else None,
        "Run details": describe_run(
            "", {"Study": str(progress.get("study") or ""), "Plan": str(progress.get("plan") or "")}
        ),
    }
    title = str(progress.get("study") or "Study")
    return frame(
        "vitrail study",
        title,
        str(progress.get("date") or ""),
        join(headline, figures),
        [Section(name, part) for name, part in parts.items() if part is not None],
    )


COLUMNS = ("experiment", "done", "running", "failed", "time left", "progress")


def experiment(row: Row) -> Markup:
    """Returns the row of one experiment with the claims that wait for it."""
    cells, done, failed, running = (count([row], name) for name in ("cells", "done", "failed", "running"))
    share, left = (done + failed) / cells if cells else 0.0, number(row.get("seconds_left"))
    claims = ", ".join(map(str, row.get("claims") or ()))
    name = tag("th", row.get("name", ""), tag("span", claims, class_="gloss") if claims else None, scope="row")
    figures = (f"{done:,} of {cells:,}", f"{running:,}", f"{failed:,}", (spell_time(left) if left > 0 else "") or "–")
    meter = tag("td", bar(share, f"{row.get('name', '')}: {percent(share, 0)}"), class_="meter")
    return tag("tr", name, *(tag("td", figure) for figure in figures), meter)


def bar(share: float, says: str) -> Markup:
    """Returns a progress bar with its value for screen readers."""
    value = {"aria_valuenow": round(100 * share), "aria_valuemin": 0, "aria_valuemax": 100}
    inside = tag("span", style=f"width:{100 * share:.1f}%")
    return tag("div", inside, class_="progress", role="progressbar", aria_label=says, **value)
