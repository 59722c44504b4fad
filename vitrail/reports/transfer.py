"""What a model's features are worth on several data sets, as plain data, and the tables and the page that show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.files import disk_errors, replace_file
from vitrail.reports.classification.card import escape
from vitrail.reports.components import describe_run, header, lead, list_versions, make_scrollable, notes
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
        failures: dict[str, Cell] = {}
        for name, cells in self.rows.items():
            alike = len({cell.error for cell in cells.values()}) == 1
            failures |= {
                name if alike else f"{name}, {protocol}": cell for protocol, cell in cells.items() if cell.error
            }
        return failures

    @property
    def code(self) -> int:
        """The exit code: that of the first failure."""
        return next((cell.code for cell in self.failures.values()), 0)

    def table(self) -> Iterator[tuple[str, ...]]:
        """A row of percentages for each data set, and one for their mean."""
        for name, cells in self.rows.items():
            yield name, *(percent(cells[protocol].accuracy) for protocol in self.protocols)
        yield "mean", *(percent(self.mean(protocol)) for protocol in self.protocols)


def write_transfer(out: Path, facts: Transfer) -> Path:
    """Writes ``transfer.csv``, ``transfer.md`` and ``report.html`` into ``out``; returns the page's path. Raises `DiskError`."""
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
    """Fractions and their intervals as words, none where there is no figure."""
    names = {"": "accuracy", "_low": "accuracy_low", "_high": "accuracy_high"}
    figures = {
        f"{protocol}{end}": cells[protocol].figures.get(name, math.nan)
        for protocol in protocols
        for end, name in names.items()
    }
    return {name: f"{value:.6f}" if math.isfinite(value) else "" for name, value in figures.items()}


def markdown(facts: Transfer) -> str:
    """The table, and below it what went wrong."""
    lines = [f"| data | {' | '.join(facts.protocols)} |", f"| --- |{' ---: |' * len(facts.protocols)}"]
    lines += [f"| {escape(name)} | {' | '.join(cells)} |" for name, *cells in facts.table()]
    failures = [f"- {escape(words)}" for words in _list_failures(facts)]
    return "\n".join([*lines, *([""] if failures else []), *failures]) + "\n"


def _list_failures(facts: Transfer) -> list[str]:
    """What went wrong, a line for each."""
    return [f"{where}: {cell.error.splitlines()[0]}" for where, cell in facts.failures.items()]


def page(facts: Transfer) -> str:
    """The whole document."""
    title = f"What {facts.model} is worth elsewhere"
    opening = join(headline(facts), notes(_list_failures(facts)))
    parts = {"Accuracies": accuracies(facts), "What was run": run(facts)}
    return frame("vitrail transfer", title, facts.date, opening, parts)


def headline(facts: Transfer) -> Markup:
    """The best protocol's mean."""
    means = {protocol: facts.mean(protocol) for protocol in facts.protocols if math.isfinite(facts.mean(protocol))}
    count = plural(len(facts.rows), "data set")
    if not means:
        return tag("div", tag("p", f"No protocol has a figure on all of {count}."), class_="headline bare")
    best = max(means, key=lambda protocol: means[protocol])
    figure = tag("div", tag("p", percent(means[best]), class_="figure-value"), tag("p", best, class_="figure-name"))
    words = tag("p", f"The mean accuracy over {count}, each counting the same, by the best protocol: {MEANINGS[best]}.")
    return tag("div", figure, tag("div", words, class_="words"), class_="headline")


def accuracies(facts: Transfer) -> Markup:
    """A row for each data set with the interval of every figure, and the mean."""
    rows = []
    for name, cells in facts.rows.items():
        tags = (accuracy(cells[protocol]) for protocol in facts.protocols)
        rows.append(tag("tr", tag("th", name, scope="row"), *tags))
    means = (tag("td", tag("strong", percent(facts.mean(protocol)))) for protocol in facts.protocols)
    rows.append(tag("tr", tag("th", "mean", scope="row"), *means))
    table = tag("table", header(("data", *facts.protocols)), tag("tbody", *rows))
    means_of = "; ".join(f"{protocol}: {MEANINGS[protocol]}" for protocol in facts.protocols)
    words = (
        f"{means_of[:1].upper()}{means_of[1:]}. Under each accuracy is its 95 % interval: over images, and over draws where "
        "shots or seeds are drawn several times."
    )
    if facts.failures:
        words += " A dash has failed, for the reason above; a mean needs all of its data sets."
    return join(tag("h2", "Accuracy by data set and protocol"), lead(words), make_scrollable(table, "Accuracies"))


def accuracy(cell: Cell) -> Markup:
    """One figure, its interval below it."""
    ends = [percent(cell.figures[name]) for name in ("accuracy_low", "accuracy_high") if name in cell.figures]
    interval = join(tag("br"), tag("small", " to ".join(ends))) if ends else None
    return tag("td", percent(cell.accuracy), interval)


def run(facts: Transfer) -> Markup:
    """What to repeat to get the same, and what it was measured on."""
    rows = {
        "Model": facts.model,
        "Data": ", ".join(facts.rows),
        **facts.settings,
        "Machine": facts.machine,
        "Versions": list_versions(facts.versions),
    }
    return describe_run(facts.command, rows)
