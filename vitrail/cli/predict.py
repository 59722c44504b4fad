"""`vitrail predict`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli.devices import InParts, launch_parts, write_parts_together
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_predicting import PredictFlags
from vitrail.runtime.launch import is_launched


@takes_flags(PredictFlags)
def predict(
    model: str,
    /,
    *inputs: str,
    devices: InParts = None,
    json: Annotated[bool, Parameter(negative="", help="JSON lines on stdout.")] = False,
    **flags: Any,
) -> int:
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
    if devices is not None and not is_launched():
        return launch_parts(devices, flags, inputs)
    from vitrail.workflows.api import predict as answer
    from vitrail.workflows.predict import write_answers

    if flags.get("parts") is not None:
        flags["format"] = "jsonl" if json else flags.get("format")
        write_parts_together(partial(answer, model, inputs or ("-",)), flags)
        return 0
    kind, out = "jsonl" if json else flags.pop("format", None), flags.pop("out", None)
    write_answers(answer(model, inputs or ("-",), **flags), out, kind)
    return 0
