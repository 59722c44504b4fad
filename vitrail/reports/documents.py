"""Which report and card a finished run gets: those of its task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.reports import summary
from vitrail.reports.classification import documents as classification
from vitrail.reports.facts import JudgedRun

DOCUMENTS: dict[str, Callable[[Path, JudgedRun], Path]] = {"classification": classification.write_documents}


def write_documents(folder: Path, run: JudgedRun) -> Path:
    """Writes ``report.html`` and ``card.md`` into ``folder``; returns the report's path.

    Raises `DiskError` where the folder cannot be written.
    """
    return DOCUMENTS.get(run.model.name, summary.write_documents)(folder, run)
