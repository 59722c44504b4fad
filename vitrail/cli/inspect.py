"""`vitrail inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.inference_flags import InferenceFlags


def inspect(
    model: str,
    /,
    *,
    out: Path,
    data: str | None = None,
    most: int = 512,
    cost: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    using: InferenceFlags = InferenceFlags(),
) -> None:
    """Look inside a model: the paper's figures of its filters, positions and heads, on one page and as numbers.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, or a .safetensors file.
    out
        The folder for report.html, numbers.json and the pictures.
    data
        Images to look at, labelled or not: what `vitrail train` takes, or a folder of images.
    most
        Images at most, spread evenly over the data.
    cost
        Measure time and memory at larger images too.
    json
        One JSON object on the last line of stdout.
    """
    import shlex
    import sys

    from vitrail.cli.output import one_line
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.inspect import inspect as look

    use_all_cores()
    options = using.reading_images(max_bad="1%")
    command = shlex.join(["vitrail", *sys.argv[1:]])
    report, figures = look(
        model, out, data, most=most, cost=cost, classes=using.classes, options=options, command=command
    )
    if json:
        plain = {name: value for name, value in figures.items() if isinstance(value, int | float | str)}
        print(one_line({"report": str(report), **plain}))
        return
    for claim, holds in figures["findings"].items():
        print(f"{ {True: 'true', False: 'false', None: 'not asked'}[holds]:10}{claim}")
    print(report)
