"""Callbacks see every step and evaluation, change nothing by being there, and may end a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from vitrail.training.callbacks import TrainingEvent

SET = ("model.changes.depth=1", "save.log_every=1", "save.evaluations=4", "compute.tune=false")
HOW: dict[str, Any] = {"batch": 16, "quiet": True, "set": SET, "steps": 8}


class Record(vitrail.Callback):
    """Keeps what it is called with; ends the training at a step or an evaluation."""

    def __init__(self, *, last_step: int = 99, last_evaluation: int = 99) -> None:
        self.steps: list[TrainingEvent] = []
        self.evaluations: list[TrainingEvent] = []
        self.results: list[Any] = []
        self.last = last_step, last_evaluation

    def on_step(self, event: TrainingEvent) -> bool:
        self.steps.append(event)
        return event.step >= self.last[0]

    def on_evaluation(self, event: TrainingEvent) -> bool:
        self.evaluations.append(event)
        event.log(f"seen at {event.step}")
        return event.step >= self.last[1]

    def on_end(self, result: Any) -> None:
        self.results.append(result)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_callbacks_see_all_and_change_nothing(tmp_path):
    plain = vitrail.train("digits", out=tmp_path / "plain", **HOW)
    record = Record()
    seen = vitrail.train("digits", out=tmp_path / "seen", callbacks=[record], **HOW)
    assert (seen.folder / "metrics.jsonl").read_bytes() == (plain.folder / "metrics.jsonl").read_bytes()
    ours, theirs = (run.load().state_dict() for run in (seen, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [event.step for event in record.steps] == list(range(1, 9))
    logged = [line for line in lines(seen.folder) if "loss" in line]
    assert [event.figures["lr"] for event in record.steps] == [line["lr"] for line in logged]
    assert [event.figures["loss"] for event in record.steps] == pytest.approx([line["loss"] for line in logged])
    evaluated = [line for line in lines(seen.folder) if "val_top1" in line]
    assert [(event.step, event.figures["val_top1"]) for event in record.evaluations] == [
        (line["step"], line["val_top1"]) for line in evaluated
    ]
    assert record.results == [seen]
    assert "seen at 8" in (seen.folder / "log.txt").read_text()


@pytest.mark.parametrize(("ends", "steps"), [({"last_step": 3}, 3), ({"last_evaluation": 4}, 4)])
def test_a_callback_ends_a_training_which_is_evaluated_and_saved(tmp_path, ends, steps):
    run = vitrail.train("digits", out=tmp_path / "run", callbacks=[Record(**ends)], **HOW)
    history = lines(run.folder)
    assert history[-1]["step"] == steps
    assert max(line["step"] for line in history if "val_top1" in line) == steps
    assert sum("loss" in line for line in history) == steps
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["steps"]) == ("finished", steps)
    assert f"ended by a callback at step {steps} of 8" not in (run.folder / "report.html").read_text()
    assert run.load().classes == tuple("0123456789")
    assert vitrail.train("digits", out=tmp_path / "run", **HOW).figures == run.figures  # it is finished


@pytest.mark.slow
def test_a_resumed_run_calls_them_for_its_own_steps(tmp_path):
    class Fail(vitrail.Callback):
        def on_step(self, event: TrainingEvent) -> None:
            if event.step == 5:
                raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        vitrail.train("digits", out=tmp_path / "run", callbacks=[Fail()], **{**HOW, "set": (*SET, "save.every=0.001")})
    record = Record()
    resumed = vitrail.train(
        "digits", out=tmp_path / "run", callbacks=[record], **{**HOW, "set": (*SET, "save.every=0.001")}
    )
    whole = vitrail.train("digits", out=tmp_path / "whole", **HOW)
    assert 1 < record.steps[0].step <= 5 and record.steps[-1].step == 8
    assert (resumed.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
