"""`vitrail embed`."""

from __future__ import annotations

from typing import Unpack

from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_predicting import EmbedFlags
from vitrail.errors import ConfigError


@takes_flags(EmbedFlags)
def embed(model: str, /, *inputs: str, **flags: Unpack[EmbedFlags]) -> None:
    """Write the features of images: .npy (with the paths beside it), .jsonl, .csv or .parquet; of many images in parts.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    from vitrail.workflows.api import embed as write

    if flags.get("out") is None and flags.get("parts") is None:
        raise ConfigError("no output was named", "give --out FILE, or --parts DIR for many images")
    print(write(model, inputs or ("-",), **flags))
