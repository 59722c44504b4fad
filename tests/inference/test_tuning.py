"""How outputs are computed on a CPU is measured where there are images enough, once on a machine; the numbers stay the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.models.tiny import TINY
from tests.slow import slow_except
from vitrail import torch_private
from vitrail.inference import options as inference_options
from vitrail.inference.options import InferenceOptions, list_plans, tune_options
from vitrail.runtime import tuning
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.tuning import Choice, ExecutionPlan
from vitrail.serving.loaded_model import load_model
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.torch_private import has_fused
from vitrail.weights.native import save_model

FOUR = [
    ExecutionPlan("fp32", 4),
    ExecutionPlan("fp32", 2),
    ExecutionPlan("fp32", 4, channels_last=True),
    ExecutionPlan("fp32", 2, channels_last=True),
]
EIGHT = [replace(plan, fused=fused) for plan in FOUR for fused in (True, False)]
ENOUGH = 40


class Lines(list[str]):
    """What was said."""

    @property
    def tuned(self) -> list[str]:
        return [line for line in self if line.startswith("tuned")]


@pytest.fixture
def measured(monkeypatch, tmp_path) -> list[dict[str, Any]]:
    """What was asked each time; `ENOUGH` images are worth it, and the last plan is said to be the fastest."""
    asked: list[dict[str, Any]] = []

    def choose(
        network: Any, image: Sequence[int], plans: Sequence[ExecutionPlan], *, images: float, **how: Any
    ) -> Choice | None:
        asked.append({"image": tuple(image), "plans": list(plans), "images": images, **how})
        seconds = {plan: 0.004 - 0.001 * number for number, plan in enumerate(plans)}
        return Choice(plans[-1], seconds, 0.5, how["gradient"]) if images >= ENOUGH else None

    monkeypatch.setattr(tuning, "choose_plan", choose)
    monkeypatch.setattr(inference_options, "has_fused", lambda dtype: False)  # not measured, but where a test says so
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(4)  # given back after each test
    return asked


def make_model(name: str = "bit") -> Classifier:
    torch.manual_seed(0)
    return create_classifier(TINY[name], classes=tuple("0123456")).eval()


def save_images(path: Path, count: int) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    np.savez(path, images=pixels, labels=np.arange(count) % 7)
    return str(path)


def note_calls(model: torch.nn.Module) -> set[tuple[int, bool]]:
    """The threads with which ``model`` is called, and whether images are channels last."""
    seen: set[tuple[int, bool]] = set()

    def note(module: torch.nn.Module, given: tuple[torch.Tensor]) -> None:
        seen.add((torch.get_num_threads(), given[0].is_contiguous(memory_format=torch.channels_last)))

    model.register_forward_pre_hook(note)
    return seen


def test_a_short_predict_does_not_measure_and_takes_what_a_long_one_has_measured(measured, tmp_path):
    few, many = (save_images(tmp_path / f"{count}.npz", count) for count in (5, ENOUGH))
    model, lines = make_model(), Lines()
    seen = note_calls(model)

    def predict(images: str) -> list[dict[str, Any]]:
        lines.clear()
        return vitrail.predict(model, [images], log=lines.append, quiet=True).to_rows()

    before = predict(few)
    assert not lines.tuned and seen == {(4, False)}
    assert [(each["images"], each["plans"]) for each in measured] == [(5, FOUR)]
    seen.clear()
    predict(many)
    assert lines.tuned == [
        "tuned    fp32 on 2 threads channels last; ms of an image, forward: fp32 on 2 threads channels last 1, "
        "fp32 on 4 threads channels last 2, fp32 on 2 threads 3, fp32 on 4 threads 4 (measured in 0.5 s)"
    ]
    assert seen == {(2, True)} and torch.get_num_threads() == 4
    after = predict(few)
    assert lines.tuned[0].endswith("(measured before)") and len(measured) == 2
    assert [row["label"] for row in after] == [row["label"] for row in before]
    assert [row["score"] for row in after] == pytest.approx([row["score"] for row in before], rel=1e-4)
    (words,) = vitrail.doctor(tune="show").values()
    assert "forward: fp32 on 2 threads" in words


@pytest.mark.parametrize("name", slow_except(["vit", "bit", "pvt v2"], {"vit"}))
def test_answers_are_the_same_numbers_up_to_rounding_whatever_the_way(name):
    model = make_model(name)
    images = torch.randn(3, model.config.in_channels, *model.preprocessing.size)
    with torch.inference_mode():
        plain = InferenceOptions().compute(model, images)
        for plan in EIGHT:
            computed = InferenceOptions(plan=plan).compute(model, images)
            assert computed.dtype == torch.float32
            torch.testing.assert_close(computed, plain, rtol=1e-4, atol=1e-5)


def test_every_verb_for_many_images_says_how_many_there_are(measured, tmp_path):
    data, model = save_images(tmp_path / "28.npz", 28), make_model()
    how: dict[str, Any] = {"log": lambda line: None, "quiet": True, "batch": 8}
    list(vitrail.embed(model, [data], **how))
    vitrail.evaluate(model, data, split="train", **how)
    vitrail.predict(model, [data], parts=tmp_path / "parts", part_size=10, format="jsonl", **how)
    vitrail.probe(model, data, "knn", k=3, cache=False, **how)
    *others, train, evaluated = (each["images"] for each in measured)
    assert others == [28, 28, 28] and train + evaluated == 28
    assert all(each["batch"] == 8 and not each["gradient"] and each["image"] == (3, 32, 32) for each in measured)
    measured.clear()
    list(vitrail.predict(model, [data], tune=False, **how))
    assert not measured


def test_the_server_measures_at_its_start_and_takes_it_from_the_cache_the_next_time(measured, tmp_path):
    path, lines = save_model(tmp_path / "model", make_model()), Lines()
    how: dict[str, Any] = {"name": None, "log": lines.append}
    served = load_model(str(path), options=InferenceOptions(tune=True, batch=16), **how)
    assert served.options.plan == FOUR[-1] and lines.tuned[0].endswith("(measured in 0.5 s)")
    again = load_model(str(path), options=InferenceOptions(tune=True, batch=16), **how)
    assert again.options.plan == FOUR[-1] and lines.tuned[1].endswith("(measured before)")
    assert [(each["images"], each["batch"]) for each in measured] == [(math.inf, 16)]
    fixed = load_model(str(path), options=InferenceOptions(), **how)
    assert fixed.options.plan is None and len(lines.tuned) == 2
    picture = np.random.default_rng(0).random((3, 32, 32), np.float32)
    (tuned,), (plain,) = (each.answer_normalised([picture]) for each in (again, fixed))
    torch.testing.assert_close(tuned.values, plain.values, rtol=1e-4, atol=1e-5)
    seen = note_calls(again.model)
    again.answer_normalised([picture])
    assert seen == {(2, True)} and torch.get_num_threads() == 4


def test_ways_differ_in_threads_and_where_maps_are_convolved_in_layout(measured):
    assert list_plans("fp32", 4, maps=True) == FOUR
    assert list_plans("bf16", 8, maps=False) == [ExecutionPlan("bf16", 8), ExecutionPlan("bf16", 4)]
    assert list_plans("fp32", 3, maps=False) == [ExecutionPlan("fp32", 3)]
    assert list_plans("fp32", 8, maps=False, ranks=Ranks(world=2)) == [ExecutionPlan("fp32", 8)]


@pytest.mark.parametrize("faster", [True, False])
def test_ways_differ_in_layers_where_onednn_has_them_and_begin_with_the_default(monkeypatch, faster):
    monkeypatch.setattr(inference_options, "has_fused", lambda dtype: True)
    monkeypatch.setattr(inference_options, "takes_fused", lambda dtype: faster)
    plans = list_plans("fp32", 1, maps=False)
    assert plans == [ExecutionPlan("fp32", 1, fused=faster), ExecutionPlan("fp32", 1, fused=not faster)]
    words = [plan.describe(plans) for plan in plans]
    assert sorted(words) == ["fp32 oneDNN layers", "fp32 plain layers"]


@pytest.mark.skipif(not has_fused(torch.float32), reason="oneDNN has no fp32 layers here")
def test_a_way_decides_which_layers_compute(monkeypatch):
    model, calls = make_model("vit"), []
    compute = torch_private.linear
    monkeypatch.setattr(torch_private, "linear", lambda *given: calls.append(1) or compute(*given))
    images = torch.randn(1, model.config.in_channels, *model.preprocessing.size)
    for fused in (True, False):
        calls.clear()
        with torch.inference_mode():
            InferenceOptions(plan=ExecutionPlan("fp32", 1, fused=fused)).compute(model, images)
        assert bool(calls) is fused


def test_a_single_execution_plan_is_not_benchmarked(measured):
    torch.set_num_threads(1)
    options = InferenceOptions(tune=True)
    assert tune_options(options, make_model("vit"), print) is options
    assert not measured
