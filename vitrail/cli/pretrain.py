"""`vitrail pretrain`."""

from __future__ import annotations

import sys
from typing import Unpack

from vitrail.cli.devices import Devices, Network, Restarts
from vitrail.cli.output import AsJson, print_plan
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_training import PretrainFlags
from vitrail.runtime.launch import is_launched, launch


@takes_flags(PretrainFlags)
def pretrain(
    data: str | None = None,
    /,
    *,
    devices: Devices = None,
    restarts: Restarts = 0,
    network: Network = None,
    json: AsJson = False,
    **flags: Unpack[PretrainFlags],
) -> int:
    """Train an encoder on images without labels; labels, where there are any, only monitor its features.

    The result is fine-tuned with `vitrail train DATA --init RUN` and evaluated with `vitrail probe RUN DATA`. Running the
    same command with the same --out resumes the run. moco and simclr compare all images of a --batch, in as little memory as
    --set data.micro_batch asks for.

    Parameters
    ----------
    data
        What `vitrail train` takes, or a folder of images without classes.
    """
    if devices is not None and flags.get("dry_run"):
        return print_plan(data, devices, network, flags, json=json)
    if devices is not None and not is_launched():
        from vitrail.workflows.train import compose

        compose(data, flags, labels=False)  # mistakes are told here, once
        return launch(devices, sys.argv[1:], restarts=restarts)
    from vitrail.cli.output import command_line, print_line, print_result
    from vitrail.workflows.train import pretrain as run

    print_result(run(data, command=command_line(), say=print_line, **flags), json=json)
    return 0
