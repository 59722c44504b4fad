"""The report page of `vitrail transfer`, and its table as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from vitrail.evaluation.vtab import PUBLISHED, TASKS
from vitrail.markup import Markup, join, tag
from vitrail.reports.classification.card import escape
from vitrail.reports.components import describe_run, header, lead, list_figures, list_versions, make_scrollable, notes
from vitrail.reports.page import frame
from vitrail.reports.transfer.results import MEANINGS, Cell, Mean, Transfer, deviation, show_accuracy
from vitrail.text import percent, plural, sentence


def markdown(facts: Transfer) -> str:
    """Returns the table, followed by the notes."""
    lines = [f"| data | {' | '.join(facts.protocols)} |", f"| --- |{' ---: |' * len(facts.protocols)}"]
    lines += [f"| {escape(name)} | {' | '.join(cells)} |" for name, *cells in facts.table()]
    noted = [f"- {escape(words)}" for words in list_notes(facts)]
    return "\n".join([*lines, *([""] if noted else []), *noted]) + "\n"


def list_notes(facts: Transfer) -> list[str]:
    """Returns one line for each failure, and what else distinguishes the figures from those of VTAB-1k."""
    failures = [f"{where}: {cell.error.splitlines()[0]}" for where, cell in facts.failures.items()]
    missing = [f"No data of {plural(len(facts.missing), 'task')}: {', '.join(facts.missing)}."] if facts.missing else []
    return [*failures, *missing, *facts.notes]


def page(facts: Transfer) -> str:
    """Returns the whole document."""
    title = f"{'VTAB-1k' if facts.vtab else 'Transfer'} results of {facts.model}"
    opening = join(headline(facts), notes(list_notes(facts)))
    parts = {"Accuracies": accuracies(facts), "Run details": run(facts)}
    return frame("vitrail transfer", title, facts.date, opening, parts)


def headline(facts: Transfer) -> Markup:
    """Returns the mean accuracy of the best protocol, of VTAB-1k by group, too."""
    means = {name: mean for name, mean in facts.means()["mean"].items() if math.isfinite(mean.accuracy)}
    if not means:
        count = plural(len(facts.rows), "data set")
        return tag("div", tag("p", f"No protocol has results on all data sets ({count})."), class_="headline bare")
    best = max(means, key=lambda protocol: means[protocol].accuracy)
    count = f"{means[best].count} of the {len(TASKS)} tasks" if facts.vtab else plural(len(facts.rows), "data set")
    figure = tag(
        "div", tag("p", percent(means[best].accuracy), class_="figure-value"), tag("p", best, class_="figure-name")
    )
    words = tag("p", f"Unweighted mean accuracy over {count} with the best protocol: {MEANINGS[best]}.")
    groups = [
        (group, facts.show_mean(group, row[best]), f"mean accuracy over {plural(row[best].count, 'task')}")
        for group, row in facts.means().items()
        if group in facts.groups
    ]
    return join(tag("div", figure, tag("div", words, class_="words"), class_="headline"), list_figures(groups))


def accuracies(facts: Transfer) -> Markup:
    """Returns the table of accuracies with their intervals: a row for each data set and for each mean.

    The tasks of VTAB-1k are in their groups, beside the figures of the ViT paper.
    """
    means, rows = facts.means(), []
    for group, names in facts.groups.items():
        for name in names:
            cells = (show_cell(facts.rows[name][protocol]) for protocol in facts.protocols)
            gloss = tag("span", TASKS[name].about, class_="gloss") if facts.vtab else None
            rows.append(tag("tr", tag("th", name, gloss, scope="row"), *cells, *published(facts, [name])))
        if group:
            rows.append(show_means(facts, group, means[group], names))
    rows.append(show_means(facts, "mean", means["mean"], list(facts.rows)))
    columns = ("task" if facts.vtab else "data", *facts.protocols, *(PUBLISHED if facts.vtab else ()))
    table = make_scrollable(tag("table", header(columns), tag("tbody", *rows)), "Accuracies")
    return join(
        tag("h2", f"Accuracy by {columns[0] if facts.vtab else 'data set'} and protocol"), explain(facts), table
    )


def explain(facts: Transfer) -> Markup:
    """Returns what the columns are."""
    protocols = "; ".join(f"{protocol}: {MEANINGS[protocol]}" for protocol in facts.protocols)
    words = (
        f"{sentence(protocols)}. The 95 % confidence interval below each accuracy covers the sampling of images "
        "and, if training sets or seeds are drawn several times, of these draws."
    )
    if any(len(cell.runs) > 1 for row in facts.rows.values() for cell in row.values()):
        words += " ± is the standard deviation over runs, of a mean that of the means of each run."
    if facts.failures:
        words += " A dash marks a failed evaluation, listed above" + (
            "." if facts.vtab else "; a mean requires results on all data sets."
        )
    if facts.vtab:
        words += (
            " The last columns are the fine-tuning results of Dosovitskiy et al. 2021, table 9; their means are computed "
            "from it over the same tasks" + ("." if facts.missing else ", with the deviation of table 2.")
        )
    return lead(words)


def show_cell(cell: Cell) -> Markup:
    """Returns a table cell with the accuracy, its deviation over runs and its interval."""
    ends = [percent(cell.figures[name]) for name in ("accuracy_low", "accuracy_high") if name in cell.figures]
    interval = join(tag("br"), tag("small", " to ".join(ends))) if ends else None
    return tag("td", show_accuracy(cell.accuracy, deviation(cell.runs)), interval)


def show_means(facts: Transfer, name: str, means: Mapping[str, Mean], names: Sequence[str]) -> Markup:
    """Returns the row of the means over the data sets ``names``."""
    cells = (tag("td", tag("strong", facts.show_mean(name, mean))) for mean in means.values())
    label = name if name == "mean" else f"{name}: mean"
    return tag("tr", tag("th", tag("strong", label), scope="row"), *cells, *published(facts, names))


def published(facts: Transfer, names: Sequence[str]) -> Iterator[Markup]:
    """Yields the cells of the ViT paper's models for VTAB-1k: their means over those of ``names`` that have results here."""
    done = [name for name in names if all(cell.figures for cell in facts.rows[name].values())]
    for other in PUBLISHED.values() if facts.vtab else ():
        std = other.std / 100 if len(done) == len(TASKS) else math.nan
        yield tag("td", show_accuracy(other.mean(done) / 100 if done else math.nan, std))


def run(facts: Transfer) -> Markup:
    """Returns the run details: command, data, settings and environment."""
    rows = {
        "Model": facts.model,
        "Data": ", ".join(facts.rows),
        **facts.settings,
        "Machine": facts.machine,
        "Versions": list_versions(facts.versions),
    }
    return describe_run(facts.command, rows)
