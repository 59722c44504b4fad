"""The seam of tasks: one that the project does not have is trained, judged, used, exported and served by the code as it is."""

from __future__ import annotations

import json

import numpy as np
import pytest

import vitrail
from tests.tasks.regression import Regression
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import CheckpointError, ConfigError
from vitrail.tasks import TASKS

SIDE = 16
TINY = ("model.name=vit-ti16", "model.changes={width: 32, depth: 2, heads: 2, mlp_width: 64, patch_size: [4, 4]}")
RECIPE = (
    "task=regression",
    "augment.mixup=0",
    "augment.cutmix=0",
    "augment.smoothing=0",
    "augment.flip=0.5",
    "optim.name=adamw",
)


def spots(count: int, seed: int) -> Source:
    """Noise with one bright spot; the targets are its middle (x, y)."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 60, (count, SIDE, SIDE, 3)).astype(np.uint8)
    points = generator.integers(2, SIDE - 2, (count, 2))
    for image, (x, y) in zip(images, points):
        image[y - 1 : y + 2, x - 1 : x + 2] = 255
    keys = Strings([f"{number}.png" for number in range(count)])
    return Source(contents=Arrays(images, keys), targets=(points + 0.5).astype(np.float32))


@pytest.fixture(scope="module", autouse=True)
def known():
    TASKS["regression"] = Regression
    yield
    del TASKS["regression"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the task: half of the pictures are mirrored as it learns, so it learns only if the targets follow."""
    data = Splits(train=spots(400, 0), val=spots(60, 1), test=None, layout="spots", classes=())
    out = tmp_path_factory.mktemp("runs") / "spots"
    return vitrail.train(data, out=out, steps=150, batch=40, lr=2e-3, settings=(*TINY, *RECIPE), quiet=True)


def test_it_is_trained_and_targets_follow_their_pixels(trained):
    figures = trained.figures
    assert figures["mean_error"] < 0.1  # a guess in the middle is off by 0.19
    assert figures["mean_error_low"] < figures["mean_error"] < figures["mean_error_high"]
    assert trained.report.exists()
    assert "val_mean_error" in (trained.folder / "metrics.jsonl").read_text()
    assert json.loads((trained.folder / "model" / "config.json").read_text())["task"] == "regression"


def test_it_is_loaded_and_judged_as_it_was_in_training(trained):
    model = vitrail.load(trained.folder)
    assert isinstance(model, Regression)
    judged = vitrail.evaluate(model, Splits(train=None, val=spots(60, 1), test=None, layout="", classes=()), quiet=True)
    assert judged.figures["mean_error"] == pytest.approx(trained.figures["mean_error"], abs=1e-6)


def test_a_model_of_an_unknown_task_is_refused_by_name(trained, monkeypatch):
    monkeypatch.delitem(TASKS, "regression")
    with pytest.raises(CheckpointError, match="of the task 'regression'; this vitrail knows classification"):
        vitrail.load(trained.folder)


def test_policies_that_its_targets_cannot_follow_are_refused(tmp_path):
    data = Splits(train=spots(40, 0), val=None, test=None, layout="spots", classes=())
    with pytest.raises(ConfigError, match="no meaning for the task regression"):
        vitrail.train(data, out=tmp_path / "run", steps=1, settings=(*TINY, *RECIPE, "augment.mixup=0.2"), quiet=True)
