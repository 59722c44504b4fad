"""What tests of weights share: a small model on disk, and processes that spare them the imports of torch and onnxruntime."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.weights.kinds import a_model
from vitrail.runtime.confined import list_import_paths
from vitrail.weights import onnx, pickled
from vitrail.weights.native import save_model

WARM = """
import importlib, json, os, runpy, sys
sys.path[:] = json.loads(sys.argv[2])
for name in sys.argv[3:]:
    importlib.import_module(name)
for told in sys.stdin:
    if (child := os.fork()) == 0:
        sys.argv = [sys.argv[1], told]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        finally:
            os._exit(1)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small model, with what is changed of it, and names the folder."""

    def save(**changes: Any) -> Path:
        return save_model(tmp_path / "source", a_model(**changes))

    return save


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@contextmanager
def warm(program: str, *modules: str) -> Iterator[Run]:
    """A process that has imported these modules and runs the program in a child of its own each time, as `run_alone` does."""
    paths = json.dumps(list_import_paths())
    command = [sys.executable, "-I", "-c", WARM, program, paths, *modules]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(path: str, options: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
            assert path == program
            process.stdin.write(f"{options}\n")
            process.stdin.flush()
            lines = []
            while not (line := process.stdout.readline()).startswith("exit "):
                assert line, "the process has ended"
                lines.append(line)
            return subprocess.CompletedProcess(command, int(line.split()[1]), "".join(lines).encode())

        yield run
        process.kill()  # it may still be importing


@pytest.fixture(scope="session")
def warm_unpickler() -> Iterator[Run]:
    with warm(pickled.pickle_sandbox.__file__, "safetensors.torch", "torch") as run:
        yield run


@pytest.fixture
def fast(warm_unpickler, monkeypatch) -> None:
    """Spares the second that each new process takes to import torch."""
    monkeypatch.setattr(pickled, "run_alone", warm_unpickler)


@pytest.fixture(scope="session")
def warm_trial() -> Iterator[Run]:
    with warm(onnx.sandbox.__file__, "onnxruntime", "onnx") as run:
        yield run


@pytest.fixture
def fast_trial(warm_trial, monkeypatch) -> None:
    """Spares the second that each new process takes to import onnxruntime and onnx."""
    monkeypatch.setattr(onnx, "run_alone", warm_trial)
