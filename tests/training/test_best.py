"""The model of the best evaluation, and the end of a training that no longer gets better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.slow import slow_except
from tests.tasks.dense_models import draw_images
from tests.training.stopping import stopped_after
from tests.training.test_goals import assert_same_run
from tests.training.test_lora import write_base
from vitrail.errors import ConfigError, DataError
from vitrail.models.backbone import eval_mode
from vitrail.tasks.classification.metric import ClassMetric
from vitrail.training.state import Training

SET = ("save.log_every=1", "save.evaluations=4", "compute.tune=false", "compute.threads=1")
SMALL = ("model.changes.depth=1",)
RATES = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.55}  # by step


@pytest.fixture
def evaluated(monkeypatch) -> dict[int, torch.Tensor]:
    """Makes evaluations give `RATES`; returns the outputs of the model that was evaluated for some images, by step."""
    outputs: dict[int, torch.Tensor] = {}

    def evaluate(training: Training, stopped: Any) -> dict[str, float]:
        step, model = training.progress.step, training.validator.model
        with eval_mode(model):
            outputs[step] = model(draw_images(model))
        return {"val_top1": RATES[step], "val_loss": 1.0}

    monkeypatch.setattr(Training, "evaluate", evaluate)
    return outputs


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base.safetensors")


def train(out: Path, *settings: str, **how: Any) -> vitrail.Result:
    given = {"batch": 16, "steps": 8, "quiet": True, "set": [*SET, *(settings or SMALL)], **how}
    return vitrail.train("digits", out=out, **given)


def assert_answers(result: vitrail.Result, expected: torch.Tensor) -> None:
    model = result.load()
    with torch.no_grad():
        torch.testing.assert_close(model(draw_images(model)), expected)


WAYS = {
    "plain": SMALL,
    "averaged": (*SMALL, "optim.ema=0.5"),
    "adapters": ("model.adapters.rank=2", "model.head_first=0.5"),
}


@pytest.mark.parametrize("way", slow_except(WAYS, {"averaged"}))
def test_the_model_of_the_best_evaluation_is_saved(way, evaluated, base, tmp_path):
    settings, how = WAYS[way], {"init": base} if way == "adapters" else {}
    last, best = train(tmp_path / "last", *settings, **how), train(tmp_path / "best", *settings, keep_best=True, **how)
    assert not torch.allclose(evaluated[4], evaluated[8])
    assert_answers(last, evaluated[8])
    assert_answers(best, evaluated[4])
    assert (best.folder / "metrics.jsonl").read_bytes() == (last.folder / "metrics.jsonl").read_bytes()
    said = "the model is that of the best of 4 evaluations on val, of step 4 of 8: its figures on val are too good by this choice"
    written = [best.folder / "log.txt", best.report, best.folder / "card.md"]
    assert all(said in path.read_text().replace("The model", "the model") for path in written)
    assert f"- T{said[1:]}" in written[2].read_text()
    assert best.load().provenance["steps"] == 4 and "steps: 4" in (best.folder / "card.md").read_text()
    assert "best of" not in last.report.read_text()


def test_a_run_ends_when_it_has_no_more_patience(evaluated, tmp_path):
    run = train(tmp_path / "run", patience=1)
    assert max(evaluated) == 6
    assert_answers(run, evaluated[6])
    said = (run.folder / "log.txt").read_text()
    assert "ended by save.patience=1 after 3 evaluations on val, of which that of step 4 was the best" in said
    assert "too good" not in said
    spent = [
        json.loads((each.folder / "status.json").read_text())["operations"] for each in (run, train(tmp_path / "all"))
    ]
    assert spent[0] == pytest.approx(spent[1] * 6 / 8)
    assert_answers(train(tmp_path / "both", patience=1, keep_best=True), evaluated[4])
    train(tmp_path / "run", patience=1, steps=16)  # a longer run has patience again
    assert max(evaluated) == 8
    patient = train(tmp_path / "patient", patience=3)
    assert_answers(patient, evaluated[8])
    assert "ended by" not in (patient.folder / "card.md").read_text()


@pytest.mark.parametrize("steps", slow_except([3, 5, 7], {5}))
def test_a_stopped_run_goes_on_with_its_best_weights(steps, evaluated, tmp_path):
    whole = train(tmp_path / "whole", keep_best=True, patience=2)
    with stopped_after(steps):
        train(tmp_path / "parts", keep_best=True, patience=2)
    assert_same_run(whole, train(tmp_path / "parts", keep_best=True, patience=2))


def test_evaluations_of_a_run_that_did_not_keep_the_best_are_not_compared(evaluated, tmp_path):
    with stopped_after(5):
        train(tmp_path / "run", keep_best=True)
    with stopped_after(7):
        train(tmp_path / "run")
    run = train(tmp_path / "run", keep_best=True)
    assert_answers(run, evaluated[8])
    assert "best of 1 evaluation on val, of step 8 of 8" in run.report.read_text()


def test_weights_that_were_not_kept_are_not_claimed(evaluated, tmp_path):
    with stopped_after(5):
        train(tmp_path / "run", patience=5)
    run = train(tmp_path / "run", patience=5, keep_best=True)
    assert_answers(run, evaluated[6])
    assert "best of 2 evaluations on val, of step 6 of 8" in run.report.read_text()


def test_a_figure_that_is_not_a_number_is_not_the_best_and_a_lower_one_can_be(evaluated, tmp_path, monkeypatch):
    monkeypatch.setitem(RATES, 2, float("nan"))
    assert_answers(train(tmp_path / "higher", keep_best=True), evaluated[4])
    monkeypatch.setattr(ClassMetric, "higher_is_better", False)
    monkeypatch.setitem(RATES, 8, 0.65)
    assert_answers(train(tmp_path / "lower", keep_best=True), evaluated[6])
    for step in RATES:
        monkeypatch.setitem(RATES, step, float("nan"))
    none = train(tmp_path / "none", keep_best=True)
    assert_answers(none, evaluated[8])
    assert "No evaluation on val had a figure to choose by" in none.report.read_text()


def test_of_equal_evaluations_the_last_is_kept_and_is_no_gain(evaluated, tmp_path, monkeypatch):
    monkeypatch.setitem(RATES, 6, RATES[4])
    assert_answers(train(tmp_path / "best", keep_best=True), evaluated[6])
    evaluated.clear()
    assert "step 6 was the best" in (train(tmp_path / "ended", patience=1).folder / "log.txt").read_text()
    assert max(evaluated) == 6


def test_without_images_to_choose_by_it_is_refused(tmp_path):
    two = np.zeros((2, 16, 16, 3), np.uint8), np.array([0, 1])  # too few to hold one out
    with pytest.raises(DataError, match="choose by images of val, and the data have none"):
        vitrail.train(two, out=tmp_path / "run", keep_best=True, quiet=True)
    with pytest.raises(ConfigError, match="learning without labels does not have"):
        vitrail.pretrain("digits", objective="mae", out=tmp_path / "other", set=["save.patience=2"])
    with pytest.raises(ConfigError, match=r"save\.patience is 0"):
        train(tmp_path / "run", patience=0)
