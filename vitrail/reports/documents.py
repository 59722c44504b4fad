"""Selects the report and the model card of a finished run by its task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.reports import summary
from vitrail.reports.classification import documents as classification
from vitrail.reports.dense import documents as dense
from vitrail.reports.facts import JudgedRun

DOCUMENTS: dict[str, Callable[[Path, JudgedRun], Path]] = {
    "classification": classification.write_documents,
    "detection": dense.write_documents,
    "segmentation": dense.write_documents,
}


def write_documents(folder: Path, run: JudgedRun) -> Path:
    """Writes ``report.html`` and ``card.md`` into ``folder`` and returns the path of the report.

    Raises `DiskError` if the folder cannot be written.
    """
    return DOCUMENTS.get(run.model.name, summary.write_documents)(folder, run)
