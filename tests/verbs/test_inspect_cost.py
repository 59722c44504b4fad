"""`vitrail inspect --cost` of several models: the page, the numbers behind it, and what is not run."""

from __future__ import annotations

import csv
import json

import pytest
import torch

import vitrail
from tests.looked_at import shaken
from tests.models.tiny import TINY
from vitrail.errors import ConfigError
from vitrail.inference.options import InferenceOptions
from vitrail.models import configure, cost_of
from vitrail.reports.inspection.comparison import ComparedCost
from vitrail.verbs.inspect import cost as inspect_cost
from vitrail.verbs.inspect.cost import compare_costs
from vitrail.weights.native import save_model

QUIET = InferenceOptions(device="cpu", quiet=True)


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """8 GiB are free, whatever else runs on the machine."""
    monkeypatch.setattr(inspect_cost, "available_memory", lambda: 2**33)


def silent(line):
    raise AssertionError(line)


def task(name):
    return shaken(TINY[name])


def compare(out, models=None, **changes):
    models = [task("vit"), task("axial resnet")] if models is None else models
    settings = {"sizes": [(32, 32), (40, 32)], "batch": 3, "options": QUIET, "log": silent, **changes}
    return compare_costs(models, out, **settings)


@pytest.mark.slow
def test_every_model_is_measured_at_every_size_that_it_takes(tmp_path):
    report, figures = compare(tmp_path / "out", sizes=[(32, 32), (40, 32), (36, 32)], command="vitrail inspect a b")
    rows = figures["costs"]
    vit, axial = "a ViT (1)", "an AxialResNet (2)"
    found = [(row["model"], row["height"], row["width"]) for row in rows]
    assert found == [(vit, 32, 32), (axial, 32, 32), (vit, 40, 32), (axial, 40, 32), (axial, 36, 32)]
    assert figures["notes"] == [
        f"{vit} was left out at 36x32 pixels: an image of 36x32 pixels does not divide into patches of 8x8."
    ]
    for row in rows:
        config = configure(
            TINY["vit" if row["model"] == vit else "axial resnet"], image_size=(row["height"], row["width"])
        )
        counted = cost_of(config)
        assert (row["parameters"], row["multiply_adds"], row["tokens"]) == (
            counted.parameters,
            counted.multiply_adds,
            counted.tokens,
        )
        assert 0 < row["slowest"] <= row["images_per_second"] <= row["fastest"]
        assert row["batch"] == 3
        assert (row["largest_batch"] > 1, row["largest_batch_is"]) == (True, "predicted")
    assert json.loads((tmp_path / "out" / "numbers.json").read_text()) == figures
    with open(tmp_path / "out" / "cost.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert [{name: str(value) for name, value in row.items()} for row in rows] == read
    page = report.read_text()
    for words in (vit, axial, "36x32", "predicted", "vitrail inspect a b", "Images per second", "Largest batch"):
        assert words in page, words
    assert {file.name for file in report.parent.glob("*.svg")} == {"images-per-second.svg", "largest-batch.svg"}


@pytest.mark.slow
def test_networks_that_may_need_over_half_of_the_memory_are_not_run_on_a_cpu(tmp_path, monkeypatch):
    free = 2 * inspect_cost.bound_bytes(TINY["vit"], (32, 32))
    monkeypatch.setattr(inspect_cost, "available_memory", lambda: free)
    ran = []
    measured = inspect_cost.measure_memory
    monkeypatch.setattr(inspect_cost, "measure_memory", lambda model, size: ran.append(size) or measured(model, size))
    _, figures = compare(tmp_path / "out", [task("vit")], sizes=[(32, 32), (64, 64)], batch=64)
    assert ran == [(32, 32)]
    assert figures["notes"] == ["a ViT (1) was left out at 64 pixels: one image may not fit in memory."]
    [row] = figures["costs"]
    # not 64: half of the batch that is predicted to fit
    assert row["batch"] == row["largest_batch"] // 2 < 64
    monkeypatch.setattr(inspect_cost, "available_memory", lambda: free // 1000)
    with pytest.raises(ConfigError, match="none of the models fits in memory"):
        compare(tmp_path / "none", [task("vit")])


def test_the_largest_batch_is_run_on_a_gpu(monkeypatch):
    monkeypatch.setattr(inspect_cost, "run_largest_batch", lambda model, size: 37)
    cost = ComparedCost(model="a", size=(32, 32), tokens=1, parameters=1, multiply_adds=1)
    found = inspect_cost._measure_limit(task("vit"), cost, torch.device("cuda"))
    assert (found.largest_batch, found.largest_batch_is) == (37, "measured")
    monkeypatch.setattr(inspect_cost, "run_largest_batch", lambda model, size: 0)
    assert inspect_cost._measure_limit(task("vit"), cost, torch.device("cuda")).largest_batch == 0


def test_without_a_figure_of_free_memory_no_largest_batch_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_cost, "available_memory", lambda: None)
    report, figures = compare(tmp_path / "out", [task("bit")], sizes=[(32, 32)])
    assert (figures["costs"][0]["largest_batch"], figures["costs"][0]["largest_batch_is"]) == (None, None)
    assert "does not report its free memory" in report.read_text()
    assert not (report.parent / "largest-batch.svg").exists()


@pytest.mark.slow
def test_names_stand_for_random_weights_beside_trained_ones(tmp_path):
    folder = save_model(tmp_path / "model", task("vit"))
    _, figures = vitrail.inspect(
        [str(folder), "vit-ti16"], cost=True, sizes="32", cost_batch=1, out=tmp_path / "out", device="cpu", quiet=True
    )
    assert [row["model"] for row in figures["costs"]] == [str(folder), "vit-ti16"]
    assert figures["costs"][1]["parameters"] == cost_of(configure("vit-ti16", image_size=32)).parameters


def test_incomparable_models_are_refused_before_anything_is_measured(tmp_path):
    for models, changes, words in (
        (["vit-ti16", "vit-ti16"], {}, "the model vit-ti16 is given twice"),
        (["vit-ti16"], {"sizes": "64,64"}, r"the size \(64, 64\) is given twice"),
        (["vit-ti16"], {"sizes": "0"}, r"sizes are .*0"),
        (["vit-ti16"], {"sizes": "64;128"}, "is not a size"),
        (["vit-ti16"], {"cost_batch": 0}, "batch is 0"),
        ([], {}, "0 models cannot be compared"),
        ([f"vit-ti16{each}" for each in range(11)], {}, "11 models cannot be compared\n.*1 to 10"),
        (["vit-ti17", "vit-ti16"], {}, "vit-ti17"),
        (["vit-ti16"], {"sizes": "60"}, "none of the models supports any of the sizes"),
        (["vit-ti16", "vit-s16"], {"cost": False}, "for --cost alone"),
        (["vit-ti16", "vit-s16"], {"data": "photos"}, "takes no --data"),
    ):
        settings = {"cost": True, "out": tmp_path / "out", "device": "cpu", "quiet": True, **changes}
        with pytest.raises(ConfigError, match=words):
            vitrail.inspect(models, **settings)
        assert not (tmp_path / "out").exists(), words
