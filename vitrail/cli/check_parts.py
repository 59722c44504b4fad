"""`vitrail check-parts`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from vitrail.errors import DataError


def check_parts(
    folder: str,
    /,
    *,
    quiet: Annotated[bool, Parameter(negative="", help="No progress.")] = False,
    json: Annotated[
        bool, Parameter(negative="", help="The findings as one JSON object on the last line of stdout.")
    ] = False,
) -> None:
    """Compare the parts that `vitrail predict` or `vitrail embed` wrote with their records: sizes and SHA-256.

    Parts that are missing, damaged or foreign are named, and the exit code is then 3.

    Parameters
    ----------
    folder
        The folder that --parts named.
    """
    from json import dumps

    from vitrail.workflows.api import check_parts as check

    found = check(folder, quiet=quiet)
    print(dumps(found.to_dict()) if json else found.to_text())
    if not found.sound:
        raise DataError(f"{folder} does not hold every image once", found.remedy)
