"""A small model on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.weights.kinds import a_model
from vitrail.weights.native import save_model


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small model, with what is changed of it, and names the folder."""

    def save(**changes: Any) -> Path:
        return save_model(tmp_path / "source", a_model(**changes))

    return save
