"""Architectures of each kind through a whole run: trained, evaluated, reported, loaded again; and weights for other channels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import vitrail
from tests.models.tiny import QUICK, TINY
from tests.slow import slow_except
from vitrail.models import MODELS
from vitrail.weights import load

NAMES = {config.architecture: name for name, config in reversed(MODELS.items())}  # the first of each
DERIVED = {"image_size", "classes", "in_channels"}


def arrays(channels: int = 3):
    """40 images of 32 x 32 pixels in two classes."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (40, 32, 32, channels), dtype=np.uint8), np.arange(40) % 2


def run(tmp_path, name: str, **how):
    tiny = TINY[name]
    default, changes = MODELS[NAMES[tiny.architecture]].to_dict(), tiny.to_dict()
    changes = {key: value for key, value in changes.items() if key not in DERIVED and value != default[key]}
    settings = [f"model.changes={json.dumps(changes)}", "data.batch=8", "compute.threads=1"]
    return vitrail.train(
        arrays(), model=NAMES[tiny.architecture], steps=2, out=tmp_path / "run", settings=settings, quiet=True, **how
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except(QUICK, {"pvt"}))
def test_an_architecture_of_each_kind_is_trained_evaluated_reported_and_loaded(tmp_path, name):
    result = run(tmp_path, name)
    model = load(result.folder)
    assert model.config.architecture == TINY[name].architecture
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert len(model.predict(arrays()[0][:3])) == 3
    report = result.report.read_text()
    assert "multiply-adds" in report
    assert run(tmp_path, name).figures == result.figures  # the same words again ask for the same run


def test_changes_of_a_recipe_that_only_a_vit_has_are_dropped_with_a_notice(tmp_path, capsys):
    result = run(tmp_path, "axial")
    log = (result.folder / "log.txt").read_text()
    assert "small-data changes pool, prefix, initial, which an axial ViT does not have: left out" in log
    assert load(result.folder).config.gelu == "exact"  # which it has


@pytest.mark.slow
def test_a_run_starts_from_weights_for_other_channels(tmp_path):
    first = run(tmp_path, "axial").folder
    settings = ["data.batch=8", "compute.threads=1"]
    for channels in (1, 5):
        out = tmp_path / str(channels)
        result = vitrail.train(arrays(channels), init=first, steps=1, out=out, settings=settings, quiet=True)
        model = load(result.folder)
        assert model.config.in_channels == channels
        with torch.no_grad():
            assert model(torch.randn(2, channels, 32, 32)).shape == (2, 2)
