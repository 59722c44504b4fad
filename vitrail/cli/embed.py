"""`vitrail embed`."""

from __future__ import annotations

from typing import Unpack

from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import EmbedFlags


@takes_flags(EmbedFlags, required=("out",))
def embed(model: str, /, *inputs: str, **flags: Unpack[EmbedFlags]) -> None:
    """Write the features of images: .npy (with the paths beside it), .jsonl, .csv or .parquet.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported .onnx.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    from vitrail.workflows.api import embed as write

    print(write(model, inputs or ("-",), **flags))
