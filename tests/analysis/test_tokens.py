"""Norms of patches: outliers are found where they are and by the neuron that makes them, and not in a random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.analysis.planted import CONFIG, draw_images, plant_outliers
from tests.models.tiny import TINY
from vitrail.analysis.tokens import MapNorms, find_neuron, find_onset, measure_norms
from vitrail.models import create_backbone

CORNERS = ((0, 0), (0, -1), (-1, 0), (-1, -1))


def drawn(*outliers: float, count: int = 1000) -> MapNorms:
    """Norms around 1, the first of them replaced by ``outliers``, as maps of ten cells."""
    norms = np.random.default_rng(0).normal(1, 0.1, count)
    norms[: len(outliers)] = outliers
    return MapNorms(norms.reshape(-1, 2, 5))


def test_figures_of_a_map():
    norms = np.array([[[1.0, 2.0, 2.0]], [[2.0, 5.0, 14.0]]])
    map_ = MapNorms(norms)
    assert (map_.median, map_.largest, map_.high) == (2.0, 14.0, np.quantile(norms, 0.98))
    assert (map_.outliers, map_.near) == (1 / 6, 1 / 6)
    assert map_.places.tolist() == [[0.0, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("map_", "is_bimodal"),
    [
        (drawn(*[20.0] * 20), True),
        (drawn(*[20.0] * 20, 2.5), True),
        (drawn(*[20.0] * 20, 2.5, 2.5), False),  # a tenth as many in between
        (drawn(*[20.0] * 9), False),  # too few to know that none lie in between
        (drawn(*[20.0] * 12, count=20_000), False),  # less than .1 %
        (drawn(*[20.0] * 110), False),  # more than 10 %
        (drawn(), False),
        (MapNorms(np.zeros((100, 2, 5))), False),
        (MapNorms(np.full((100, 2, 5), np.nan)), False),
    ],
    ids=["2 %", "few between", "many between", "nine", "too rare", "too many", "none", "zeros", "nan"],
)
def test_artefacts_are_rare_and_far_from_all_others(map_, is_bimodal):
    assert map_.is_bimodal == is_bimodal
    assert find_onset([drawn(), map_, map_]) == (1 if is_bimodal else None)


def test_norms_are_those_of_the_raw_maps_in_any_batches():
    model = create_backbone(TINY["vit"])
    images = torch.randn(3, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    maps = measure_norms(model, images.split(2))
    with torch.no_grad():
        for found, map_ in zip(maps, model.eval().feature_maps(images), strict=True):
            np.testing.assert_allclose(found.norms, map_.norm(dim=1), rtol=1e-5)
    assert measure_norms(model, []) == []


def test_the_neuron_that_makes_outliers_is_found():
    model, images = create_backbone(CONFIG).eval(), draw_images(8)
    plant_outliers(model, images)
    maps = measure_norms(model, [images])
    assert maps[1].outliers == 1 / 64 and maps[1].places[0, 0] == 1
    assert [map_.is_bimodal for map_ in maps] == [False] * len(maps)  # 8 outliers are too few to say so
    neuron = find_neuron(model, images, 1)
    assert neuron is not None and neuron.index == 5
    assert neuron.at_outliers == pytest.approx(20, rel=0.1)
    assert find_neuron(model, images, 0) is None
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_without_such_an_mlp_has_no_neuron():
    model = create_backbone(TINY["bit"])
    assert find_neuron(model, torch.zeros(1, 3, *model.config.image_size), 0) is None


def read(model: vitrail.Classifier, folder: Path, count: int) -> torch.Tensor:
    files = sorted((folder / "imagenet_val" / "images").iterdir())
    return torch.cat([model.preprocess(file) for file in files[:: len(files) // count][:count]])


@pytest.mark.slow
def test_the_public_vit_tiny_has_artefacts_in_the_corners_from_block_8_on(real_data):
    model = vitrail.load(real_data / "vit_tiny_patch16_224.safetensors", log=lambda line: None)
    images = read(model, real_data, 10)
    maps = measure_norms(model, images.split(5))
    assert find_onset(maps) == 7 and all(map_.is_bimodal for map_ in maps[7:])
    for map_ in maps[7:]:
        assert map_.outliers == pytest.approx(0.02, abs=0.002)
        assert all(map_.places[corner] >= 0.8 for corner in CORNERS)
    neuron = find_neuron(model, images[:3], 7)
    assert neuron is not None and neuron.index == 417


def test_a_random_vit_tiny_has_none(real_data):
    model = vitrail.create_model("vit-ti16", classes=["a", "b"])
    assert find_onset(measure_norms(model, [read(model, real_data, 6)])) is None
