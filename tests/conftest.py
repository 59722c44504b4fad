"""What every test may ask for: the folder of real data, one thread, and seeded tensors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# one thread for every test and every process that one starts: on shared cores tiny networks spend their time waiting
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
ROOT = Path(__file__).parent.parent


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
