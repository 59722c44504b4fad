"""Components of patches: those of a singular value decomposition, with signs by rule, in any order of the images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from vitrail.analysis.components import Components, compute_components, measure_components
from vitrail.models import create_backbone

SHAPE = (5, 12, 4, 6)  # (B, D, h, w)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Tokens whose channels have variances of their own, so that components are distinct."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values * torch.arange(1.0, shape[1] + 1).flip(0)[:, None, None] + 3


def fit(tokens: torch.Tensor) -> Components:
    found = compute_components(tokens)
    assert found is not None
    return found


def test_components_are_those_of_a_singular_value_decomposition():
    tokens = draw(*SHAPE)
    found = fit(tokens)
    flat = tokens.double().permute(0, 2, 3, 1).flatten(0, 2).numpy()
    left, singular, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    np.testing.assert_allclose(found.explained, (singular**2 / (singular**2).sum())[:3], rtol=1e-9)
    np.testing.assert_allclose(np.abs(found.maps.reshape(-1, 3)), np.abs(left[:, :3]) * len(flat) ** 0.5, atol=1e-6)
    np.testing.assert_allclose(found.between, found.maps.mean((1, 2)).var(0), rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_signs_are_those_of_the_rule_whatever_the_order_of_the_images(seed):
    tokens = draw(*SHAPE, seed=seed)
    found = fit(tokens)
    border = np.ones(SHAPE[2:], bool)
    border[1:-1, 1:-1] = False
    assert found.maps[:, border, 0].mean() < 0
    flat = tokens.double().permute(0, 2, 3, 1).flatten(0, 2).numpy()
    loadings = (flat - flat.mean(0)).T @ found.maps.reshape(-1, 3)  # (D, K), up to the scale of a column
    assert all(column[np.abs(column).argmax()] > 0 for column in loadings.T[1:])
    np.testing.assert_array_equal(fit(tokens).maps, found.maps)
    for order in ([4, 2, 0, 3, 1], [1, 0, 2, 4, 3]):
        again = fit(tokens[order])
        np.testing.assert_allclose(again.maps, found.maps[order], atol=1e-9)
        np.testing.assert_allclose(again.between, found.between, rtol=1e-9)


def test_maps_without_an_inside_have_signs_by_their_loadings():
    tokens = draw(20, 6, 2, 2)
    maps = fit(tokens).maps
    flat = tokens.double().permute(0, 2, 3, 1).flatten(0, 2).numpy()
    loadings = (flat - flat.mean(0)).T @ maps.reshape(-1, 3)
    assert all(column[np.abs(column).argmax()] > 0 for column in loadings.T)


def test_what_differs_between_images_only_is_between_images():
    tokens = draw(*SHAPE)
    tokens[:, 0] = torch.tensor([0.0, 100.0, 200.0, 300.0, 400.0])[:, None, None]
    assert fit(tokens).between[0] > 0.99
    assert fit(tokens).between[1:].max() < 0.5


def test_colours_are_grey_at_the_mean_and_saturate():
    found = Components(maps=np.array([[[[0.0, 9.0, -9.0]]]]), explained=np.ones(3), between=np.ones(3))
    assert found.pictures().tolist() == [[[[128, 255, 0]]]]


@pytest.mark.parametrize(
    "tokens", [draw(1, 12, 4, 6), draw(5, 2, 4, 6), torch.full(SHAPE, 0.1)], ids=["one image", "two channels", "equal"]
)
def test_there_is_no_fit_without_variance(tokens):
    assert compute_components(tokens) is None


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_the_last_map_is_normed(name):
    model = create_backbone(TINY[name]).eval()
    images = torch.randn(4, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    found = measure_components(model, images.split(3))
    with torch.no_grad():
        expected = compute_components(model.dense_maps(images)[-1])
    assert found is not None and expected is not None
    np.testing.assert_allclose(found.explained, expected.explained, rtol=1e-4)
    assert measure_components(model, []) is None
