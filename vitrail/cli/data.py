"""`vitrail data check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.errors import DataError


def check(
    data: str,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="A folder for pictures with their boxes or masks: SPLIT/NAME.jpg.")
    ] = None,
    samples: Annotated[int, Parameter(help="With --out: pictures of each split, spread evenly over it.")] = 16,
    json: Annotated[
        bool, Parameter(negative="", help="The findings as one JSON object on the last line of stdout.")
    ] = False,
) -> None:
    """Read every image of a data set and report on it: layout, counts, sizes, bad files, duplicates, leaks.

    The exit code is 3 if `vitrail train` would refuse the data.

    Parameters
    ----------
    data
        What `vitrail train` takes.
    """
    from json import dumps

    from vitrail.workflows.api import check_data

    result = check_data(data, out=out, samples=samples)
    print(dumps(result.to_dict()) if json else result.to_text())
    if result.refused:
        raise DataError(f"`vitrail train` refuses these data: {result.refused}", "see the report above")
