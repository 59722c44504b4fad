"""`vitrail predict`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import PredictFlags


@takes_flags(PredictFlags)
def predict(
    model: str,
    /,
    *inputs: str,
    json: Annotated[bool, Parameter(negative="", help="JSON lines on stdout.")] = False,
    **flags: Any,
) -> None:
    """Predict the labels of images: a table of labels and probabilities, row by row.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a .safetensors file, or an .onnx of `vitrail export`.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    from vitrail.inference.results import build_rows
    from vitrail.reports.tables import open_table
    from vitrail.workflows.api import predict as answer

    kind, out = "jsonl" if json else flags.pop("format", None), flags.pop("out", None)
    answers = answer(model, inputs or ("-",), **flags)
    with open_table(out, kind) as table:
        for row in build_rows(answers):
            table.write(row)
    answers.check()
