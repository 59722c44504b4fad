"""Results between machines: the plan, the costs and the results of a study as one file of a few kilobytes a cell."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from vitrail.errors import ConfigError, DataError
from vitrail.files import disk_errors, make_folder, parse_sealed, stage_file, write_sealed
from vitrail.runtime.progress import Say
from vitrail.workflows.study.plan import read_plan
from vitrail.workflows.study.results import CELLS, CellResult, parse_result, read_result, write_result

PLANNED = ("plan.json", "rates.json")  # what describes a study beside its results


def pack(folder: Path, file: Path) -> int:
    """Writes the results of the study in ``folder`` to ``file``, a zip, and returns their number.

    Raises `ConfigError` for a folder without a plan, and `DiskError`.
    """
    read_plan(folder)
    results = [path for path in sorted((folder / CELLS).glob("*.json")) if read_result(folder, path.stem) is not None]
    described = [folder / name for name in PLANNED if (folder / name).exists()]
    with stage_file(file) as beside, disk_errors(file), zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in (*described, *results):
            packed.write(path, path.relative_to(folder).as_posix())
    return len(results)


def add(folder: Path, file: Path, say: Say) -> int:
    """Takes the results in ``file`` that the study in ``folder`` lacks, and returns their number.

    A folder without a study becomes that of the file. A result that is there already stays, and it is said where the one in
    the file has other predictions.

    Raises `ConfigError` for a file of another study, `DataError` for a damaged one.
    """
    plan_there, described, results = _read(file)
    if not (folder / "plan.json").exists():
        make_folder(folder)
        for name, document in described.items():
            write_sealed(folder / name, document)
    plan, _ = read_plan(folder)
    if plan_there["study"]["name"] != plan.study.name or plan_there["pool"] != plan.document["pool"]:
        raise ConfigError(
            f"{file} has results of the study {plan_there['study']['name']!r} on {plan_there['pool']['name']}, and {folder} "
            f"is the study {plan.study.name!r} on {plan.pool.name}",
            "add them to the folder of that study, or to a new one",
        )
    added = 0
    for result in results:
        there = read_result(folder, result.key)
        if there is None:
            write_result(folder, result)
            added += 1
        elif not np.array_equal(there.right, result.right):
            say(f"warning  the cell {result.key[:12]} has other predictions in {file}; those in {folder} are kept")
    return added


def _read(file: Path) -> tuple[dict, dict[str, dict], list[CellResult]]:
    try:
        with zipfile.ZipFile(file) as packed:
            names = packed.namelist()
            described = {name: parse_sealed(packed.read(name)) for name in PLANNED if name in names}
            cells = [parse_result(parse_sealed(packed.read(name))) for name in names if name.startswith(f"{CELLS}/")]
        results = [cell for cell in cells if cell is not None]
        if len(results) < len(cells):
            raise ValueError(f"{len(cells) - len(results)} of its {len(cells)} cells are no results of this format")
        return described["plan.json"], described, results
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file} cannot be read as results of a study: {error}", "pack it again: vitrail study pack"
        ) from error
