"""The files that `vitrail study` writes for its reader: the page, its charts, and the table of cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitrail.files import disk_errors, replace_file
from vitrail.reports.page import write_page
from vitrail.reports.study.page import page
from vitrail.reports.study.progress import progress_page
from vitrail.tables import open_table


def write_study(
    out: Path, numbers: Mapping[str, Any], costs: Mapping[str, Any], cells: Iterable[Mapping[str, Any]] = ()
) -> Path:
    """Writes ``report.html``, its charts as ``plots/*.svg`` and ``cells.csv`` into ``out``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.

    Args:
        numbers: the content of ``numbers.json``: claims with their verdicts, arms, curves. Accuracies are fractions.
        costs: the content of ``costs.json``: the seconds of every cell.
        cells: plain values by column, the same columns for every cell.
    """
    document, plots = page(numbers, costs)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with open_table(out / "cells.csv") as table:
        for row in cells:
            table.write(dict(row))
    return write_page(out, document, {_file_name(name): drawing for name, drawing in plots.items()})


def write_progress(out: Path, progress: Mapping[str, Any]) -> Path:
    """Writes ``report.html`` of a study that still runs into ``out``; returns its path. Raises `DiskError`."""
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "report.html", progress_page(progress))
    return out / "report.html"


def _file_name(name: str) -> str:
    """Replaces what a file name may not have; names of arms are free text."""
    return re.sub(r"[^\w.+-]+", "-", name)[:100]
