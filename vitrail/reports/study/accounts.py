"""The accounts of a study: every setting with its regime, time and cost, failures, how figures were fitted, and its plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.markup import Markup, join, tag
from vitrail.reports.components import describe_run, header, lead, list_figures, make_scrollable
from vitrail.reports.facts import as_yaml, list_versions
from vitrail.reports.study.data_figures import label_of, levels_of
from vitrail.runtime.progress import duration
from vitrail.text import decimal, large, number, percent, plural, scientific, sentence, shorten

Row = Mapping[str, Any]
COLUMNS = ("arm", "regime", "images", "seeds", "test", "training", "gap", "FLOPs", "executed", "parameters", "rate")
REGIMES = (
    "data-limited: the gap between training and test accuracy is large, so that more images would help; compute-limited: "
    "training ended before it fitted its own images; neither: in between"
)


def regimes(numbers: Row) -> Markup | None:
    """Returns the table of all settings with their accuracies, regimes, costs and learning rates."""
    arms = numbers.get("arms") or ()
    if not arms:
        return None
    several = len({row.get("experiment") for row in arms}) > 1
    table = tag(
        "table", header(COLUMNS, text=2, sorted_by="plan"), tag("tbody", *(setting(row, several) for row in arms))
    )
    words = (
        f"Every setting, the mean of its seeds. {sentence(REGIMES)}. FLOPs are 6 × multiply-adds × images seen, the "
        "axis of all figures; beside them the operations that were executed. Click a heading to sort."
    )
    return join(tag("h2", "Settings and regimes"), lead(words), make_scrollable(table, "Settings and regimes"))


def setting(row: Row, several: bool) -> Markup:
    """Returns the row of one setting, with the values that its columns are sorted by."""
    regime = str(row.get("regime") or "")
    accuracy = {end: number((row.get("accuracy") or {}).get(end)) for end in ("estimate", "low", "high")}
    ends = [percent(accuracy[end]) for end in ("low", "high") if math.isfinite(accuracy[end])]
    interval = join(tag("br"), tag("small", " to ".join(ends))) if len(ends) == 2 else None
    train = number(row.get("train"))
    gap = 100 * (train - accuracy["estimate"])
    cells = [
        (number(row.get("limit")), "{:,.0f}".format),
        (number(row.get("seeds")), "{:.0f}".format),
        (accuracy["estimate"], lambda value: join(percent(value), interval)),
        (train, percent),
        (gap, lambda value: decimal(value, 1)),
        *((number(row.get(cost)), large) for cost in ("macs6", "flops", "parameters")),
        (number(row.get("rate")), scientific),
    ]
    shown = (tag("td", words(value), data_value=repr(value)) if math.isfinite(value) else tag("td", "–", data_value="")
             for value, words in cells)  # fmt: skip
    where = [str(row.get("experiment", ""))] if several else []
    gloss = tag("span", " · ".join([*where, *levels_of(row)]), class_="gloss")
    kind = regime if regime in ("data-limited", "compute-limited") else "neither"
    label = tag("td", tag("span", regime, class_=f"regime {kind}") if regime else "–", class_="text", data_value=regime)
    name = tag("th", row.get("arm", ""), gloss, scope="row", data_value=f"{row.get('experiment')} {label_of(row)}")
    return tag("tr", name, label, *shown)


def costs(numbers: Row, spent: Row) -> Markup | None:
    """Returns the section of time and cost by experiment, and of the cells that failed."""
    cells, failures = spent.get("cells") or (), numbers.get("failures") or ()
    used, predicted, budget = (number(spent.get(f"{name}_seconds")) for name in ("total", "predicted", "budget"))
    if not cells and not failures and not math.isfinite(used):
        return None
    compared = f"{percent(used / predicted, 0)} of the prediction" if math.isfinite(used) and predicted > 0 else ""
    rows = [
        ("time used", spell_time(used), compared),
        ("time predicted", spell_time(predicted), "from measured steps, before the first cell"),
        ("budget", spell_time(budget), ""),
        (
            "FLOPs executed",
            large(number(spent.get("flops"))) if number(spent.get("flops")) > 0 else "",
            "of all trainings",
        ),
        ("cells", f"{len(cells):,}" if cells else "", spell_attempts(cells)),
    ]
    hosts = sorted({" on ".join(filter(None, (cell.get("device"), cell.get("host")))) for cell in cells} - {""})
    return join(
        tag("h2", "Cost and time"),
        lead(
            "Seconds are of single trainings, of which several may run at once. ",
            f"Trained with {', '.join(hosts)}." if hosts else "",
        ),
        list_figures([row for row in rows if row[1]]),
        tag("div", spend(cells), class_="after") if cells else None,
        fail(failures),
    )


def spell_time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else ""


def spell_attempts(cells: Sequence[Row]) -> str:
    again = sum(number(cell.get("attempts")) > 1 for cell in cells)
    return f"{again:,} of them needed more than one attempt" if again else "each trained in one attempt"


def spend(cells: Sequence[Row]) -> Markup:
    """Returns the table of cells and time by experiment, tuning apart."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for cell in cells:
        grouped.setdefault((str(cell.get("experiment", "")), str(cell.get("kind") or "final")), []).append(cell)
    total = sum(known(cells, "seconds")) or 1.0
    body = []
    for (experiment, kind), own in grouped.items():
        seconds, flops = known(own, "seconds"), known(own, "flops")
        share = sum(seconds) / total
        figures = (
            f"{len(own):,}",
            spell_time(sum(seconds)),
            spell_time(sum(seconds) / len(seconds)) if seconds else "–",
            large(sum(flops)) if flops else "–",
        )
        bar = tag("td", percent(share, 0), class_="bar", style=f"--share:{share:.3f}")
        name = tag(
            "th", experiment, tag("span", "learning rates", class_="gloss") if kind == "tuning" else None, scope="row"
        )
        body.append(tag("tr", name, *(tag("td", figure) for figure in figures), bar))
    columns = ("experiment", "cells", "training time", "time a cell", "FLOPs", "share of the time")
    return make_scrollable(tag("table", header(columns), tag("tbody", *body)), "Time and cost by experiment")


