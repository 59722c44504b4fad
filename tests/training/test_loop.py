"""The loop and what surrounds it: whole when it begins, nothing left running when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from vitrail.config.compose import compose_run
from vitrail.config.schema import Unlabelled
from vitrail.data.loader import Batch
from vitrail.errors import DivergedError, Preempted
from vitrail.objectives import OBJECTIVES
from vitrail.runs.checkpoint import list_checkpoints
from vitrail.runs.folder import RunFolder
from vitrail.runtime.process import note_stops
from vitrail.runtime.progress import ProgressBar
from vitrail.training import cost, loop
from vitrail.training.goals import ENCODER, GOALS, SUPERVISED, TOKENIZER
from vitrail.training.prepare import prepare
from vitrail.training.state import Training

SETTINGS = (
    "model.changes={width: 32, depth: 2, heads: 2, mlp_width: 64, patch_size: [2, 2]}",
    "model.name=vit-ti16",
    "data.batch=32",
    "compute.threads=1",
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    place = RunFolder(tmp_path / "run")
    place.open()
    yield place
    place.close()


def training(folder: RunFolder, *settings: str, **schedule: float) -> Training:
    run, _ = compose_run(flags={"data": {"source": "digits"}, "schedule": schedule}, settings=(*SETTINGS, *settings))
    return prepare(run, folder, log=lambda line: None).training


def watch_batches(training: Training) -> list[str]:
    """Notes that the batches of ``training`` were opened and closed."""
    events, read = [], training.batches

    def batches(start: int, stop: int) -> Iterator[Batch]:
        events.append("opened")
        try:
            yield from read(start, stop)
        finally:
            events.append("closed")

    batches.data = read.data  # type: ignore[attr-defined]
    training.batches = batches  # type: ignore[assignment]
    return events


def fit(training: Training) -> None:
    training.folder.start_metrics(0)
    with note_stops() as stop, ProgressBar("training", training.steps, quiet=True) as show:
        loop.fit(training, stop, show)


def test_every_objective_has_a_goal():
    assert [*get_args(Unlabelled)] == [*OBJECTIVES]
    goals = [GOALS.get(name, ENCODER) for name in ("supervised", *OBJECTIVES)]
    assert goals == [SUPERVISED, *[ENCODER] * (len(OBJECTIVES) - 1), TOKENIZER]


def test_the_batches_are_closed_when_the_run_ends(folder):
    events = watch_batches(found := training(folder, steps=2))
    fit(found)
    assert events == ["opened", "closed"]


def test_the_batches_are_closed_when_the_loss_diverges(folder):
    events = watch_batches(found := training(folder, steps=2))
    with torch.no_grad():
        next(iter(found.objective.encoder.layers()[-1].values())).fill_(float("nan"))
    with pytest.raises(DivergedError) as error:  # its traceback holds the frames of the loop
        fit(found)
    assert error.tb is not None and events == ["opened", "closed"]


def test_the_batches_are_closed_when_the_run_is_stopped(folder, monkeypatch):
    events, step = watch_batches(found := training(folder, steps=4)), loop.take_step

    def stopping(training: Training, batch: Batch) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return step(training, batch)

    monkeypatch.setattr(loop, "take_step", stopping)
    with pytest.raises(Preempted) as error:
        fit(found)
    assert error.tb is not None and events == ["opened", "closed"]
    assert [path.name for path in list_checkpoints(folder.checkpoints)] == ["step-00000001"]


@pytest.mark.parametrize("setting", ["optim.name=adamw", "optim.name=muon", "compute.precision=bf16-weights"])
def test_the_head_learns_first_and_then_everything(folder, monkeypatch, setting):
    step, moved = loop.take_step, []

    def compare(training: Training, batch: Batch) -> float:
        before = {name: tensor.clone() for name, tensor in training.objective.encoder.state_dict().items()}
        loss = step(training, batch)
        after = training.objective.encoder.state_dict()
        moved.append({name for name in before if not torch.equal(before[name], after[name])})
        return loss

    monkeypatch.setattr(loop, "take_step", compare)
    found = training(folder, "model.head_first=0.5", setting, steps=4)
    for parameter in found.objective.encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.05)  # no gradient reaches what lies before a head of zeros
    fit(found)
    heads, all_names = {"head.weight", "head.bias"}, set(found.objective.encoder.state_dict())
    assert moved[:2] == [heads] * 2
    assert moved[3] == all_names


def test_a_length_in_time_is_measured_before_the_training_is_built(folder, monkeypatch):
    monkeypatch.setattr(cost, "measure_cost", lambda training: cost.Cost(step=0.5, evaluation=1.0))
    found = training(folder, "save.evaluations=4", time=100)
    assert found.steps == found.run.schedule.steps == int((100 * 0.97 - 4) / 0.5)
    assert found.evaluate_every == -(-found.steps // 4)
    assert found.run.schedule.time == 100


@pytest.mark.slow
def test_a_length_in_time_of_few_steps_is_warned_of(folder, monkeypatch):
    found = training(folder, time=30)
    warnings = {}
    for seconds in (10.0, 0.5):
        monkeypatch.setattr(cost, "measure_cost", lambda training: cost.Cost(step=seconds, evaluation=1.0))  # noqa: B023
        lines: list[str] = []
        cost.buy_steps(found, lines.append)
        warnings[seconds] = [line for line in lines if line.startswith("warning")]
    (warning,) = warnings[10.0]
    assert warning == "warning  2 steps will hardly train anything: give at least 3 min 40 s, or a smaller --batch"
    assert not warnings[0.5]


@pytest.mark.slow
def test_measuring_a_step_leaves_the_training_as_it_was(folder, tmp_path):
    bought = training(folder, "optim.ema=0.9", time=0.01)
    other = RunFolder(tmp_path / "other")
    other.open()
    counted = training(other, "optim.ema=0.9", steps=1)
    other.close()
    assert bought.progress == counted.progress
    tensors = counted.objective.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in bought.objective.state_dict().items())
    assert bought.average is not None and counted.average is not None
    assert all(torch.equal(tensor, counted.average.tensors[name]) for name, tensor in bought.average.tensors.items())
    assert not bought.optimiser.tensors()
