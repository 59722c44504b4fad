"""How the command line prints figures and tables."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from vitrail.files import replace_nan
from vitrail.runtime.progress import LogFunction, to_stderr


def print_beside(json: bool) -> LogFunction:
    """Returns what prints a line for people: to stdout, but to stderr where stdout is left to the JSON."""
    return to_stderr if json else partial(print, flush=True)


def command_line() -> str:
    """Returns the command that started this process, for a report."""
    return shlex.join(["vitrail", *sys.argv[1:]])


def one_line(figures: Mapping[str, Any]) -> str:
    """Returns one JSON object on one line, its own numbers to six digits after the point; NaN and infinities are null.

    docs/reference/json.md documents the keys.
    """
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}
    return json.dumps(replace_nan(rounded))


def columns(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Returns rows as aligned columns: numbers to the right, text to the left."""
    table = [[str(cell) for cell in row] for row in ([head] if head else []) + [list(row) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*table)]
    numeric = [all(_is_number(cell) for cell in column[bool(head) :]) for column in zip(*table)]
    lines = (
        "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric))
        for row in table
    )
    return "\n".join(line.rstrip() for line in lines)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").replace("-", "").strip().isdigit()