def known(cells: Sequence[Row], name: str) -> list[float]:
    return [value for cell in cells if math.isfinite(value := number(cell.get(name)))]


def fail(failures: Sequence[Row]) -> Markup:
    """Returns the table of cells that failed or diverged, or a sentence that there are none."""
    if not failures:
        return lead("No cell failed or diverged.")
    body = []
    for row in failures:
        cells = (
            row.get("experiment", ""),
            shorten(str(row.get("cell", "")), 13),
            row.get("state", ""),
            row.get("error") or "–",
        )
        body.append(
            tag("tr", tag("th", row.get("arm", ""), scope="row"), *(tag("td", cell, class_="text") for cell in cells))
        )
    head = header(("arm", "experiment", "cell", "state", "error"), text=5)
    words = "A diverged cell counts as a result; a cell that failed three times leaves its claims undecided."
    table = make_scrollable(tag("table", head, tag("tbody", *body)), "Cells that failed or diverged")
    return join(tag("h3", plural(len(failures), "cell"), " failed or diverged", class_="after"), lead(words), table)


def fits(numbers: Row) -> Markup | None:
    """Returns how the figures were fitted, point by point."""
    rows = numbers.get("checklist") or ()
    if not rows:
        return None
    listed = (join(tag("dt", row.get("item", "")), tag("dd", row.get("answer", ""))) for row in rows)
    words = (
        "What a reader needs to repeat the fits. Verdicts come from contrasts of measured cells; fits only draw lines and say "
        "ratios."
    )
    return join(tag("h2", "How figures were fitted"), lead(words), tag("dl", *listed, class_="facts"))


def plan(numbers: Row, spent: Row) -> Markup:
    """Returns the run details: the plan and its earlier versions, data, commits, machine and settings."""
    hashes, data = numbers.get("plan") or {}, numbers.get("data") or {}
    counts = (
        f"{number(data.get(name)):,.0f} {name}"
        for name in ("training", "validation", "test")
        if number(data.get(name)) >= 0
    )
    rows = {
        "Study": str(numbers.get("study") or ""),
        "Plan": str(hashes.get("sha256") or ""),
        "Earlier plans": ", ".join(map(str, hashes.get("earlier") or ())),
        "Data": ": ".join(filter(None, (str(data.get("name") or ""), ", ".join(counts)))),
        "Commits": ", ".join(map(str, numbers.get("commits") or ())),
        "Machine": str(spent.get("machine") or ""),
        "Versions": list_versions(spent.get("versions") or {}),
        "Files": "numbers.json has all figures in full precision, cells.csv a row for each cell, plots/ the charts",
    }
    base = numbers.get("base")
    settings = (
        tag("details", tag("summary", "Settings of every cell"), tag("pre", tag("code", as_yaml(base))))
        if base
        else None
    )
    return join(describe_run(str(spent.get("command") or ""), rows), settings)


def warnings(numbers: Row) -> list[str]:
    """Returns the sentences that stand at the top of the page: mixed commits, earlier plans, failed cells."""
    commits, earlier = numbers.get("commits") or (), (numbers.get("plan") or {}).get("earlier") or ()
    words = []
    if len(commits) > 1:
        words.append(f"The cells come from {len(commits)} commits of vitrail: {', '.join(map(str, commits))}.")
    if earlier:
        words.append(
            f"The plan was changed {plural(len(earlier), 'time')} after cells had been trained; all hashes are below."
        )
    if failures := numbers.get("failures"):
        words.append(f"{plural(len(failures), 'cell')} failed or diverged; see cost and time.")
    return words
