"""Transfer results of a model on several data sets, or on the tasks of VTAB-1k: the data, their means, and the files of
`vitrail transfer`: tables as CSV and Markdown, the figures as JSON, and the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vitrail.evaluation.vtab import GROUPS, PUBLISHED, TASKS
from vitrail.files import ensure_folder, replace_file, replace_nan, write_checksummed
from vitrail.markup import Markup, tag
from vitrail.reports import page as pages
from vitrail.reports.cards import escape
from vitrail.reports.facts import Origin
from vitrail.reports.page import Table, render
from vitrail.rows import Rows, show_rows
from vitrail.tables import open_table
from vitrail.text import percent, plural, sentence

MEANINGS = {
    "knn": "k-nearest-neighbour classification on frozen features, by cosine similarity",
    "linear": "logistic regression on frozen features",
    "fewshot": "least squares on frozen features of a few images per class",
    "finetune": "fine-tuning of the whole network",
}
RUN = "accuracy_seed"  # followed by the seed: the accuracy of one of several runs


@dataclass(frozen=True)
class Cell:
    """The result of one protocol on one data set: accuracy, confidence interval and numbers of images, or an error.

    ``notes`` say what makes the figures differ from those of a benchmark.
    """

    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    code: int = 0
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The accuracy, NaN if there is none."""
        return self.figures.get("accuracy", math.nan)

    @property
    def runs(self) -> tuple[float, ...]:
        """The accuracies of the runs, the mean of which is the accuracy; of a single run that one."""
        return tuple(value for name, value in self.figures.items() if name.startswith(RUN)) or (self.accuracy,)


@dataclass(frozen=True)
class Mean:
    """The unweighted mean accuracy over ``count`` data sets, and its standard deviation over runs, NaN for a single run."""

    accuracy: float
    std: float
    count: int


def average(cells: Sequence[Cell]) -> Mean:
    """Returns the mean over the data sets of ``cells``, NaN for none; the deviation (n - 1) is that of the means of each run."""
    if not cells:
        return Mean(math.nan, math.nan, 0)
    by_run = [fmean(accuracies) for accuracies in zip(*(cell.runs for cell in cells), strict=True)]
    return Mean(fmean(by_run), deviation(by_run), len(cells))


def deviation(runs: Sequence[float]) -> float:
    """Returns the standard deviation (n - 1), NaN for a single run."""
    return stdev(runs) if len(runs) > 1 else math.nan


