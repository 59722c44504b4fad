"""What a user might bring to data loading, importable by name, also in worker processes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture
def user_code(monkeypatch):
    """The module user_code.py beside this file."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return import_module("user_code")
