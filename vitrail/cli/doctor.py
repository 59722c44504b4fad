"""`vitrail doctor`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter


def doctor(
    *,
    tune: Annotated[
        Literal["show", "clear"] | None,
        Parameter(help="Show what was measured to choose precision and threads, network by network, or clear it."),
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", help="One JSON object on the last line of stdout, for a bug report.")
    ] = False,
) -> None:
    """Report on this machine: versions, devices, optional packages, disk, and a numeric self-check."""
    from vitrail.cli.output import columns, one_line
    from vitrail.workflows.api import doctor as examine

    facts = examine(tune=tune)
    print(one_line(facts) if json else columns(facts.items()) or "nothing was measured yet")
