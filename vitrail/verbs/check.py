"""`vitrail check` and `vitrail check-parts`: files that vitrail wrote, compared with their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitrail.errors import DataError
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.inference.parts.folder import PartsCheck


@verb()
def check_parts(
    folder: Annotated[str | Path, "The folder that --parts named."], *, quiet: options.Quiet = False
) -> PartsCheck:
    """Compares the parts that `vitrail predict` or `vitrail embed` wrote with their records: sizes and SHA-256.

    Parts that are missing, damaged or foreign are named; the exit code of the command is then 3.

    Raises:
        DataError: the folder has no plan of parts.
    """
    from vitrail.inference.parts.folder import verify_parts

    return verify_parts(Path(folder), quiet=quiet)


def run_check_parts(folder: str, /, *, json: options.FindingsAsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import one_line

    found = check_parts(folder, **given)
    print(one_line(found.to_dict()) if json else found.to_text())
    if not found.sound:
        raise DataError(f"{folder} does not hold every image once", found.remedy)


@verb()
def check_export(
    export: Annotated[str | Path, "A .onnx, .xml or .pt2 file with its .sha256 beside it."],
) -> dict[str, str]:
    """Compares an export with the SHA-256 that `vitrail export` wrote beside it, for software that does not verify what it reads.

    `sha256sum --check NAME.sha256` does the same. The exit code is 4 for a file that is missing or was changed.

    Returns:
        The SHA-256 of each file by its name.

    Raises:
        CheckpointError: a file is missing or was changed, or there is no valid .sha256 beside the export.
    """
    from vitrail.exports.sidecar import verify_sums

    return verify_sums(Path(export))


def run_check_export(export: str, /, *, json: options.AsJson = False) -> None:
    from vitrail.verbs.printing import one_line

    sums = check_export(export)
    print(one_line(sums) if json else "\n".join(f"whole    {name}  {sha256}" for name, sha256 in sums.items()))
