"""`vitrail embed`."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from vitrail.cli.devices import InParts, launch_parts, write_parts_together
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_predicting import EmbedFlags
from vitrail.errors import ConfigError
from vitrail.runtime.launch import is_launched


@takes_flags(EmbedFlags)
def embed(model: str, /, *inputs: str, devices: InParts = None, **flags: Unpack[EmbedFlags]) -> int:
    """Write the features of images: .npy (with the paths beside it), .jsonl, .csv or .parquet; of many images in parts.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    if devices is not None and not is_launched():
        return launch_parts(devices, flags, inputs)
    from vitrail.workflows.api import embed as write

    if flags.get("out") is None and flags.get("parts") is None:
        raise ConfigError("no output was named", "give --out FILE, or --parts DIR for many images")
    if flags.get("parts") is None:
        print(write(model, inputs or ("-",), **flags))
    else:
        folder = write_parts_together(partial(write, model, inputs or ("-",)), flags)
        if folder is not None:
            print(folder)
    return 0
