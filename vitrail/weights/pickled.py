"""Pickled checkpoints (.pt, .pth, .bin). A separate process opens them, and this one reads the safetensors it writes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.files import free_bytes
from vitrail.runtime.confined import describe_end, list_import_paths, run_alone
from vitrail.text import printable
from vitrail.weights import pickle_sandbox
from vitrail.weights.tensors import MAX_TENSORS, read_json, read_tensors, unreadable

MIN_SECONDS = 120  # to import torch from a slow disk
BYTES_PER_SECOND = 20_000_000  # of a slow disk
SPARE_BYTES = 512 * 2**20  # memory and disk of the process beyond torch and the tensors
DISTRUST = "do not use it, or save its state_dict() as .safetensors at its source"


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a pickled checkpoint of torch by their keys in nested dicts, joined with dots, but not those of
    optimisers. Nothing is unpickled in this process.

    Raises:
        CheckpointError: the file is damaged, needs more than tensors, has no dict of tensors, or exceeds memory or time.
    """
    try:
        size = path.stat().st_size
        temporary = Path(tempfile.gettempdir())
        if free_bytes(temporary) < pickle_sandbox.MAX_EXPANSION * size:
            what = f"the tensors of {path} need {size:,} bytes in {temporary}, which has {free_bytes(temporary):,}"
            raise CheckpointError(what, "free some space there, or set TMPDIR to another folder")
        with tempfile.TemporaryDirectory(prefix="vitrail-unpickled-") as folder:
            _rewrite(path, Path(folder).resolve(), size)
            return _read_answer(Path(folder), path)
    except OSError as error:
        raise unreadable(path, error) from error


def _rewrite(path: Path, folder: Path, size: int) -> None:
    """Runs `pickle_sandbox`, which writes to ``folder``. Raises `CheckpointError` if it does not end by itself."""
    seconds = MIN_SECONDS + size // BYTES_PER_SECOND
    options = {
        "source": str(path.absolute()),
        "folder": str(folder),
        "sys_path": list_import_paths(),
        "seconds": seconds,
        "spare_bytes": SPARE_BYTES,
        "max_tensors": MAX_TENSORS,
    }
    try:
        ended = run_alone(pickle_sandbox.__file__, json.dumps(options), folder=folder, seconds=seconds)
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{path} could not be read in {seconds:,} s", DISTRUST) from error
    if ended.returncode != 0 or not (folder / "answer.json").is_file():
        raise CheckpointError(f"{path} ended the process that read it ({describe_end(ended.returncode)})", DISTRUST)


def _read_answer(folder: Path, path: Path) -> dict[str, Tensor]:
    """Returns the tensors by all of their names. Raises `CheckpointError` with the reason if there are none."""
    try:
        answer = read_json(folder / "answer.json")
        tensors = {} if "what" in answer else read_tensors(folder / "model.safetensors")[0]
        aliases = {} if "what" in answer else answer.get("aliases")
        if not isinstance(aliases, dict) or len(aliases) > MAX_TENSORS:
            raise CheckpointError("it has no valid aliases", DISTRUST)
        if not all(isinstance(first, str) and first in tensors for first in aliases.values()):
            raise CheckpointError("an alias names no tensor", DISTRUST)
    except CheckpointError as error:
        raise CheckpointError(f"the process that read {path} gave an invalid answer: {error.what}", DISTRUST) from error
    if "what" in answer:
        raise CheckpointError(f"{path} {printable(answer['what'], 400)}", printable(answer.get("remedy"), 400))
    return {**tensors, **{name: tensors[first] for name, first in aliases.items()}}
