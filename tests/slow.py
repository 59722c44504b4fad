"""Which parameters of a long test the quick tests take."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """The names as parameters of a test; those that are not in ``quick`` are left to the slow tests."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]
