"""`vitrail doctor`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


def doctor(*, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Say what this machine has: versions, devices, optional packages, disk, and a numeric self-check.

    Parameters
    ----------
    json
        One JSON object on the last line of stdout, for a bug report.
    """
    from vitrail.cli.output import columns, one_line
    from vitrail.runtime.machine import examine

    facts = examine()
    print(one_line(facts) if json else columns(facts.items()))
