"""Reads what an .onnx file contains and tries whether it runs, by `sandbox` in a process with limited memory and time."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.confined import describe_end, list_import_paths, run_alone
from vitrail.weights.onnx import sandbox
from vitrail.weights.pickled import BYTES_PER_SECOND
from vitrail.weights.tensors import AGAIN, parse_json, printable, unreadable

INSTALL = "pip install 'vitrail[onnx]'"
MOST_BYTES = 2**31 - 1  # of a protobuf message; larger weights are in separate files
SPARE_BYTES = 2**30  # for the activations of one image
EXPANSION = 8  # bytes more for each byte of the files; 2 are enough for weights, large images need more for activations
LEAST_SECONDS = 60
DISTRUST = "fetch it again from a source you trust, or export the model again: vitrail export MODEL --to onnx"


@dataclass(frozen=True)
class Contents:
    """The content of an .onnx file.

    Args:
        inputs: the names of the inputs of the graph.
        external: the names of the files in its folder that hold its weights.
        unwanted: why vitrail does not run the graph, as the end of a sentence that begins with the path; empty if it does.
    """

    metadata: dict[str, str]
    inputs: list[str]
    external: list[str]
    unwanted: str

    def list_files(self, path: Path) -> list[Path]:
        """Returns the file itself, and those in its folder that hold its weights."""
        return [path, *(path.resolve().parent / name for name in self.external)]


def read_contents(path: Path) -> Contents:
    """Reads what an .onnx file contains. docs/export.md lists what is refused.

    Raises:
        ConfigError: the package onnx is not installed.
        CheckpointError: the file cannot be read, is damaged or beyond a limit, or has weights elsewhere than in its folder.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    if size > MOST_BYTES:
        raise CheckpointError(f"{path} has more than 2 GB, the limit of its format", DISTRUST)
    if find_spec("onnx") is None:
        raise ConfigError("reading an .onnx file requires onnx, which is not installed", INSTALL)
    report = parse_json(_run(path, size), f"the content of {path}")
    if "fault" in report:
        raise CheckpointError(f"{path} {printable(report['fault'], 300)}", DISTRUST)
    return Contents(**report)


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
    failure = _run(path, size, name, shape)
    if failure == sandbox.MEMORY:
        what = f"{path} of {size / 1e6:,.1f} MB needs more than {_spare_bytes(size) / 1e6:,.0f} MB for one image"
        raise CheckpointError(what, f"{DISTRUST}; for large images, use the model that it was exported from")
    if failure:
        raise CheckpointError(f"onnxruntime cannot run {path}: {printable(failure, 300)}", AGAIN)


def _spare_bytes(size: int) -> int:
    return SPARE_BYTES + EXPANSION * size


def _run(path: Path, size: int, name: str = "", shape: Sequence[int] | None = None) -> str:
    """Returns what `sandbox` prints. Raises `CheckpointError` if it does not end by itself."""
    seconds = LEAST_SECONDS + size // BYTES_PER_SECOND
    options = {
        "path": str(path.resolve()),
        "name": name,
        "shape": shape and list(shape),
        "sys_path": list_import_paths(),
        "seconds": seconds,
        "spare_bytes": _spare_bytes(size),
    }
    folder, program = tempfile.gettempdir(), sandbox.__file__
    try:
        ended = run_alone(program, json.dumps(options), folder=folder, seconds=seconds, stdout=subprocess.PIPE)
    except subprocess.TimeoutExpired as error:
        what = f"{path} {'was not read' if shape is None else 'did not process one image'} in {seconds:,} s"
        raise CheckpointError(what, DISTRUST) from error
    if ended.returncode != 0:
        raise CheckpointError(f"{path} ended the process that tried it ({describe_end(ended.returncode)})", DISTRUST)
    return ended.stdout.decode("utf-8", "replace").strip()
