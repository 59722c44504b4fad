"""Steps of a GPU are read together: the same lines, nothing waits for the device in between, and a divergence is still named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.test_loop import fit, training
from vitrail.errors import DivergedError
from vitrail.runs.checkpoint import list_checkpoints
from vitrail.runs.folder import RunFolder
from vitrail.training import step
from vitrail.training.state import Training

EVERYTHING = ("augment.mixup=0.8", "optim.clip=1.0", "optim.ema=0.9", "save.log_every=3", "optim.lr=0.002")


@pytest.fixture
def deferred(monkeypatch) -> None:
    monkeypatch.setattr(Training, "defers", property(lambda training: True))


@contextmanager
def opened(path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(path)
    folder.open()
    try:
        yield folder
    finally:
        folder.close()


def test_metrics_and_weights_are_those_of_steps_that_are_read_one_by_one(tmp_path, monkeypatch):
    lines, weights = [], []
    for defers in (False, True):
        monkeypatch.setattr(Training, "defers", property(lambda training, defers=defers: defers))
        with opened(tmp_path / str(defers)) as folder:
            found = training(folder, *EVERYTHING, "save.evaluations=2", steps=8)
            fit(found)
            lines.append((folder.path / "metrics.jsonl").read_bytes())
            weights.append(found.objective.state_dict())
    assert lines[0] == lines[1] and lines[0].count(b"\n") == 5
    assert all(torch.equal(weights[0][name], tensor) for name, tensor in weights[1].items())


WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for a device: a value that is read, or a shape that follows from values."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.paused = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not self.paused and func.overloadpacket.__name__ in WAITING
        return func(*args, **(kwargs or {}))

    def ignore(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` without what it reads: on a CPU, inputs and objectives check their values."""

        def paused(*args: Any) -> Any:
            self.paused = True
            try:
                return function(*args)
            finally:
                self.paused = False

        return paused


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "sgd"])
def test_the_host_reads_nothing_between_the_steps_that_are_logged(tmp_path, monkeypatch, deferred, optimiser):
    with opened(tmp_path / "run") as folder:
        found = training(folder, *EVERYTHING, f"optim.name={optimiser}", "data.micro_batch=16", steps=8)
        reads = Reads()
        monkeypatch.setattr(step, "backward", reads.ignore(step.backward))
        monkeypatch.setattr(found, "inputs", reads.ignore(found.inputs))
        batches = found.batches(0, 4)
        with reads:
            for _ in range(4):
                step.take_step(found, next(batches))
            assert (reads.count, len(found.pending)) == (0, 4)
            step.read_pending(found)
        assert reads.count == 4 * 3  # loss, accuracy and norm
        assert found.progress.count == 4
        batches.close()


def test_a_divergence_is_found_before_anything_is_saved(tmp_path, deferred):
    """With its step and images, although further steps were made."""
    with opened(tmp_path / "run") as folder:
        found = training(folder, *EVERYTHING, "save.evaluations=1", steps=9)
        keys, inputs = [], found.inputs

        def poisoned(batch):
            keys.append(list(batch.keys))
            images, *rest = inputs(batch)
            return (images * torch.nan if len(keys) in (5, 6) else images, *rest)

        found.inputs = poisoned
        with pytest.raises(DivergedError, match="at step 4; nothing was saved since"):
            fit(found)
        facts = json.loads((folder.path / "diverged.json").read_text())
        assert (facts["step"], facts["keys"]) == (4, keys[4])
        assert len(keys) == 6  # found when step 6 was logged
        assert [path.name for path in list_checkpoints(folder.checkpoints)] in ([], ["step-00000000"])
        assert len(folder.metrics()) == 1  # of the first three steps


def test_only_one_process_on_a_gpu_defers(tmp_path):
    with opened(tmp_path / "run") as folder:
        found = training(folder, steps=1)
        assert not found.defers
        found.device = torch.device("cuda")
        assert found.defers
        found.scaler = torch.amp.GradScaler("cpu")
        assert not found.defers
