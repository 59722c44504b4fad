"""One thread for every verb, and a small model on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weights.kinds import a_model
from vitrail.weights.native import save_model


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Verbs take as many threads as there are cores. Where these are busy a tiny model then waits most of the time."""
    for verb in ("evaluate", "export", "inspect", "probe", "transfer"):
        monkeypatch.setattr(f"vitrail.workflows.{verb}.cores", lambda: 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small model, with what is changed of it, and names the folder."""

    def save(**changes: Any) -> Path:
        return save_model(tmp_path / "source", a_model(**changes))

    return save