@dataclass(frozen=True)
class Transfer(Rows, Origin):
    """The results by data set and protocol, with the run details. With ``vtab`` the data sets are tasks of VTAB-1k."""

    model: str
    protocols: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    settings: Mapping[str, str] = field(default_factory=dict)
    vtab: bool = False

    def mean(self, protocol: str) -> float:
        """Returns the unweighted mean accuracy over data sets, as in VTAB (Zhai et al. 2019).

        It is NaN if a result is missing; of the tasks of VTAB-1k it is over those that have one.
        """
        return self._average(protocol, list(self.rows)).accuracy

    def _average(self, protocol: str, names: Sequence[str]) -> Mean:
        cells = [self.rows[name][protocol] for name in names]
        done = [cell for cell in cells if cell.figures]
        return average(done if self.vtab or len(done) == len(cells) else [])

    @property
    def groups(self) -> dict[str, list[str]]:
        """The data sets that belong together: the groups of VTAB-1k that have a task here, or all under no name."""
        if not self.vtab:
            return {"": list(self.rows)}
        groups = {group: [name for name in self.rows if TASKS[name].group == group] for group in GROUPS}
        return {group: names for group, names in groups.items() if names}

    @property
    def missing(self) -> list[str]:
        """The tasks of VTAB-1k that there are no data of."""
        return [name for name in TASKS if name not in self.rows] if self.vtab else []

    @property
    def notes(self) -> list[str]:
        """What makes figures differ from those of VTAB-1k, once each."""
        return list(dict.fromkeys(note for row in self.rows.values() for cell in row.values() for note in cell.notes))

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

    def means(self) -> dict[str, dict[str, Mean]]:
        """Returns the mean by protocol: by group of VTAB-1k, if these are its tasks, and over all data sets as ``mean``."""
        named = {**(self.groups if self.vtab else {}), "mean": list(self.rows)}
        return {
            name: {protocol: self._average(protocol, names) for protocol in self.protocols}
            for name, names in named.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types: data set -> protocol -> figures, or ``error``; and the means, None where undefined."""
        cells = {
            name: {protocol: dict(cell.figures) or {"error": cell.error} for protocol, cell in row.items()}
            for name, row in self.rows.items()
        }
        means = {
            name: {
                protocol: {"accuracy": mean.accuracy, "accuracy_std": mean.std, "data_sets": mean.count}
                for protocol, mean in row.items()
            }
            for name, row in self.means().items()
        }
        facts = {name: getattr(self, name) for name in ("model", "command", "machine", "date", "missing", "notes")}
        return replace_nan({**facts, "results": cells, "means": means})

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns the figures of every data set and protocol, or the error; accuracies as fractions."""
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
        """Yields a row of percentages for each data set, then one for each mean."""
        for name, cells in self.rows.items():
            runs = (cells[protocol] for protocol in self.protocols)
            yield name, *(show_accuracy(cell.accuracy, deviation(cell.runs)) for cell in runs)
        for name, means in self.means().items():
            yield name, *(self.show_mean(name, mean) for mean in means.values())

    def show_mean(self, name: str, mean: Mean) -> str:
        """Returns a mean with its deviation, and over how many tasks of its group it is where some are missing."""
        whole = sum(name in (task.group, "mean") for task in TASKS.values()) if self.vtab else mean.count
        of = f" ({mean.count} of {whole})" if mean.count < whole else ""
        return show_accuracy(mean.accuracy, mean.std) + of


def show_accuracy(accuracy: float, std: float) -> str:
    """Returns a percentage, with its standard deviation if there is one."""
    return percent(accuracy) + (f" ± {100 * std:.2f}" if math.isfinite(std) else "")


def write_transfer(out: Path, facts: Transfer) -> Path:
    """Writes ``transfer.csv``, ``transfer.md``, ``transfer.json`` and ``report.html`` into ``out``; returns the last.

    Raises `DiskError`.
    """
    ensure_folder(out)
    with open_table(out / "transfer.csv") as write:
        for name, cells in facts.rows.items():
            ends = {
                protocol: {**cell.figures, "accuracy_std": deviation(cell.runs)} for protocol, cell in cells.items()
            }
            write({"data": name, **_flatten({protocol: ends[protocol] for protocol in facts.protocols})})
        for name, means in facts.means().items():
            ends = {each: {"accuracy": mean.accuracy, "accuracy_std": mean.std} for each, mean in means.items()}
            write({"data": name, **_flatten(ends)})
    replace_file(out / "transfer.md", markdown(facts))
    write_checksummed(out / "transfer.json", facts.to_dict())
    replace_file(out / "report.html", page(facts))
    return out / "report.html"


def _flatten(figures: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Returns by protocol the accuracy, the ends of its interval and its deviation over runs as text, empty where undefined."""
    ends = ("", "_low", "_high", "_std")
    values = {f"{name}{end}": own.get(f"accuracy{end}", math.nan) for name, own in figures.items() for end in ends}
    return {name: f"{value:.6f}" if math.isfinite(value) else "" for name, value in values.items()}


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
    """Returns the report: the mean of the best protocol, then the accuracies with their intervals."""
    means = {name: mean for name, mean in facts.means()["mean"].items() if math.isfinite(mean.accuracy)}
    best = max(means, key=lambda protocol: means[protocol].accuracy) if means else None
    by_group = {group: row[best] for group, row in facts.means().items() if group in facts.groups} if best else {}
    tiles = [
        (group, facts.show_mean(group, mean), f"mean accuracy over {plural(mean.count, 'task')}")
        for group, mean in by_group.items()
    ]
    return render(
        "transfer.html",
        "vitrail transfer",
        f"{'VTAB-1k' if facts.vtab else 'Transfer'} results of {facts.model}",
        facts.date,
        facts=facts,
        tasks=len(TASKS),
        best=best,
        mean=means[best] if best else None,
        about=MEANINGS,
        protocols=sentence("; ".join(f"{protocol}: {MEANINGS[protocol]}" for protocol in facts.protocols)),
        repeated=any(len(cell.runs) > 1 for row in facts.rows.values() for cell in row.values()),
        tiles_rows=tiles,
        notes_lines=list_notes(facts),
        accuracies=list_accuracies(facts),
        run=facts.details({"Model": facts.model, "Data": ", ".join(facts.rows), **facts.settings}),
    )


def list_accuracies(facts: Transfer) -> Table:
    """Returns the table of accuracies: a row for each data set and for each mean.

    The tasks of VTAB-1k are in their groups, beside the figures of the ViT paper.
    """
    means, rows = facts.means(), []
    for group, names in facts.groups.items():
        for name in names:
            cells = [show_cell(facts.rows[name][protocol]) for protocol in facts.protocols]
            gloss = TASKS[name].about if facts.vtab else ""
            rows.append([pages.Cell(name, gloss=gloss), *cells, *list_published(facts, [name])])
        if group:
            rows.append(list_means(facts, group, f"{group}: mean", means[group], names))
    rows.append(list_means(facts, "mean", "mean", means["mean"], list(facts.rows)))
    columns = ("task" if facts.vtab else "data", *facts.protocols, *(PUBLISHED if facts.vtab else ()))
    return Table("Accuracies", columns, rows)


def show_cell(cell: Cell) -> Markup:
    """Returns the accuracy, its deviation over runs and its interval."""
    ends = [percent(cell.figures[name]) for name in ("accuracy_low", "accuracy_high") if name in cell.figures]
    shown = show_accuracy(cell.accuracy, deviation(cell.runs))
    return Markup(f"{shown}<br><small>{' to '.join(ends)}</small>" if ends else shown)


def list_means(facts: Transfer, name: str, label: str, means: Mapping[str, Mean], names: Sequence[str]) -> list[str]:
    """Returns the row of the means over the data sets ``names``."""
    cells = [tag("strong", facts.show_mean(name, mean)) for mean in means.values()]
    return [tag("strong", label), *cells, *list_published(facts, names)]


def list_published(facts: Transfer, names: Sequence[str]) -> Iterator[str]:
    """Yields the figures of the ViT paper's models for VTAB-1k: their means over those of ``names`` that have results here."""
    done = [name for name in names if all(cell.figures for cell in facts.rows[name].values())]
    for other in PUBLISHED.values() if facts.vtab else ():
        std = other.std / 100 if len(done) == len(TASKS) else math.nan
        yield show_accuracy(other.mean(done) / 100 if done else math.nan, std)
