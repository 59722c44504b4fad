"""`vitrail probe`."""

from __future__ import annotations

import sys
from typing import Unpack

from vitrail.cli.devices import Together
from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import ProbeFlags, ProtocolFlags
from vitrail.runtime.launch import is_launched, launch


@takes_flags(ProtocolFlags, ProbeFlags)
def probe(
    model: str, data: str, /, *, devices: Together = None, json: AsJson = False, **flags: Unpack[ProbeFlags]
) -> int:
    """Evaluate a model by its frozen features: a linear classifier, nearest neighbours, or a few shots.

    It trains on the split train and evaluates on test, else val, else a part held out of train.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported
        .onnx; it needs no head.
    data
        What `vitrail train` takes; its classes need not be the model's.
    """
    if devices is not None and not is_launched():
        return launch(devices, sys.argv[1:])
    from vitrail.cli.output import columns, one_line
    from vitrail.runtime.distributed import join
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.api import probe as judge

    use_all_cores()
    with join(flags.get("device")) as ranks:
        result = judge(model, data, ranks=ranks, **flags)
    if not ranks.first:
        return 0
    head, rows = result.table()
    print(columns(rows, head))
    if json:
        print(one_line(result.to_dict()))
    return 0
