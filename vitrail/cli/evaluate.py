"""`vitrail evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Precision = Literal["fp32", "bf16"]


def evaluate(
    model: str,
    data: str,
    /,
    *,
    split: Literal["train", "val", "test"] | None = None,
    classes: Path | None = None,
    calibrate: Annotated[bool, Parameter(negative="")] = False,
    corruptions: Annotated[bool, Parameter(negative="")] = False,
    per_class: Annotated[bool, Parameter(negative="")] = False,
    batch: int = 64,
    workers: int = 0,
    device: str | None = None,
    precision: Precision = "fp32",
    max_bad: str = "1%",
    json: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Judge a model on labelled images it was not trained on.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, or a .safetensors file.
    data
        What `vitrail train` takes.
    split
        Which part; by default test, else val, else the part that was held out when the model was trained.
    classes
        A text file that names the outputs, one a line, for weights that carry no names.
    calibrate
        Fit a temperature on this part and store it with the model.
    corruptions
        Judge eight kinds of damage at five levels too.
    per_class
        Print precision, recall and F1 of every class.
    batch
        Images at a time; the figures do not depend on it.
    workers
        Processes that read images.
    device
        cuda, mps or cpu.
    precision
        fp32 or bf16.
    max_bad
        Stop when more of the images are bad than this.
    json
        One JSON object on the last line of stdout.
    quiet
        No progress.
    """
    from vitrail.cli.words import columns, one_line
    from vitrail.engine.evaluate import Reading
    from vitrail.engine.evaluate import evaluate as judge
    from vitrail.engine.run import part

    reading = Reading(
        batch=batch, workers=workers, device=device, precision=precision, max_bad=part(max_bad), quiet=quiet
    )
    found = judge(
        model, data, split=split, classes=classes, calibrate=calibrate, corruptions=corruptions, reading=reading
    )
    if per_class:
        head, rows = found.per_class()
        print(columns(rows, head))
    if json:
        print(one_line({"split": found.split, **found.figures}))
    else:
        print(
            columns(
                ((name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in found.figures.items())
            )
        )
