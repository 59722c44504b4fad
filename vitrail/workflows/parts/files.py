"""The files of one part: a table in Parquet or JSON lines, or features as an array with the paths of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.inference.parts import Plan
from vitrail.inference.results import list_rows
from vitrail.tables import open_table, save_array

TYPES = {"text": str, "number": float, "numbers": np.ndarray}


def write_part(
    folder: Path, plan: Plan, number: int, pairs: Iterable[tuple[str, Any]], failed: Mapping[str, str]
) -> int:
    """Writes the files of a part, each whole or not at all; returns the number of rows.

    Args:
        pairs: the key of every image of the part with its result, None if it could not be read.
        failed: why images could not be read; looked up when their row is made.

    Raises:
        ConfigError: pyarrow is missing.
        DiskError: a file cannot be written.
    """
    places = [folder / name for name in plan.files(number)]
    if plan.format == "npy":
        keys, values = places
        return _write_array(keys, values, plan, number, pairs, failed)
    columns = {name: TYPES[kind] for name, kind in plan.columns.items()}
    values = [name for name in columns if name not in ("path", "error")]
    count = 0
    with open_table(places[0], plan.format, columns) as table:
        for row in list_rows(pairs, failed, values):
            table.write(row)
            count += 1
    return count


def _write_array(
    keys: Path, values: Path, plan: Plan, number: int, pairs: Iterable[tuple[str, Any]], failed: Mapping[str, str]
) -> int:
    """An array (n, D) float32 with a row for every image, NaN where it could not be read, and a line of JSON for each row."""
    rows = np.full((len(plan.span(number)), plan.width), np.nan, np.float32)
    with open_table(keys, "jsonl") as table:
        for place, (key, result) in enumerate(pairs):
            if result is not None:
                rows[place] = result.features
            table.write({"path": key, "error": failed[key] if result is None else ""})
    save_array(values, rows)
    return len(rows)
