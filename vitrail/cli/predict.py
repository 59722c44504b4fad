"""`vitrail predict`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_predicting import PredictFlags


@takes_flags(PredictFlags)
def predict(
    model: str,
    /,
    *inputs: str,
    json: Annotated[bool, Parameter(negative="", help="JSON lines on stdout.")] = False,
    **flags: Any,
) -> None:
    """Predict what images show: their labels, the objects on them, or the class of every pixel, as the model was trained.

    The result is a table. Of objects it may also be COCO's results (--out boxes.json) or YOLO's text files (--out labels/), of
    pixels a folder of masks (--out masks/). For many images, --parts DIR writes it in parts, by one or many processes.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    from vitrail.workflows.api import predict as answer
    from vitrail.workflows.predict import write_answers

    if flags.get("parts") is not None:
        flags["format"] = "jsonl" if json else flags.get("format")
        answer(model, inputs or ("-",), **flags)
        return
    kind, out = "jsonl" if json else flags.pop("format", None), flags.pop("out", None)
    write_answers(answer(model, inputs or ("-",), **flags), out, kind)
