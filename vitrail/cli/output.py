"""How the command line prints figures and tables."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(negative="", help="One JSON object on the last line of stdout.")]


def command_line() -> str:
    """The words that started this process, for a report."""
    return shlex.join(["vitrail", *sys.argv[1:]])


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


def print_line(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    print(line, flush=True)


def print_result(result: Any, *, json: bool) -> None:
    """Prints the path of a training's report, and with ``json`` its figures. The plan of a dry run stands there already."""
    if isinstance(result, str) or os.environ.get("RANK", "0") != "0":  # of several ranks the first one speaks
        return
    print(f"report: {result.report}")
    if json:
        print(one_line(result.figures))


def print_plan(data: str | None, devices: str, network: str | None, flags: Mapping[str, Any], *, json: bool) -> int:
    """Prints what a training would take on a cluster."""
    from json import dumps

    from vitrail.workflows.cluster_plan import plan_cluster

    rows = plan_cluster(data, devices, network, flags, print_line)
    if json:
        print(dumps({"plan": rows}))
    return 0


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("%", "").replace("-", "").strip().isdigit()
