"""Results between machines: the plan, the costs and the results of a study as one file of a few kilobytes a cell."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np

from vitrail.checksums import is_zip_intact, seal_zip
from vitrail.errors import ConfigError, DataError
from vitrail.files import disk_errors, make_folder, parse_sealed, replace_file, write_sealed
from vitrail.runtime.progress import Say
from vitrail.untrusted.archives import check_expansion, read_member
from vitrail.untrusted.limits import DATA_EXPANSION, SEALED_BYTES
from vitrail.untrusted.regular import open_regular
from vitrail.workflows.study.plan import parse_plan, read_plan
from vitrail.workflows.study.results import CELLS, CellResult, parse_result, read_result, write_result

# what zipfile raises for damaged archives, and for what parts of them would need
UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
PLANNED = ("plan.json", "rates.json")  # what describes a study beside its results


def pack(folder: Path, file: Path) -> int:
    """Writes the results of the study in ``folder`` to ``file``, a zip, and returns their number.

    Raises `ConfigError` for a folder without a plan, and `DiskError`.
    """
    read_plan(folder)
    results = [path for path in sorted((folder / CELLS).glob("*.json")) if read_result(folder, path.stem) is not None]
    described = [folder / name for name in PLANNED if (folder / name).exists()]
    content = io.BytesIO()
    with disk_errors(folder), zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in (*described, *results):
            packed.write(path, path.relative_to(folder).as_posix())
    replace_file(file, seal_zip(content.getvalue()))
    return len(results)


def add(folder: Path, file: Path, say: Say) -> int:
    """Takes the results in ``file`` that the study in ``folder`` lacks, and returns their number.

    A folder without a study becomes that of the file. A result that is there already stays, and it is said where the one in
    the file has other predictions.

    Raises `ConfigError` for a file of another study, `DataError` for a damaged one.
    """
    described, results = _read(file)
    there, _ = parse_plan(described["plan.json"], file)
    if not (folder / "plan.json").exists():
        make_folder(folder)
        for name, document in described.items():
            write_sealed(folder / name, document)
    plan, _ = read_plan(folder)
    if there.study.name != plan.study.name or there.pool != plan.pool:
        raise ConfigError(
            f"{file} has results of the study {there.study.name!r} on {there.pool.name}, and {folder} "
            f"is the study {plan.study.name!r} on {plan.pool.name}",
            "add them to the folder of that study, or to a new one",
        )
    added = 0
    for result in results:
        known = read_result(folder, result.key)
        if known is None:
            write_result(folder, result)
            added += 1
        elif not np.array_equal(known.right, result.right):
            say(f"warning  the cell {result.key[:12]} has other predictions in {file}; those in {folder} are kept")
    return added


def _read(file: Path) -> tuple[dict[str, dict], list[CellResult]]:
    """The documents that describe the study by name, and the results."""
    try:
        with open_regular(file) as opened:
            content = opened.read()
        if not is_zip_intact(content):
            raise ValueError("it does not match its checksum")
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            check_expansion(packed, len(content), DATA_EXPANSION, spared=SEALED_BYTES)
            names = packed.namelist()
            described = {name: parse_sealed(read_member(packed, name)) for name in PLANNED if name in names}
            cells = [
                parse_result(parse_sealed(read_member(packed, name))) for name in names if name.startswith(f"{CELLS}/")
            ]
        results = [cell for cell in cells if cell is not None]
        if len(results) < len(cells):
            raise ValueError(f"{len(cells) - len(results)} of its {len(cells)} cells are no results of this format")
        if "plan.json" not in described:
            raise ValueError("it has no plan.json")
        return described, results
    except UNREADABLE as error:
        raise DataError(
            f"{file} cannot be read as results of a study: {error}", "pack it again: vitrail study pack"
        ) from error
