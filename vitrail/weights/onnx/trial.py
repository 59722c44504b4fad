"""Trying an .onnx file before it is opened: a separate process opens it and runs it on one image, within limits."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.runtime.confined import describe_end, list_import_paths, run_alone
from vitrail.weights.onnx import trial_program
from vitrail.weights.onnx.contents import DISTRUST
from vitrail.weights.pickled import BYTES_PER_SECOND
from vitrail.weights.tensors import AGAIN, printable

SPARE_BYTES = 2**30  # for the activations of one image
EXPANSION = 8  # bytes more for each byte of the files; 2 are enough for weights, large images need more for activations
LEAST_SECONDS = 60


def try_out(path: Path, size: int, name: str, shape: Sequence[int]) -> None:
    """Runs a graph on one image in a process with limited memory and time.

    Args:
        path: file with the graph.
        size: bytes of all files of the graph, which set the limits.
        name: input of the graph for images.
        shape: of one image, (1, C, H, W).

    Raises:
        CheckpointError: the graph cannot be run, needs more than the limits, or ended the process.
    """
    seconds, spare_bytes = LEAST_SECONDS + size // BYTES_PER_SECOND, SPARE_BYTES + EXPANSION * size
    options = {
        "path": str(path.resolve()),
        "name": name,
        "shape": list(shape),
        "sys_path": list_import_paths(),
        "seconds": seconds,
        "spare_bytes": spare_bytes,
    }
    try:
        ended = run_alone(
            trial_program.__file__,
            json.dumps(options),
            folder=tempfile.gettempdir(),
            seconds=seconds,
            stdout=subprocess.PIPE,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{path} did not process one image in {seconds:,} s", DISTRUST) from error
    if ended.returncode != 0:
        raise CheckpointError(f"{path} ended the process that tried it ({describe_end(ended.returncode)})", DISTRUST)
    said = ended.stdout.decode("utf-8", "replace").strip()
    if not said:
        return
    if said == trial_program.MEMORY:
        what = f"{path} of {size / 1e6:,.1f} MB needs more than {spare_bytes / 1e6:,.0f} MB for one image"
        raise CheckpointError(what, f"{DISTRUST}; for large images, use the model that it was exported from")
    raise CheckpointError(f"onnxruntime cannot run {path}: {printable(said, 300)}", AGAIN)
