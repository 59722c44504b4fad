"""`vitrail evaluate`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.inference_flags import InferenceFlags


def evaluate(
    model: str,
    data: str,
    /,
    *,
    split: Literal["train", "val", "test"] | None = None,
    calibrate: Annotated[bool, Parameter(negative="")] = False,
    corruptions: Annotated[bool, Parameter(negative="")] = False,
    per_class: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    using: InferenceFlags = InferenceFlags(),
) -> None:
    """Judge a model on labelled images it was not trained on.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a .safetensors file, or an .onnx of `vitrail export`.
    data
        What `vitrail train` takes.
    split
        Which part; by default test, else val, else the part that was held out when the model was trained.
    calibrate
        Fit a temperature on this part and store it with the model.
    corruptions
        Judge eight kinds of damage at five levels too.
    per_class
        Print precision, recall and F1 of every class.
    json
        One JSON object on the last line of stdout.
    """
    from vitrail.cli.output import columns, one_line
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.evaluate import evaluate as judge

    use_all_cores()
    options = using.reading_images(max_bad="1%")
    found = judge(
        model, data, split=split, classes=using.classes, calibrate=calibrate, corruptions=corruptions, options=options
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
