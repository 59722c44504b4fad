"""How the command line prints figures and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitrail.errors import ConfigError


def one_line(figures: Mapping[str, Any]) -> str:
    """One flat JSON object on one line, numbers to six digits after the point."""
    return json.dumps({name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()})


def columns(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Rows as aligned columns: numbers to the right, words to the left."""
    table = [[str(cell) for cell in row] for row in ([head] if head else []) + [list(row) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*table)]
    numeric = [all(_is_number(cell) for cell in column[bool(head) :]) for column in zip(*table)]
    lines = (
        "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric))
        for row in table
    )
    return "\n".join(line.rstrip() for line in lines)


def whole_numbers(text: str) -> tuple[int, ...]:
    """``"1,5,10"`` as numbers."""
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} are not whole numbers", "write them with commas between: 1,5,10,25") from None


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").replace("-", "").strip().isdigit()
