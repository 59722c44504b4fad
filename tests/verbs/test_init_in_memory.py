"""A training that starts from a model in memory: it is kept with the run, so that the run can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.each_row import each_row
from vitrail.errors import ConfigError

SMALL: dict[str, Any] = {"image_size": 8, "patch_size": 2, "depth": 1, "width": 24, "heads": 2, "mlp_width": 40}
HOW: dict[str, Any] = {"batch": 16, "quiet": True, "set": ["compute.tune=false"]}


def create() -> Any:
    model = vitrail.create_model("vit-ti16", classes=["a", "b"], in_channels=1, **SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return model


def tensors(run: Any) -> dict[str, torch.Tensor]:
    return run.load().backbone.state_dict()


@pytest.mark.slow
@each_row("part", ["model", "backbone"])
def test_a_model_or_its_backbone_gives_the_run_of_its_file(tmp_path, monkeypatch, part):
    monkeypatch.chdir(tmp_path)
    model = create()
    path = vitrail.save(model, Path(part, "start.safetensors"))
    given = model if part == "model" else model.backbone
    ours = vitrail.train("digits", init=given, steps=2, out=f"{part}/memory", **HOW)
    theirs = vitrail.train("digits", init=path, steps=2, out=f"{part}/file", **HOW)
    if part == "model":
        assert all(torch.equal(tensor, tensors(theirs)[name]) for name, tensor in tensors(ours).items())
    assert (ours.folder / "init.safetensors").exists()
    assert "recipe: finetune" in (ours.folder / "config.yaml").read_text()


@pytest.mark.slow
def test_the_same_call_with_more_steps_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = vitrail.train("digits", init=create(), steps=4, out="whole", **HOW)
    first = vitrail.train("digits", init=create(), steps=4, out="parts", **HOW)
    assert all(torch.equal(tensor, tensors(first)[name]) for name, tensor in tensors(whole).items())
    again = vitrail.train("digits", init=create(), steps=6, out="parts", **HOW)
    assert again.history[-1]["step"] == 6


def test_a_dry_run_leaves_nothing_and_no_folder_need_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "init.safetensors" in vitrail.train("digits", init=create(), steps=2, dry_run=True, **HOW)
    assert not list(tmp_path.iterdir())
    run = vitrail.train("digits", init=create(), steps=1, **HOW)
    assert run.folder.parent == Path("runs")


def test_anything_else_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (torch.nn.Linear(2, 2), 3, create().backbone.blocks):
        with pytest.raises(ConfigError, match="is not a model of vitrail"):
            vitrail.train("digits", init=given, steps=1, **HOW)
    with pytest.raises(ConfigError, match="unknown setting"):
        vitrail.train("digits", init=create(), steps=1, batch=16, set=["optim.rate=1"])
    assert not list(tmp_path.iterdir())
