"""`vitrail study` and its verbs `work`, `report`, `pack`, `add` and `write`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_study import StudyFlags

if TYPE_CHECKING:
    from vitrail.workflows.study.conclude import Studied


@takes_flags(StudyFlags)
def study(data: str | None = None, /, *, json: AsJson = False, **flags: Any) -> None:
    """Test claims of the ViT paper, or your own, on your images and this machine: held, did not hold, or cannot tell.

    Trains small networks from several seeds within a budget of time, and writes every verdict with its interval to a page.
    Running the same command again goes on where it stopped.

    Parameters
    ----------
    data
        Labelled images, what `vitrail train` takes; a study of your own may name them.
    """
    from vitrail.verbs.printing import command_line
    from vitrail.workflows.api_study import study as run

    result = run(data, command=command_line(), **flags)
    if result is not None:
        _print_studied(result, json=json)


def work(folder: Path, /) -> None:
    """Compute cells of a planned study until none is left: any number of processes, on any machines that see the folder.

    Parameters
    ----------
    folder
        The --out of `vitrail study`.
    """
    from vitrail.workflows.api_study import work_study

    print(f"computed {work_study(folder)} cells")


def report(folder: Path, /, *, json: AsJson = False) -> None:
    """Judge the results that there are, and write report.html, numbers.json, costs.json and cells.csv.

    Parameters
    ----------
    folder
        The --out of `vitrail study`.
    """
    from vitrail.workflows.api_study import report_study

    _print_studied(report_study(folder), json=json)


def pack(folder: Path, file: Path, /) -> None:
    """Write the results of a study to one file, for another machine: kilobytes a cell, no weights.

    Parameters
    ----------
    folder
        The --out of `vitrail study`.
    file
        A .zip file.
    """
    from vitrail.workflows.api_study import pack_study

    print(f"packed {pack_study(folder, file)} cells into {file}")


def add(folder: Path, file: Path, /) -> None:
    """Take the results in a file of `vitrail study pack` that a study lacks; an empty folder becomes that study.

    Parameters
    ----------
    folder
        The --out of `vitrail study`, or a new folder.
    file
        What `vitrail study pack` wrote.
    """
    from vitrail.workflows.api_study import add_study

    print(f"added {add_study(folder, file)} cells to {folder}")


def write(name: str, /) -> None:
    """Print a built-in study as YAML, to begin one of your own: `vitrail study write vit-paper > mine.yaml`.

    Parameters
    ----------
    name
        vit-paper, vit-paper-m or digits.
    """
    from vitrail.workflows.api_study import write_study

    print(write_study(name), end="")


def _print_studied(studied: Studied, *, json: bool) -> None:
    from vitrail.reports.study.units import read_effect
    from vitrail.verbs.printing import columns, one_line

    rows = studied.to_rows()
    print(columns([[row["claim"], row["verdict"], read_effect(row).words(), row["why"]] for row in rows]))
    for asked in studied.numbers["not_asked"]:
        print(f"not asked: {asked['name']}: {asked['why']}")
    print(f"report: {studied.report}")
    if json:
        print(one_line({row["claim"]: row["verdict"] for row in rows}))
