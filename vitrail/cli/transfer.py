"""`vitrail transfer`."""

from __future__ import annotations

import sys
from typing import Any

from vitrail.cli.devices import Together
from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import TransferFlags, TransferOutFlags
from vitrail.runtime.launch import is_launched, launch


@takes_flags(TransferOutFlags, TransferFlags)
def transfer(model: str, /, *data: str, devices: Together = None, json: AsJson = False, **flags: Any) -> int:
    """Evaluate a model on several data sets, by its frozen features and by fine-tuning: one table, and the mean over data sets.

    Running the same command again resumes where it stopped.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    data
        Data sets, each what `vitrail train` takes; with --vtab one folder of the tasks of VTAB-1k.
    """
    if devices is not None and not is_launched():
        return launch(devices, sys.argv[1:])
    from vitrail.cli.output import columns, command_line, one_line
    from vitrail.runtime.distributed import join
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.api import transfer as judge

    use_all_cores()
    with join(flags.get("device")) as ranks:
        result = judge(model, data, command=command_line(), ranks=ranks, **flags)
    if not ranks.first:
        return result.code
    print(columns(result.table(), ["data", *result.protocols]))
    print(f"report: {flags['out'] / 'report.html'}")
    for place, cell in result.failures.items():
        print(f"error: {place}: {cell.error}", file=sys.stderr)
    if json:
        means = {
            # JSON has no NaN: a mean that a failure leaves undefined is null
            f"{name}_{protocol}": mean.accuracy if mean.accuracy == mean.accuracy else None
            for name, row in result.means().items()
            for protocol, mean in row.items()
        }
        print(one_line({"data_sets": len(result.rows), "failed": len(result.failures), **means}))
    return result.code
