"""`vitrail train`."""

from __future__ import annotations

import sys
from typing import Unpack

from vitrail.cli.devices import Devices, Network, Restarts
from vitrail.cli.output import AsJson, print_plan
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_training import TrainFlags
from vitrail.runtime.launch import is_launched, launch


@takes_flags(TrainFlags)
def train(
    data: str | None = None,
    /,
    *,
    devices: Devices = None,
    restarts: Restarts = 0,
    network: Network = None,
    json: AsJson = False,
    **flags: Unpack[TrainFlags],
) -> int:
    """Train a ViT on your images, from scratch or from given weights (--init).

    Running the same command with the same --out resumes the run.

    Parameters
    ----------
    data
        A folder of class folders, a manifest (CSV, JSONL, Parquet), arrays (.npy, .npz), or the built-in `digits`.
    """
    if devices is not None and flags.get("dry_run"):
        return print_plan(data, devices, network, flags, json=json)
    if devices is not None and not is_launched():
        from vitrail.workflows.train import compose

        compose(data, flags, labels=True)  # mistakes are told here, once
        return launch(devices, sys.argv[1:], restarts=restarts)
    from vitrail.cli.output import command_line, print_line, print_result
    from vitrail.workflows.train import train as run

    print_result(run(data, command=command_line(), say=print_line, **flags), json=json)
    return 0
