"""Trying an .onnx file before it is opened: a separate process opens it and runs it on one image, within limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.weights.onnx import trial_program
from vitrail.weights.onnx.contents import DISTRUST
from vitrail.weights.pickled import BYTES_PER_SECOND, ENVIRONMENT
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
        "sys_path": [entry for entry in sys.path if os.path.isabs(entry)],
        "seconds": seconds,
        "spare_bytes": spare_bytes,
    }
    try:
        code, said = run_alone(json.dumps(options), seconds=seconds)
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{path} did not process one image in {seconds:,} s", DISTRUST) from error
    if code != 0:
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise CheckpointError(f"{path} ended the process that tried it ({end})", DISTRUST)
    if not said:
        return
    if said.strip() == trial_program.MEMORY:
        what = f"{path} of {size / 1e6:,.1f} MB needs more than {spare_bytes / 1e6:,.0f} MB for one image"
        raise CheckpointError(what, f"{DISTRUST}; for large images, use the model that it was exported from")
    raise CheckpointError(f"onnxruntime cannot run {path}: {printable(said.strip(), 300)}", AGAIN)


def run_alone(options: str, *, seconds: int) -> tuple[int, str]:
    """Runs `trial_program` with a minimal environment and returns its exit code and what it printed.

    Raises:
        TimeoutExpired: the process was killed after ``seconds``.
    """
    program = [sys.executable, "-I", "-B", trial_program.__file__, options]
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        program,
        cwd=tempfile.gettempdir(),
        env=environment,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return ended.returncode, ended.stdout.decode("utf-8", "replace")
