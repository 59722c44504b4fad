"""Transfer results of a model on several data sets, or on the tasks of VTAB-1k: plain data, their means and their tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from vitrail.evaluation.vtab import GROUPS, TASKS
from vitrail.rows import Rows, show_rows
from vitrail.text import percent

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
    """The mean over the data sets of ``cells``, NaN for none; the deviation (n - 1) is that of the means of each run."""
    if not cells:
        return Mean(math.nan, math.nan, 0)
    by_run = [fmean(accuracies) for accuracies in zip(*(cell.runs for cell in cells), strict=True)]
    return Mean(fmean(by_run), deviation(by_run), len(cells))


def deviation(runs: Sequence[float]) -> float:
    """The standard deviation (n - 1), NaN for a single run."""
    return stdev(runs) if len(runs) > 1 else math.nan


@dataclass(frozen=True)
class Transfer(Rows):
    """The results by data set and protocol, with the run details. With ``vtab`` the data sets are tasks of VTAB-1k."""

    model: str
    protocols: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    settings: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    vtab: bool = False

    def mean(self, protocol: str) -> float:
        """The unweighted mean accuracy over data sets, as in VTAB (Zhai et al. 2019).

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
        """By group of VTAB-1k, if these are its tasks, and over all data sets as ``mean``: the mean by protocol."""
        named = {**(self.groups if self.vtab else {}), "mean": list(self.rows)}
        return {
            name: {protocol: self._average(protocol, names) for protocol in self.protocols}
            for name, names in named.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """The results as JSON types: data set -> protocol -> figures, or ``error``; and the means, None where undefined."""
        cells = {
            name: {protocol: dict(cell.figures) or {"error": cell.error} for protocol, cell in row.items()}
            for name, row in self.rows.items()
        }
        means = {
            name: {
                protocol: {
                    "accuracy": _finite(mean.accuracy),
                    "accuracy_std": _finite(mean.std),
                    "data_sets": mean.count,
                }
                for protocol, mean in row.items()
            }
            for name, row in self.means().items()
        }
        facts = {name: getattr(self, name) for name in ("model", "command", "machine", "date", "missing", "notes")}
        return {**facts, "results": cells, "means": means}

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
        """Yields a row of percentages for each data set, then one for each mean."""
        for name, cells in self.rows.items():
            runs = (cells[protocol] for protocol in self.protocols)
            yield name, *(show_accuracy(cell.accuracy, deviation(cell.runs)) for cell in runs)
        for name, means in self.means().items():
            yield name, *(self.show_mean(name, mean) for mean in means.values())

    def show_mean(self, name: str, mean: Mean) -> str:
        """A mean with its deviation, and over how many tasks of its group it is where some are missing."""
        whole = sum(name in (task.group, "mean") for task in TASKS.values()) if self.vtab else mean.count
        of = f" ({mean.count} of {whole})" if mean.count < whole else ""
        return show_accuracy(mean.accuracy, mean.std) + of


def show_accuracy(accuracy: float, std: float) -> str:
    """A percentage, with its standard deviation if there is one."""
    return percent(accuracy) + (f" ± {100 * std:.2f}" if math.isfinite(std) else "")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
