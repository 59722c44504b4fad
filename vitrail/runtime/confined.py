"""Processes for untrusted files: started with a minimal environment, and limited in memory, time and disk.

`run_alone` starts a program, which limits itself with `limit` and `limit_memory`. It imports nothing else of vitrail, so this
module imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
ROOT = Path(__file__).resolve().parents[2]  # the folder that vitrail is imported from


def list_import_paths() -> list[str]:
    """Returns the folders that a program imports from: those of this process, without its working directory."""
    return list(dict.fromkeys([*filter(os.path.isabs, sys.path), str(ROOT)]))


def run_alone(
    program: str, options: str, *, folder: str | Path, seconds: float, stdout: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[bytes]:
    """Runs a Python file in a separate process, without the environment, the user's packages and the output of this one.

    Its argument is ``options``, its working directory ``folder``. Raises `TimeoutExpired` if it was killed after ``seconds``.
    """
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return subprocess.run(
        [sys.executable, "-I", "-B", program, options],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def describe_end(code: int) -> str:
    """Returns the name of the signal that ended a process, or its exit code."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def limit(kind: str, maximum: int) -> None:
    """Sets a resource limit of this process, if the system supports it."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(getattr(resource, kind))
        maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(getattr(resource, kind), (maximum, maximum))


def limit_memory(spare_bytes: int) -> None:
    """Limits the memory of this process to its current size plus ``spare_bytes``. Linux only."""
    with suppress(OSError, AttributeError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit("RLIMIT_AS", pages * os.sysconf("SC_PAGE_SIZE") + spare_bytes)
