"""The modules of docs/_ext, which are no package."""

from __future__ import annotations

import sys

import pytest

from tests.test_pages import ROOT


@pytest.fixture(autouse=True, scope="session")
def extensions() -> None:
    sys.path.insert(0, str(ROOT / "docs/_ext"))
