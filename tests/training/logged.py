"""What a run logged."""

from __future__ import annotations

import vitrail


def list_logged(run: vitrail.Result, name: str = "loss") -> list[float]:
    """The values of one column of the history, in the rows that have it."""
    return [row[name] for row in run.history if name in row]
