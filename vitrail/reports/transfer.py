"""What a model's features are worth on several data sets, as plain data, and the tables and the page that show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.files import disk_errors, replace_file
from vitrail.reports.classification.card import escape
from vitrail.reports.components import header, lead, notes, of_versions, scrolled, was_run
from vitrail.reports.html import Markup, join, tag
from vitrail.reports.page import frame
from vitrail.reports.tables import open_table
from vitrail.reports.wording import percent, plural

MEANINGS = {
    "knn": "the nearest training images vote, by the cosine of frozen features",
    "linear": "logistic regression on frozen features",
    "fewshot": "least squares on frozen features of a few images of each class",
    "finetune": "the whole network is trained further",
}


@dataclass(frozen=True)
class Cell:
    """One protocol on one data set: ``accuracy`` with the ends of its interval, and numbers of images; or what went wrong."""

    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    code: int = 0

    @property
    def accuracy(self) -> float:
        """NaN where there is none."""
        return self.figures.get("accuracy", math.nan)


@dataclass(frozen=True)
class Transfer:
    """The cells of every data set by protocol, and what was run."""

    model: str
    protocols: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    settings: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""

    def mean(self, protocol: str) -> float:
        """Over data sets, each counting the same, as VTAB has it (Zhai et al. 2019); NaN where one has no figure."""
        return sum(cells[protocol].accuracy for cells in self.rows.values()) / len(self.rows)

    @property
    def failures(self) -> dict[str, Cell]:
        """What went wrong: by data set, and by protocol where these did not all fail alike."""
        found: dict[str, Cell] = {}
        for name, cells in self.rows.items():
            alike = len({cell.error for cell in cells.values()}) == 1
            found |= {name if alike else f"{name}, {each}": cell for each, cell in cells.items() if cell.error}
        return found

    @property
    def code(self) -> int:
        """The exit code: that of the first failure."""
        return next((cell.code for cell in self.failures.values()), 0)

    def table(self) -> Iterator[tuple[str, ...]]:
        """A row of percentages for each data set, and one for their mean."""
        for name, cells in self.rows.items():
            yield name, *(percent(cells[each].accuracy) for each in self.protocols)
        yield "mean", *(percent(self.mean(each)) for each in self.protocols)


def write_transfer(out: Path, found: Transfer) -> Path:
    """Writes ``transfer.csv``, ``transfer.md`` and ``report.html`` into ``out``; returns the page's path. Raises `DiskError`."""
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with open_table(out / "transfer.csv") as table:
        for name, cells in found.rows.items():
            table.write({"data": name, **_flat(found.protocols, cells)})
        means = {each: Cell({"accuracy": found.mean(each)}) for each in found.protocols}
        table.write({"data": "mean", **_flat(found.protocols, means)})
    replace_file(out / "transfer.md", markdown(found))
    replace_file(out / "report.html", page(found))
    return out / "report.html"


def _flat(protocols: Sequence[str], cells: Mapping[str, Cell]) -> dict[str, str]:
    """Fractions and their intervals as words, none where there is no figure."""
    names = {"": "accuracy", "_low": "accuracy_low", "_high": "accuracy_high"}
    figures = {each + end: cells[each].figures.get(name, math.nan) for each in protocols for end, name in names.items()}
    return {name: f"{value:.6f}" if math.isfinite(value) else "" for name, value in figures.items()}


def markdown(found: Transfer) -> str:
    """The table, and below it what went wrong."""
    lines = [f"| data | {' | '.join(found.protocols)} |", f"| --- |{' ---: |' * len(found.protocols)}"]
    lines += [f"| {escape(name)} | {' | '.join(cells)} |" for name, *cells in found.table()]
    failed = [f"- {escape(words)}" for words in _failed(found)]
    return "\n".join([*lines, *([""] if failed else []), *failed]) + "\n"


def _failed(found: Transfer) -> list[str]:
    """What went wrong, a line for each."""
    return [f"{where}: {cell.error.splitlines()[0]}" for where, cell in found.failures.items()]


def page(found: Transfer) -> str:
    """The whole document."""
    title = f"What {found.model} is worth elsewhere"
    opening = join(headline(found), notes(_failed(found)))
    parts = {"Accuracies": accuracies(found), "What was run": run(found)}
    return frame("vitrail transfer", title, found.date, opening, parts)


def headline(found: Transfer) -> Markup:
    """The best protocol's mean."""
    means = {each: found.mean(each) for each in found.protocols if math.isfinite(found.mean(each))}
    count = plural(len(found.rows), "data set")
    if not means:
        return tag("div", tag("p", f"No protocol has a figure on all of {count}."), class_="headline bare")
    best = max(means, key=lambda each: means[each])
    figure = tag("div", tag("p", percent(means[best]), class_="figure-value"), tag("p", best, class_="figure-name"))
    words = tag("p", f"The mean accuracy over {count}, each counting the same, by the best protocol: {MEANINGS[best]}.")
    return tag("div", figure, tag("div", words, class_="words"), class_="headline")


def accuracies(found: Transfer) -> Markup:
    """A row for each data set with the interval of every figure, and the mean."""
    rows = []
    for name, cells in found.rows.items():
        tags = (accuracy(cells[each]) for each in found.protocols)
        rows.append(tag("tr", tag("th", name, scope="row"), *tags))
    means = (tag("td", tag("strong", percent(found.mean(each)))) for each in found.protocols)
    rows.append(tag("tr", tag("th", "mean", scope="row"), *means))
    table = tag("table", header(("data", *found.protocols)), tag("tbody", *rows))
    means_of = "; ".join(f"{each}: {MEANINGS[each]}" for each in found.protocols)
    words = (
        f"{means_of[:1].upper()}{means_of[1:]}. Under each accuracy is its 95 % interval: over images, and over draws where "
        "shots or seeds are drawn several times."
    )
    if found.failures:
        words += " A dash has failed, for the reason above; a mean needs all of its data sets."
    return join(tag("h2", "Accuracy by data set and protocol"), lead(words), scrolled(table, "Accuracies"))


def accuracy(cell: Cell) -> Markup:
    """One figure, its interval below it."""
    ends = [percent(cell.figures[name]) for name in ("accuracy_low", "accuracy_high") if name in cell.figures]
    interval = join(tag("br"), tag("small", " to ".join(ends))) if ends else None
    return tag("td", percent(cell.accuracy), interval)


def run(found: Transfer) -> Markup:
    """What to repeat to get the same, and what it was measured on."""
    rows = {
        "Model": found.model,
        "Data": ", ".join(found.rows),
        **found.settings,
        "Machine": found.machine,
        "Versions": of_versions(found.versions),
    }
    return was_run(found.command, rows)
