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
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    from vitrail.workflows.api import predict as answer
    from vitrail.workflows.predict import write_rows

    kind, out = "jsonl" if json else flags.pop("format", None), flags.pop("out", None)
    write_rows(answer(model, inputs or ("-",), **flags), out, kind)
