"""A training that ends as its caller says: with the final weights in hand, and without a report."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from vitrail.config.compose import compose_run
from vitrail.config.schema import DataSettings
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError
from vitrail.evaluation.evaluate import EvaluationResult, evaluate_model
from vitrail.inference.options import InferenceOptions
from vitrail.runs.checkpoint import load_newest
from vitrail.runs.folder import RunFolder
from vitrail.training.data import limit_training
from vitrail.training.train import train
from vitrail.weights import load

SETTINGS = (
    "model.changes={width: 16, depth: 1, heads: 1, mlp_width: 32, patch_size: [4, 4]}",
    *("compute.threads=1", "schedule.steps=6", "data.batch=16", "optim.ema=0.9", "save.evaluations=2"),
)
RUN, _ = compose_run(flags={"data": {"source": "digits"}}, settings=SETTINGS)
run_quietly = partial(train, quiet=True)
NOT_WITH_END = ("model", "report.html", "card.md", "plots", "mistakes", "stamps.npz", "predictions.csv")


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_the_caller_gets_the_weights_that_the_report_would_be_of_and_nothing_is_written(tmp_path):
    whole = run_quietly(RUN, out=tmp_path / "whole")
    held = {}

    def end(prepared):
        held.update({name: value.clone() for name, value in prepared.built.model.backbone.state_dict().items()})
        parts = {"val": prepared.data.splits.val, "train": prepared.data.train.subset(np.arange(40))}
        evaluated = prepared.evaluate(parts)
        assert all(isinstance(part, EvaluationResult) for part in evaluated.values())
        assert len(evaluated["train"].keys) == 40
        return {"top1": evaluated["val"].figures["top1"], "gap": 0.5}

    result = run_quietly(RUN, out=tmp_path / "run", end=end)
    assert result.figures == {"top1": whole.figures["top1"], "gap": 0.5}
    model = load(whole.folder)
    assert all(torch.equal(value, held[name]) for name, value in model.backbone.state_dict().items())
    trained = load_newest(tmp_path / "run" / "checkpoints")
    assert any(
        not torch.equal(trained.tensors["average"][key], value) for key, value in trained.tensors["objective"].items()
    )
    assert names(tmp_path / "whole") - names(tmp_path / "run") == names(tmp_path / "whole") & set(NOT_WITH_END)
    assert RunFolder(result.folder).status()["state"] == "finished"
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


def test_parts_are_evaluated_as_each_alone(tmp_path):
    def end(prepared):
        source = prepared.data.train.subset(np.arange(50, 90))
        both = prepared.evaluate({"val": prepared.data.splits.val, "few": source})
        alone = evaluate_model(prepared.built.model, source, InferenceOptions(), split="few")
        assert both["few"].figures == alone.figures
        assert both["few"].metric.samples().tolist() == alone.metric.samples().tolist()
        assert both["val"].figures["images"] == len(prepared.data.splits.val)
        with pytest.raises(DataError, match="the split 'bare' has no labels"):
            prepared.evaluate({"bare": replace(source, targets=np.zeros(0, np.int64))})
        return {}

    assert run_quietly(RUN, out=tmp_path / "run", end=end).figures == {}


def test_an_end_that_fails_is_called_again_and_one_that_is_done_is_not(tmp_path):
    calls = []

    def end(prepared):
        calls.append(prepared.training.progress.step)
        if len(calls) == 1:
            raise RuntimeError("the disk of the caller")
        return {"calls": len(calls)}

    with pytest.raises(RuntimeError, match="disk of the caller"):
        run_quietly(RUN, out=tmp_path / "run", end=end)
    assert RunFolder(tmp_path / "run").status()["state"] == "failed"
    assert run_quietly(RUN, out=tmp_path / "run", end=end).figures == {"calls": 2}
    assert run_quietly(RUN, out=tmp_path / "run", end=end).figures == {"calls": 2}
    assert calls == [6, 6]


def test_evaluations_evaluate_training_images_too_where_asked(tmp_path):
    run = replace(RUN, save=replace(RUN.save, train_images=100))
    kept = {}

    def end(prepared):
        # the part is the one that a run with so many images would train on
        few = limit_training(open_data("digits"), DataSettings(limit=100), run.seed).train
        kept.update(prepared.evaluate({"train": few})["train"].figures)
        return {}

    result = run_quietly(run, out=tmp_path / "run", end=end)
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    last = records[-1]
    assert last["step"] == 6
    assert last["train_top1"] == pytest.approx(kept["top1"])
    assert last["train_nll"] == pytest.approx(kept["nll"], rel=1e-5)
    evaluated = [line for line in records if "val_top1" in line]
    assert len(evaluated) == 2 and all(part in line for line in evaluated for part in ("train_top1", "train_nll"))
    plain = run_quietly(RUN, out=tmp_path / "plain", end=lambda prepared: {})
    before = [json.loads(line) for line in (plain.folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("step", "loss", "val_top1", "val_nll")
    assert [[line.get(key) for key in keys] for line in records] == [[line.get(key) for key in keys] for line in before]
