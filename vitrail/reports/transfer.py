"""Transfer results of a model on several data sets: plain data, tables and the report page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.files import disk_errors, replace_file
from vitrail.markup import Markup, join, tag
from vitrail.reports.classification.card import escape
from vitrail.reports.components import describe_run, header, lead, list_versions, make_scrollable, notes
from vitrail.reports.page import frame
from vitrail.reports.tables import open_table
from vitrail.reports.wording import percent, plural
from vitrail.rows import Rows, show_rows

MEANINGS = {
    "knn": "k-nearest-neighbour classification on frozen features, by cosine similarity",
    "linear": "logistic regression on frozen features",
    "fewshot": "least squares on frozen features of a few images per class",
    "finetune": "fine-tuning of the whole network",
}


@dataclass(frozen=True)
class Cell:
    """The result of one protocol on one data set: accuracy, confidence interval and numbers of images, or an error."""

    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    code: int = 0

    @property
    def accuracy(self) -> float:
        """The accuracy, NaN if there is none."""
        return self.figures.get("accuracy", math.nan)


@dataclass(frozen=True)
class Transfer(Rows):
    """The results by data set and protocol, with the run details."""

    model: str
    protocols: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    settings: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""

    def mean(self, protocol: str) -> float:
        """Returns the unweighted mean accuracy over data sets, as in VTAB (Zhai et al. 2019); NaN if a result is missing."""
        return sum(cells[protocol].accuracy for cells in self.rows.values()) / len(self.rows)

    @property
    def failures(self) -> dict[str, Cell]:
        """The failed cells by data set, and also by protocol unless all protocols failed with the same error."""
        failures: dict[str, Cell] = {}
        for name, cells in self.rows.items():
            same = len({cell.error for cell in cells.values()}) == 1
            failures |= {
                name if same else f"{name}, {protocol}": cell for protocol, cell in cells.items() if cell.error
            }
        return failures

    @property
    def code(self) -> int:
        """The exit code: that of the first failure, or 0."""
        return next((cell.code for cell in self.failures.values()), 0)

    def to_dict(self) -> dict[str, Any]:
        """The results as JSON types: data set -> protocol -> figures, or ``error``."""
        cells = {
            name: {protocol: dict(cell.figures) or {"error": cell.error} for protocol, cell in row.items()}
            for name, row in self.rows.items()
        }
        return {**{field: getattr(self, field) for field in ("model", "command", "machine", "date")}, "results": cells}

    def to_rows(self) -> list[dict[str, Any]]:
        """The figures of every data set and protocol, or the error; accuracies as fractions."""
        cells = [(name, protocol, cell) for name, row in self.rows.items() for protocol, cell in row.items()]
        names = dict.fromkeys(name for _, _, cell in cells for name in cell.figures)
        return [
            {
                "data": name,
                "protocol": protocol,
                **{each: cell.figures.get(each) for each in names},
                "error": cell.error,
            }
            for name, protocol, cell in cells
        ]

    def _repr_html_(self) -> str:
        return show_rows(self.to_rows())

    def table(self) -> Iterator[tuple[str, ...]]:
        """Yields a row of percentages for each data set, then one for the mean."""
        for name, cells in self.rows.items():
            yield name, *(percent(cells[protocol].accuracy) for protocol in self.protocols)
        yield "mean", *(percent(self.mean(protocol)) for protocol in self.protocols)


def write_transfer(out: Path, facts: Transfer) -> Path:
    """Writes ``transfer.csv``, ``transfer.md`` and ``report.html`` into ``out``; returns the last. Raises `DiskError`."""
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with open_table(out / "transfer.csv") as table:
        for name, cells in facts.rows.items():
            table.write({"data": name, **_flatten(facts.protocols, cells)})
        means = {protocol: Cell({"accuracy": facts.mean(protocol)}) for protocol in facts.protocols}
        table.write({"data": "mean", **_flatten(facts.protocols, means)})
    replace_file(out / "transfer.md", markdown(facts))
    replace_file(out / "report.html", page(facts))
    return out / "report.html"


def _flatten(protocols: Sequence[str], cells: Mapping[str, Cell]) -> dict[str, str]:
    """Returns accuracies and interval ends as strings, empty where undefined."""
    names = {"": "accuracy", "_low": "accuracy_low", "_high": "accuracy_high"}
    figures = {
        f"{protocol}{end}": cells[protocol].figures.get(name, math.nan)
        for protocol in protocols
        for end, name in names.items()
    }
    return {name: f"{value:.6f}" if math.isfinite(value) else "" for name, value in figures.items()}


def markdown(facts: Transfer) -> str:
    """Returns the table, followed by the failures."""
    lines = [f"| data | {' | '.join(facts.protocols)} |", f"| --- |{' ---: |' * len(facts.protocols)}"]
    lines += [f"| {escape(name)} | {' | '.join(cells)} |" for name, *cells in facts.table()]
    failures = [f"- {escape(words)}" for words in _list_failures(facts)]
    return "\n".join([*lines, *([""] if failures else []), *failures]) + "\n"


def _list_failures(facts: Transfer) -> list[str]:
    """Returns one line for each failure."""
    return [f"{where}: {cell.error.splitlines()[0]}" for where, cell in facts.failures.items()]


def page(facts: Transfer) -> str:
    """Returns the whole document."""
    title = f"Transfer results of {facts.model}"
    opening = join(headline(facts), notes(_list_failures(facts)))
    parts = {"Accuracies": accuracies(facts), "Run details": run(facts)}
    return frame("vitrail transfer", title, facts.date, opening, parts)


def headline(facts: Transfer) -> Markup:
    """Returns the mean accuracy of the best protocol."""
    means = {protocol: facts.mean(protocol) for protocol in facts.protocols if math.isfinite(facts.mean(protocol))}
    count = plural(len(facts.rows), "data set")
    if not means:
        return tag("div", tag("p", f"No protocol has results on all data sets ({count})."), class_="headline bare")
    best = max(means, key=lambda protocol: means[protocol])
    figure = tag("div", tag("p", percent(means[best]), class_="figure-value"), tag("p", best, class_="figure-name"))
    words = tag("p", f"Unweighted mean accuracy over {count} with the best protocol: {MEANINGS[best]}.")
    return tag("div", figure, tag("div", words, class_="words"), class_="headline")


def accuracies(facts: Transfer) -> Markup:
    """Returns the table of accuracies with their intervals, a row for each data set and one for the mean."""
    rows = []
    for name, cells in facts.rows.items():
        tags = (accuracy(cells[protocol]) for protocol in facts.protocols)
        rows.append(tag("tr", tag("th", name, scope="row"), *tags))
    means = (tag("td", tag("strong", percent(facts.mean(protocol)))) for protocol in facts.protocols)
    rows.append(tag("tr", tag("th", "mean", scope="row"), *means))
    table = tag("table", header(("data", *facts.protocols)), tag("tbody", *rows))
    means_of = "; ".join(f"{protocol}: {MEANINGS[protocol]}" for protocol in facts.protocols)
    words = (
        f"{means_of[:1].upper()}{means_of[1:]}. The 95 % confidence interval below each accuracy covers the sampling of images "
        "and, if training sets or seeds are drawn several times, of these draws."
    )
    if facts.failures:
        words += " A dash marks a failed evaluation, listed above; a mean requires results on all data sets."
    return join(tag("h2", "Accuracy by data set and protocol"), lead(words), make_scrollable(table, "Accuracies"))


def accuracy(cell: Cell) -> Markup:
    """Returns a table cell with the accuracy and its interval."""
    ends = [percent(cell.figures[name]) for name in ("accuracy_low", "accuracy_high") if name in cell.figures]
    interval = join(tag("br"), tag("small", " to ".join(ends))) if ends else None
    return tag("td", percent(cell.accuracy), interval)


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
