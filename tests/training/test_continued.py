"""Further pre-training of weights: adapters and heads first, without labels, and an end where features get worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.slow import slow_except
from tests.training.stopping import stopped_after
from tests.training.test_goals import OF, assert_same_run
from tests.training.test_lora import write_base
from vitrail.config.compose import compose_run
from vitrail.errors import ConfigError
from vitrail.models.adapters import ADAPTER
from vitrail.runs.folder import RunFolder
from vitrail.training import goals, validation
from vitrail.training.prepare import prepare
from vitrail.training.step import take_step

STEPS = 4
QUIET = ("compute.tune=false", "compute.threads=1", "save.every=1000000", "save.log_every=1", "save.watched=60")
ADAPTERS = (*QUIET, "model.adapters.rank=2", "schedule.warmup=0")
OBJECTIVES = slow_except(sorted(OF.keys() - {"tokenizer", "beit"}), {"mae"})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base.safetensors")


def learn(objective: str, base: Path, out: Path, *settings: str, **how: Any) -> vitrail.Result:
    given = {"init": base, "batch": 16, "lr": 3e-3, "steps": STEPS, "quiet": True, **how}
    changes = f"objective.changes={OF[objective]}"
    return vitrail.pretrain("digits", objective=objective, out=out, set=[*settings, changes], **given)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_adapters_and_what_the_objective_has_of_its_own_are_trained(objective, base, tmp_path):
    flags = {"data": {"source": "digits", "batch": 16}, "model": {"init": str(base)}, "schedule": {"steps": STEPS}}
    settings = (*ADAPTERS, f"objective.changes={OF[objective]}", "model.head_first=0.5", "optim.weight_decay=0")
    run, _ = compose_run(flags={**flags, "objective": {"name": objective}}, settings=settings)
    folder = RunFolder(tmp_path / "run")
    folder.open()
    training = prepare(run, folder, log=lambda line: None).training
    before = {name: tensor.clone() for name, tensor in training.trained.state_dict().items()}
    for step in range(STEPS):
        training.freeze_backbone()
        take_step(training, next(training.batches(step, step + 1)))
        after = training.trained.state_dict()
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        encoder = {name for name in moved if name.startswith("encoder.")}
        assert all(ADAPTER in name for name in encoder)
        assert bool(encoder) == (step >= STEPS // 2)
        assert moved - encoder
    folder.close()


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_stopped_run_with_adapters_resumes_bit_for_bit_and_its_model_is_merged(objective, base, tmp_path):
    whole = learn(objective, base, tmp_path / "whole", *ADAPTERS)
    with stopped_after(2):
        learn(objective, base, tmp_path / "parts", *ADAPTERS)
    (checkpoint,) = (tmp_path / "parts" / "checkpoints").iterdir()
    names = load_file(checkpoint / "objective.safetensors").keys()
    assert all(ADAPTER in name for name in names if name.startswith("encoder."))
    parts = learn(objective, base, tmp_path / "parts", *ADAPTERS)
    assert_same_run(whole, parts)
    start, found = vitrail.load(base).backbone.state_dict(), whole.load().backbone.state_dict()
    assert {name for name in start if not name.startswith("head.")} == found.keys()
    changed = {name for name in found if not torch.equal(found[name], start[name])}
    assert changed and all(name.endswith(".weight") for name in changed)


@pytest.mark.slow
def test_the_recipe_continues_weights_and_reports_how_far_patches_drifted(base, tmp_path):
    small = "objective.changes={prototypes: 20, hidden: 24, bottleneck: 8, local_views: 1, anchor: 2}"
    how = {"recipe": "continue", "init": base, "batch": 16, "steps": STEPS, "lr": 3e-2, "quiet": True}
    run = vitrail.pretrain("digits", out=tmp_path / "run", set=[*QUIET, "model.adapters.rank=2", small], **how)
    drifts = [row["drift"] for row in run.history if "drift" in row]
    assert len(drifts) == STEPS and drifts[0] < 1e-9 < drifts[-1]


def fail(*given: Any, **how: Any) -> None:
    raise KeyError("no disk")


@pytest.mark.slow
def test_a_run_ends_where_its_features_are_worse_than_at_the_start(base, tmp_path, monkeypatch):
    rates = iter([0.8, 0.79, 0.77, 0.9])
    monkeypatch.setattr(validation, "rate_knn", lambda known, queries, classes: next(rates))
    ending = ("save.stop_below=0.02", "save.evaluations=4")
    with monkeypatch.context() as patched:
        patched.setattr(goals, "save_model", fail)
        with pytest.raises(KeyError, match="no disk"):
            learn("dino", base, tmp_path / "run", *QUIET, *ending)
    run = learn("dino", base, tmp_path / "run", *QUIET, *ending)  # does not go on
    assert [row["knn"] for row in run.history if "knn" in row] == [0.8, 0.79, 0.77]
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "knn fell from 0.8000 to 0.7700, by more than save.stop_below=0.02: try a lower --lr" in said
    assert run.load().backbone.state_dict()  # it is saved and reported as at its last step


def test_a_tokenizer_has_neither_adapters_nor_a_head_that_is_first(tmp_path):
    for setting, name in (("model.adapters.rank=2", "adapters"), ("model.head_first=0.5", "head_first")):
        with pytest.raises(ConfigError, match=rf"model\.{name} is set, and a tokenizer is trained from scratch"):
            vitrail.pretrain("digits", objective="tokenizer", set=[setting], out=tmp_path / "run")
