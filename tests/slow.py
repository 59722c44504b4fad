"""Which parameters of a long test the quick tests take, and how often a random test repeats."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """The names as parameters of a test; those that are not in ``quick`` are left to the slow tests."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


def few_or_nightly(few: int, many: int) -> list[Any]:
    """How often a random test repeats: ``few`` times on every change, ``many`` times in the nightly tests."""
    return [few, pytest.param(many, marks=pytest.mark.nightly)]
