"""`vitrail data check`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


def check(data: str, /, *, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Read every image of a data set and say what was found: layout, counts, sizes, bad files, duplicates, leaks.

    Parameters
    ----------
    data
        What `vitrail train` takes.
    json
        The findings as one JSON object on the last line of stdout.
    """
    from json import dumps

    from vitrail.data.sources.check import check as look

    found = look(data)
    print(dumps(found.to_dict()) if json else found.to_text())
