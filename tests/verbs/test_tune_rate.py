"""`vitrail train --tune-lr`: rates are tried on validation images first, and the run keeps the choice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import vitrail
from vitrail.config.compose import compose_run
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Splits
from vitrail.errors import DataError, DivergedError, Interrupted
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import SINGLE
from vitrail.runtime.progress import log_nothing
from vitrail.training.train import Result
from vitrail.verbs.train import tune_rate as module
from vitrail.verbs.train.tune_rate import loss_of, tune_rate

SMALL = (
    "model.changes={width: 16, depth: 1, heads: 1, mlp_width: 32, patch_size: [4, 4]}",
    *("compute.threads=1", "save.evaluations=2", "optim.name=adamw"),
)
RUN, _ = compose_run(flags={"data": {"source": "digits"}}, settings=(*SMALL, "schedule.steps=9", "optim.lr=2e-3"))


def tune(tmp_path: Path, monkeypatch, loss, run=RUN):
    """`tune_rate` with trainings whose validation loss is a function of the rate; and the runs that it started."""
    started, said = [], []

    def train(trial, *, out, end, **how):
        started.append(trial)
        out.mkdir(parents=True)
        value = loss(trial.optim.lr)
        if math.isnan(value):
            raise DivergedError("the loss is nan")
        return Result(out, out / "report.html", {"loss": value})

    monkeypatch.setattr(module, "train", train)
    tuned = tune_rate(run, tmp_path / "run", data=None, transform=None, log=said.append, ranks=SINGLE)
    return tuned, started, said


def around(vertex):
    return lambda rate: 1.0 + math.log(rate / vertex) ** 2


def test_three_trainings_of_half_the_length_lie_around_the_rate(tmp_path, monkeypatch):
    tuned, started, said = tune(tmp_path, monkeypatch, around(2.5e-3))
    assert [trial.optim.lr for trial in started] == [1e-3, 2e-3, 4e-3]
    assert {trial.schedule.steps for trial in started} == {4}
    assert all(replace(trial, optim=RUN.optim, schedule=RUN.schedule, save=RUN.save) == RUN for trial in started)
    assert tuned.optim.lr == 2.5e-3
    assert tuned.optim.rates == pytest.approx({f"{rate:g}": around(2.5e-3)(rate) for rate in (1e-3, 2e-3, 4e-3)})
    assert replace(tuned, optim=RUN.optim) == RUN
    assert said[-1] == "rate     0.0025 is taken"
    assert not (tmp_path / "run" / "tuning").exists()


@pytest.mark.parametrize(
    ("schedule", "shorter"), [({"epochs": 3.0}, {"epochs": 1.5}), ({"time": 60.0}, {"time": 30.0})]
)
def test_every_kind_of_length_is_halved(tmp_path, monkeypatch, schedule, shorter):
    run = replace(RUN, schedule=replace(RUN.schedule, **{"steps": None, **schedule}))
    _, started, _ = tune(tmp_path, monkeypatch, around(2e-3), run)
    assert started[0].schedule == replace(RUN.schedule, **{"steps": None, **shorter})


def test_an_optimum_at_the_edge_is_followed_twice_and_named(tmp_path, monkeypatch):
    tuned, started, said = tune(tmp_path, monkeypatch, around(1.0))
    assert [trial.optim.lr for trial in started] == [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
    assert tuned.optim.lr == 16e-3
    assert "at the edge of those tried" in said[-1]


def test_a_training_that_diverges_is_recorded_and_all_of_them_are_an_error(tmp_path, monkeypatch):
    tuned, _, _ = tune(tmp_path, monkeypatch, lambda rate: math.nan if rate > 3e-3 else around(2e-3)(rate))
    assert tuned.optim.lr == 2e-3
    assert tuned.optim.rates["0.004"] is None
    with pytest.raises(DivergedError, match=r"at every learning rate from 0\.004 to 0\.00025"):
        tune(tmp_path / "other", monkeypatch, lambda rate: math.nan)


@pytest.mark.parametrize("how", [{"tune_lr": True}, {"folds": 2}])
def test_a_stop_names_the_folder_of_the_run(how, tmp_path, monkeypatch):
    def train(trial, **how):
        raise Interrupted("stopped by Ctrl-C; a checkpoint is saved", "run the same command with --out elsewhere")

    for name in ("tune_rate", "folds"):
        monkeypatch.setattr(f"vitrail.verbs.train.{name}.train", train)
    with pytest.raises(Interrupted) as stopped:
        vitrail.train("digits", out=tmp_path / "run", steps=4, quiet=True, **how)
    assert stopped.value.remedy == f"run the same command with --out {tmp_path / 'run'}"


def test_validation_images_are_needed(tmp_path):
    whole = open_data("digits", validation=0)
    data = Splits(train=whole.train.subset(np.arange(40)), classes=whole.classes)
    with pytest.raises(DataError, match=r"chosen on validation images, and the data have none"):
        tune_rate(RUN, tmp_path / "run", data=data, transform=None, log=log_nothing, ranks=SINGLE)


def test_a_rate_is_evaluated_on_the_validation_split_alone():
    evaluated = []

    def evaluate(parts):
        evaluated.extend(parts.items())
        return {
            name: SimpleNamespace(figures={"nll": 0.5}, metric=SimpleNamespace(higher_is_better=True)) for name in parts
        }

    splits = SimpleNamespace(val="validation images", test="test images")
    prepared = SimpleNamespace(data=SimpleNamespace(splits=splits), evaluate=evaluate)
    assert module._evaluate_validation(prepared) == {"loss": 0.5}
    assert evaluated == [("val", "validation images")]


def test_the_loss_of_a_task_without_a_likelihood_is_its_first_figure():
    metric = SimpleNamespace(higher_is_better=True)
    assert loss_of(SimpleNamespace(figures={"top1": 0.9, "nll": 0.4}, metric=metric)) == 0.4
    assert loss_of(SimpleNamespace(figures={"ap": 0.3}, metric=metric)) == -0.3
    assert loss_of(SimpleNamespace(figures={"rmse": 0.3}, metric=SimpleNamespace(higher_is_better=False))) == 0.3


@pytest.mark.slow
def test_a_run_trains_with_its_choice_keeps_it_and_does_not_choose_again(tmp_path, monkeypatch):
    out = tmp_path / "run"
    given = {"lr": 2e-3, "tune_lr": True, "out": out, "set": SMALL, "batch": 16, "quiet": True}
    vitrail.train("digits", steps=6, limit=200, **given)
    config = yaml.safe_load((out / "config.yaml").read_text())["optim"]
    assert len(config["rates"]) >= 3
    assert {"0.001", "0.002", "0.004"} <= config["rates"].keys()
    assert f"rate     {config['lr']:g}, chosen by validation losses: " in (out / "log.txt").read_text()
    assert (out / "report.html").exists()
    assert not (out / "tuning").exists()
    monkeypatch.setattr(module, "grid_around", lambda rate: pytest.fail("it tunes again"))
    vitrail.train("digits", steps=8, limit=200, **given)
    assert RunFolder(out).status()["steps"] == 8
    assert yaml.safe_load((out / "config.yaml").read_text())["optim"] == config
    vitrail.train(resume=out, steps=9, quiet=True)
    assert yaml.safe_load((out / "config.yaml").read_text())["optim"]["rates"] == config["rates"]
