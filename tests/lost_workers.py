"""How a worker of pytest-xdist ended that did not finish: pytest-xdist names its last test, and not the signal."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import Any

import pytest

from vitrail.runtime.confined import describe_end


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    process = getattr(node.gateway._io, "popen", None)
    if error is None or process is None:
        return
    with suppress(subprocess.TimeoutExpired):
        print(f"\n{node.gateway.id} ended with {describe_end(process.wait(10))}", flush=True)
