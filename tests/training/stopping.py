"""Trainings that are stopped, as by a scheduler that takes a machine away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitrail.errors import Preempted
from vitrail.training import loop


@contextmanager
def stopped_after(steps: int) -> Iterator[None]:
    """Sends SIGTERM to a training within after ``steps`` steps, and fails where the training does not end with `Preempted`."""
    take_step = loop.take_step

    def stopping(training, batch):
        loss = take_step(training, batch)
        if training.progress.step == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "take_step", stopping)
        with pytest.raises(Preempted):
            yield
