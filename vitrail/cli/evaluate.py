"""`vitrail evaluate`."""

from __future__ import annotations

import sys
from typing import Annotated, Unpack

from cyclopts import Parameter

from vitrail.cli.devices import Together
from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import EvaluateFlags
from vitrail.runtime.launch import is_launched, launch


@takes_flags(EvaluateFlags)
def evaluate(
    model: str,
    data: str,
    /,
    *,
    per_class: Annotated[bool, Parameter(negative="", help="Print precision, recall and F1 of every class.")] = False,
    devices: Together = None,
    json: AsJson = False,
    **flags: Unpack[EvaluateFlags],
) -> int:
    """Evaluate a model on labelled images that it was not trained on.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    data
        What `vitrail train` takes.
    """
    if devices is not None and not is_launched():
        return launch(devices, sys.argv[1:])
    from pathlib import Path

    from vitrail.cli.output import columns, command_line, one_line
    from vitrail.runtime.distributed import join
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.api import evaluate as judge

    use_all_cores()
    with join(flags.get("device")) as ranks:
        judgement = judge(model, data, command=command_line(), ranks=ranks, **flags)
    if not ranks.first:
        return 0
    if per_class:
        head, rows = judgement.per_class()
        if rows:
            print(columns(rows, head))
    if json:
        print(one_line(judgement.to_dict()))
        return 0
    figures = judgement.figures.items()
    print(columns((name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in figures))
    if out := flags.get("out"):
        print(f"report: {Path(out) / 'report.html'}")
    return 0
