"""What the ranks of the tests run of the verbs that evaluate: functions of `Ranks` and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vitrail
from vitrail.errors import VitrailError
from vitrail.runtime.distributed import Ranks

Answer = tuple[Any, list[str]]  # the figures, or an error and whether it is reported already; and what was said


def evaluate(ranks: Ranks, verb: str, model: Path, data: Any, flags: Mapping[str, Any]) -> Answer:
    """What `vitrail.evaluate`, `vitrail.probe` or `vitrail.transfer` returns, and its lines."""
    lines: list[str] = []
    try:
        result = getattr(vitrail, verb)(model, data, quiet=True, log=lines.append, ranks=ranks, **flags)
    except VitrailError as error:
        return (str(error), error.reported), lines
    rows = result.rows if verb == "transfer" else result.to_dict()
    return rows, lines
