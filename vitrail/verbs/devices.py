"""Commands that several processes of a machine run: their options, and how they are started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

from vitrail.errors import ConfigError
from vitrail.runtime.launch import is_launched, launch

if TYPE_CHECKING:
    from vitrail.runtime.distributed import Ranks

Devices = Annotated[
    str | None,
    "Compute on this many devices of this machine, or on `all` GPUs: one process for each, with the same figures.",
]
PartDevices = Annotated[
    str | None, "With --parts: compute on this many devices of this machine, or on `all` GPUs: one process for each."
]


def launch_again(devices: str | None) -> int | None:
    """Runs the command of this process on several devices, and returns its exit code.

    Returns None, for this process to go on, without ``devices`` and in one of those that were started.
    """
    return None if devices is None or is_launched() else launch(devices, sys.argv[1:])


def join_ranks(device: str | None) -> AbstractContextManager[Ranks]:
    """Joins the processes of the launcher, if there is one, with all cores of the CPU."""
    from vitrail.runtime.distributed import join
    from vitrail.runtime.process import use_all_cores

    use_all_cores()
    return join(device)


def launch_parts(devices: str | None, options: Mapping[str, Any], inputs: Sequence[str]) -> int | None:
    """Starts a command that writes parts as `launch_again` does. Raises `ConfigError` for what cannot be divided."""
    if devices is not None and options.get("parts") is None:
        raise ConfigError("--devices divides parts, and there is no --parts", "give --parts DIR")
    if devices is not None and (not inputs or "-" in inputs):
        raise ConfigError("--devices is given, and paths on standard input, which one process reads", "name the images")
    return launch_again(devices)


def write_parts_on_ranks(write: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Calls ``write`` with ``options`` in each process of a launcher: they claim parts, and an error of one is that of all.

    Returns what it returns on the first, and None on the others, which print nothing.
    """
    from vitrail.runtime.distributed import join
    from vitrail.runtime.progress import log_nothing

    with join(options.get("device")) as ranks, ranks.share_errors():
        written = write(**options) if ranks.first else write(**{**options, "quiet": True, "log": log_nothing})
    return written if ranks.first else None
