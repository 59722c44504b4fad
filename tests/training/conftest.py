"""One thread for every verb."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Verbs take as many threads as there are cores. Where these are busy a tiny model then waits most of the time."""
    for verb in ("evaluate", "export", "inspect", "probe", "transfer"):
        monkeypatch.setattr(f"vitrail.workflows.{verb}.cores", lambda: 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
