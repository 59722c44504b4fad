"""From the results of a study to its figures and its page: ``numbers.json``, ``costs.json``, ``cells.csv``, ``report.html``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.files import dump_json, replace_file
from vitrail.reports.study.documents import write_study
from vitrail.rows import Rows
from vitrail.workflows.study.plan import read_plan


@dataclass(frozen=True, repr=False)
class Studied(Rows):
    """A study that was judged: its folder, its page, and all its figures as in ``numbers.json``."""

    folder: Path
    report: Path
    numbers: dict[str, Any]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each claim: ``claim``, ``verdict``, ``estimate`` and the ends of its interval, ``unit``, ``why``."""
        return [
            {
                "claim": claim["name"],
                "verdict": claim["verdict"],
                **{name: (claim["effect"] or {}).get(name) for name in ("estimate", "low", "high", "unit")},
                "why": claim["why"],
            }
            for claim in self.numbers["claims"]
        ]


def conclude(folder: Path) -> Studied:
    """Judges the results that there are in the ``folder`` of a study, and writes figures and page.

    Raises `ConfigError` for a folder without a plan, and `DiskError`.
    """
    plan, earlier = read_plan(folder)
    results = plan.results(folder)
    numbers = judge(plan, earlier, results)
    costs = collect_costs(folder, plan, results)
    replace_file(folder / "numbers.json", dump_json(numbers))
    replace_file(folder / "costs.json", dump_json(costs))
    report = write_study(folder, numbers, costs, cells=list_cells(plan, results))
    return Studied(folder, report, numbers)
