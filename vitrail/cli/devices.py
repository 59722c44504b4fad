"""Commands that several processes of a machine run: the flags, and how they are started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.errors import ConfigError
from vitrail.runtime.launch import launch

Devices = Annotated[
    str | None,
    Parameter(
        help="Train on so many devices of this machine, or on `all` GPUs: one process for each. With --dry-run a cluster, "
        "e.g. 64xH100, for which memory and time are estimated."
    ),
]
Together = Annotated[
    str | None,
    Parameter(
        help="Compute on so many devices of this machine, or on `all` GPUs: one process for each, the same figures."
    ),
]
InParts = Annotated[
    str | None,
    Parameter(help="With --parts: compute on so many devices of this machine, or on `all` GPUs: one process for each."),
]
Network = Annotated[
    str | None, Parameter(help="With --dry-run --devices: network cards of a machine and their rate, e.g. 8x400Gb.")
]
Restarts = Annotated[
    int, Parameter(help="With --devices: how often to go on from the newest checkpoint after a process is lost.")
]


def launch_parts(devices: str, flags: Mapping[str, Any], inputs: Sequence[str]) -> int:
    """Starts a command that writes parts on several devices, and returns its exit code. Raises `ConfigError`."""
    if flags.get("parts") is None:
        raise ConfigError("--devices divides parts, and there is no --parts", "give --parts DIR")
    if not inputs or "-" in inputs:
        raise ConfigError("--devices is given, and paths on standard input, which one process reads", "name the images")
    return launch(devices, sys.argv[1:])


def write_parts_together(write: Callable[..., Any], flags: Mapping[str, Any]) -> Any:
    """Calls ``write`` with ``flags`` in each process of a launcher: they claim parts, and an error of one is that of all.

    What it returns on the first, and None on the others, which say nothing.
    """
    from vitrail.runtime.distributed import join
    from vitrail.runtime.progress import say_nothing

    with join(flags.get("device")) as ranks, ranks.share_errors():
        written = write(**flags) if ranks.first else write(**{**flags, "quiet": True, "log": say_nothing})
    return written if ranks.first else None
