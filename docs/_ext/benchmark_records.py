"""The page of benchmarks: every committed record as a table, with the machine, the date, the commit and the spread.

A record is what `benchmarks/harness.py` and the benchmarks write: facts of the whole (``batch``), and tables, which are mappings
of rows by name or lists of rows. A figure is a number, a median with its spread, or a value with the ends of its interval.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from reference_tables import table

RECORDS = Path(__file__).parents[2] / "benchmarks/records"
PROVENANCE = ("name", "date", "commit", "machine", "note")
FOLDED = 16  # a table with more rows is folded


def records(folder: Path = RECORDS) -> str:
    """A section for each name, its newest record first; the comparisons with others in front."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = [{"date": path.name[:10], **record} for path, record in zip(sorted(folder.glob("*.json")), found)]
    found.sort(key=lambda record: record["date"], reverse=True)
    found.sort(key=lambda record: record["name"])
    parts = [f"## Against others\n\n{_comparisons(found)}", "## All records"]
    for name, same in groupby(found, key=lambda record: record["name"]):
        parts += [f"### {name}", *map(describe, same)]
    return "\n\n".join(parts)


def describe(record: Mapping[str, Any]) -> str:
    """Where and when a record was made, its facts, and its tables."""
    facts, tables = [], []
    for key, value in record.items():
        if key in PROVENANCE:
            continue
        rows = _rows(value)
        if not rows and figure(value):
            facts.append(f"{_words(key)} {figure(value)}")
        elif rows and key == "images_per_second":
            tables.append(_rates(rows))
        elif rows:
            tables.append(f"{_words(key)}:\n\n{_fold(_table(rows))}")
    parts = [_provenance(record), ", ".join(facts), record.get("note", ""), *tables]
    return "\n\n".join(part for part in parts if part)


def figure(value: Any) -> str:
    """A value of a record in words."""
    match value:
        case None | "" | []:
            return ""
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case {"median": median, "spread": spread}:
            places = max(0, 1 - math.floor(math.log10(spread)))  # two digits of the spread
            return f"{median:,.{places}f} ± {spread:,.{places}f}"
        case [middle, low, high] if all(isinstance(each, float) for each in value) and low <= middle <= high:
            return f"{figure(middle)} ({figure(low)} to {figure(high)})"
        case list():
            return ", ".join(map(figure, value))
    return ", ".join(f"{_words(key)} {figure(each)}" for key, each in value.items())


def _rows(value: Any) -> dict[str, Mapping[str, Any]]:
    """A value that is a table, as rows by name; empty for any other."""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return {str(number): row for number, row in enumerate(value, 1)}
    is_table = isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
    return value if is_table and value else {}


def _table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows by name; the numbers that stand for the names of a list are left out."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if set(columns) == {"median", "spread"}:
        return table(("", "median ± spread"), [(name, figure(row)) for name, row in rows.items()])
    named = not all(name == str(number) for number, name in enumerate(rows, 1))
    head = [*([""] if named else []), *map(_words, columns)]
    return table(
        head,
        [[*([name] if named else []), *(figure(row.get(column)) for column in columns)] for name, row in rows.items()],
    )


def _rates(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Contenders, the fastest first, with a bar as long as each is fast."""
    ordered = sorted(rows.items(), key=lambda row: -row[1]["median"])
    most = ordered[0][1]["median"]
    lines = [
        (
            name,
            figure(row),
            str(len(row["rates"])),
            f'<span class="bar" style="width: {row["median"] / most:.0%}"></span>',
        )
        for name, row in ordered
    ]
    return table(("", "images/s", "blocks", ""), lines)


def _comparisons(found: Sequence[Mapping[str, Any]]) -> str:
    """The best of ours and the best of the others in every record that has both."""
    rows = []
    for record in found:
        contenders = record.get("images_per_second", {}).items()
        ours = [each for each in contenders if each[0].startswith("vitrail")]
        others = [each for each in contenders if each not in ours]
        if ours and others:
            own, other = _fastest(ours), _fastest(others)
            ratio = statistics.median(its / theirs for its, theirs in zip(own[1]["rates"], other[1]["rates"]))
            where = record["machine"]["gpu"] or record["machine"]["processor"]
            rows.append((record["name"], where, figure(own[1]), figure(other[1]), other[0], f"{ratio:.2f}"))
    head = ("record", "machine", "vitrail, images/s", "best other, images/s", "which", "ratio by block")
    return table(head, rows)


def _fastest(contenders: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, Mapping[str, Any]]:
    return max(contenders, key=lambda each: each[1]["median"])


def _provenance(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores"
    return (
        f"*{record['date']}, commit {record['commit']}; {where}; threads {machine['threads']}; "
        f"load {machine['load_average'][0]}; Python {machine['python']}, torch {machine['torch']}*"
    )


def _fold(text: str) -> str:
    """A long table below a line that opens it."""
    rows = text.count("\n") - 1
    return text if rows <= FOLDED else f":::{{dropdown}} {rows} rows\n{text}\n:::"


def _words(key: str) -> str:
    return key.replace("_", " ")
