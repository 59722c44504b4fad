"""The files of `vitrail transfer`: a table as CSV and Markdown, the figures as JSON, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from vitrail.files import disk_errors, replace_file, write_sealed
from vitrail.reports.transfer.page import markdown, page
from vitrail.reports.transfer.results import Transfer, deviation
from vitrail.tables import open_table


def write_transfer(out: Path, facts: Transfer) -> Path:
    """Writes ``transfer.csv``, ``transfer.md``, ``transfer.json`` and ``report.html`` into ``out``; returns the last.

    Raises `DiskError`.
    """
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with open_table(out / "transfer.csv") as table:
        for name, cells in facts.rows.items():
            figures = {
                protocol: {**cells[protocol].figures, "accuracy_std": deviation(cells[protocol].runs)}
                for protocol in facts.protocols
            }
            table.write({"data": name, **_flatten(figures)})
        for name, means in facts.means().items():
            table.write(
                {
                    "data": name,
                    **_flatten(
                        {
                            protocol: {"accuracy": mean.accuracy, "accuracy_std": mean.std}
                            for protocol, mean in means.items()
                        }
                    ),
                }
            )
    replace_file(out / "transfer.md", markdown(facts))
    write_sealed(out / "transfer.json", facts.to_dict())
    replace_file(out / "report.html", page(facts))
    return out / "report.html"


def _flatten(figures: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """By protocol: the accuracy, the ends of its interval and its deviation over runs as strings, empty where undefined."""
    ends = ("", "_low", "_high", "_std")
    values = {f"{name}{end}": own.get(f"accuracy{end}", math.nan) for name, own in figures.items() for end in ends}
    return {name: f"{value:.6f}" if math.isfinite(value) else "" for name, value in values.items()}
