"""Starts a command on several devices of this machine: one process for each, by torch's elastic launch."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import ConfigError, Interrupted, LostProcessError, LostRankError, Preempted
from vitrail.runtime.process import cores

LAUNCHER = "VITRAIL_LAUNCHER"  # the process that starts the ranks
CODES = "VITRAIL_EXIT_CODES"  # names a folder in which each rank leaves its exit code
PATIENCE = 120  # seconds that ranks have to save when they are asked to stop


def is_launched() -> bool:
    """Whether `launch` started this process, which may be the only one, or another launcher as one of several."""
    return CODES in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def launch(devices: str, arguments: Sequence[str], *, restarts: int = 0) -> int:
    """Runs ``python -m vitrail`` with ``arguments`` on several devices; returns the exit code of the rank that failed first.

    Args:
        devices: their number, or ``all`` GPUs of this machine.
        restarts: the maximum number of restarts, from the newest checkpoint, after a rank or a data worker was lost.

    Raises `ConfigError` for devices that are not there.
    """
    count = count_devices(devices)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // count, 1)))
    os.environ[LAUNCHER] = str(os.getpid())
    while True:
        code = _launch_once(count, arguments)
        if code != LostProcessError.code or not restarts:
            return code
        restarts -= 1
        print(f"a process was lost; starting again, {restarts} restarts are left after this one", file=sys.stderr)


def count_devices(devices: str) -> int:
    """Returns the number of ranks for ``--devices``. Raises `ConfigError`."""
    import torch

    there = torch.cuda.device_count()
    if devices == "all":
        if not there:
            raise ConfigError("--devices all: this machine has no GPU", "give a number of processes, e.g. --devices 2")
        return there
    if not devices.isdecimal() or int(devices) < 1:
        raise ConfigError(f"--devices is {devices!r}", "give a number such as 2, or all")
    if there and int(devices) > there:
        raise ConfigError(f"--devices {devices}: this machine has {there} GPUs", f"give at most {there}, or all")
    return int(devices)


def leave_code(code: int) -> None:
    """Tells the launcher that this rank ends with ``code``."""
    if folder := os.environ.get(CODES):
        (Path(folder) / os.environ["RANK"]).write_text(str(code))


def _launch_once(count: int, arguments: Sequence[str]) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the ranks report their errors
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=f"vitrail-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        shutdown_timeout=PATIENCE,
    )
    asked = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CODES] = folder
        try:
            elastic_launch(config, sys.executable)("-u", "-m", "vitrail", *arguments)
        except ChildFailedError as error:
            for rank, failure in error.failures.items():
                number = -failure.exitcode
                if number > 0 and number != signal.SIGTERM:  # with which the launcher ends the other ranks
                    print(f"rank {rank} was ended by {signal.Signals(number).name}", file=sys.stderr)
        except SignalException as error:
            asked = error.sigval
        finally:
            del os.environ[CODES]
        left = {int(path.name): int(path.read_text() or LostRankError.code) for path in Path(folder).iterdir()}
    return summarise([left.get(rank, LostRankError.code) for rank in range(count)], asked)


def summarise(codes: Sequence[int], asked: int = 0) -> int:
    """Returns one exit code for those of all ranks: a failure of their own, then a lost rank, then a stop.

    ``asked`` is the signal that the launcher received: ranks that it ended before they began have left no code.
    """
    after = (LostRankError.code, Preempted.code, Interrupted.code)
    own = [code for code in codes if code and code not in after]
    if own:
        return own[0]
    stops: dict[int, int] = {signal.SIGTERM: Preempted.code, signal.SIGINT: Interrupted.code}
    return next((code for code in after if code in codes), stops.get(asked, 0))
