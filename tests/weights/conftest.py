"""What tests of weights share: a small model on disk, and a process that spares them the import of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.weights.kinds import a_model
from vitrail.weights import pickled
from vitrail.weights.native import save_model

WARM = """
import json, os, runpy, sys
sys.path[:] = json.loads(sys.argv[2])
import safetensors.torch, torch
for told in sys.stdin:
    if (child := os.fork()) == 0:
        sys.argv = [sys.argv[1], told]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            os._exit(0)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small model, with what is changed of it, and names the folder."""

    def save(**changes: Any) -> Path:
        return save_model(tmp_path / "source", a_model(**changes))

    return save


@pytest.fixture(scope="module")
def warm_process() -> Iterator[subprocess.Popen]:
    """A process that has imported torch, and runs the program that opens pickles in a child of its own each time."""
    paths = json.dumps([entry for entry in sys.path if os.path.isabs(entry)])
    command = [sys.executable, "-I", "-c", WARM, pickled.pickle_sandbox.__file__, paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def fast(warm_process, monkeypatch) -> None:
    """Spares the second that each new process takes to import torch."""

    def run_alone(told: str, *, folder: Path, seconds: int) -> int:
        warm_process.stdin.write(f"{told}\n")
        warm_process.stdin.flush()
        return int(warm_process.stdout.readline())

    monkeypatch.setattr(pickled, "run_alone", run_alone)
