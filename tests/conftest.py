"""What every test may ask for: the folder of real data, one thread, and a run that is trained once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# one thread for every test and every process that one starts: on shared cores tiny networks spend their time waiting
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
# verbs take as many threads as there are cores: a worker of pytest-xdist, and what it starts, has one core of its own
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A verb that was given more threads hands none of them on to the next test."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data, from ``VITRAIL_TEST_DATA``; skips without it, fails where CI=true."""
    given = os.environ.get("VITRAIL_TEST_DATA")
    if given and (folder := Path(given)).is_dir():
        return folder.resolve()
    message = f"VITRAIL_TEST_DATA={given!r} is not a folder; set it to the folder of real data"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
