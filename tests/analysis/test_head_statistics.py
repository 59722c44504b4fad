"""Distance, entropy and prefix share of heads: known ones, and those of every kind of layer by brute force."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import vitrail
from tests.analysis.dense import dense_distances, is_inside, place_of_query, random_images
from tests.models.conftest import shaken
from tests.models.tiny import TINY
from vitrail.analysis.head_statistics import HeadStatistics, compute_uniform_distance
from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, AttentionRecord, Backbone, ViT, ViTConfig, create_backbone
from vitrail.models.axial import AxialConfig

SIZES = {"swin": (34, 27), "pvt, odd map": (34, 27), "axial": (24, 40)}
SMALL = {"width": 8, "depth": 2, "heads": 2, "mlp_width": 8, "classes": 3}
CASES = {name: TINY[name] for name in ("vit", "axial", "swin", "cait", "pvt, odd map")}
CASES |= {"registers": replace(TINY["vit"], registers=2), "no token": replace(TINY["vit"], prefix=(), pool="gap")}


def make(config) -> Backbone:
    return shaken(create_backbone(config)).double().eval()


def vit(size, patch_size, **changes) -> ViT:
    return make(ViTConfig(**{**SMALL, "image_size": size, "patch_size": patch_size, **changes}))


@torch.no_grad()
def look_everywhere_alike(model: ViT) -> ViT:
    """Queries are zero."""
    for block in model.blocks:
        block.attn.qkv.weight[: model.width] = 0
        block.attn.qkv.bias[: model.width] = 0
    return model


def figures_of(model: Backbone, images: torch.Tensor, *, renormalise: bool = True):
    statistics = HeadStatistics(model, renormalise=renormalise)
    statistics.add(images)
    return statistics.figures()


@pytest.mark.parametrize(("size", "patch", "far"), [(224, 16, 116.49), (224, 32, 115.50), (224, 14, 116.57)])
def test_attention_that_is_alike_everywhere_has_the_mean_distance_of_two_patches(size, patch, far):
    model = look_everywhere_alike(vit(size, patch))
    patches = (size // patch) ** 2
    for figures in figures_of(model, random_images(model, (size, size), 1)):
        np.testing.assert_allclose(figures.distance, [far, far], atol=0.005)
        np.testing.assert_allclose(figures.distance, figures.uniform, rtol=1e-5)
        np.testing.assert_allclose(figures.entropy, 1, atol=1e-5)
        np.testing.assert_allclose(figures.prefix, 1 / (patches + 1), rtol=1e-5)
    for figures in figures_of(model, random_images(model, (size, size), 1), renormalise=False):
        np.testing.assert_allclose(figures.distance, figures.uniform * patches / (patches + 1), rtol=1e-5)


@pytest.mark.parametrize("name", ["vit", "registers", "no token", "axial"])
def test_a_head_that_looks_at_itself_alone_has_neither_distance_nor_entropy(name, monkeypatch):
    model, size = make(CASES[name]), SIZES.get(name, (24, 32))

    def at_itself(look: AttentionRecord, rows: slice = slice(None)) -> torch.Tensor:
        batch, heads, queries, keys = look.shape
        number = torch.arange(queries)[rows]
        if isinstance(model.config, AxialConfig):  # lines one after another
            number = number % keys
        return torch.eye(keys)[number].expand(batch, heads, -1, -1)

    monkeypatch.setattr("vitrail.models.attention.AttentionRecord.weights", at_itself)
    monkeypatch.setattr("vitrail.models.attention.GroupedAttentionRecord.weights", at_itself)
    for figures in figures_of(model, random_images(model, size)):
        for each in (figures.distance, figures.entropy, figures.prefix):
            assert each.shape == (2,)
            assert not each.any()


def test_figures_of_a_row_by_hand(monkeypatch):
    # two patches, one beside the other, 6 pixels high and 10 wide; both give half to the class token, a quarter to each patch
    model = vit((6, 20), (6, 10), depth=1)
    monkeypatch.setattr(
        "vitrail.models.attention.AttentionRecord.weights",
        lambda look, rows=slice(None): torch.tensor([0.5, 0.25, 0.25]).expand(*look.shape[:2], 3, 3)[:, :, rows],
    )
    images = random_images(model, (6, 20), 3)
    for renormalise, far in ((True, 5.0), (False, 2.5)):
        [figures] = figures_of(model, images, renormalise=renormalise)
        np.testing.assert_allclose(figures.distance, [far, far])
        np.testing.assert_allclose(figures.prefix, [0.5, 0.5])
        np.testing.assert_allclose(figures.entropy, 1.5 * math.log(2) / math.log(3), rtol=1e-6)
        assert figures.uniform == 5


def by_hand(grid: AttentionGrid, matrix: np.ndarray) -> np.ndarray:
    """Of the heads of a layer (B, H, Q, K), by plain loops: distance, the same not renormalised, entropy, prefix (4, H)."""
    prefix, (_, heads, queries, keys) = grid.prefix, matrix.shape
    distances, inside = dense_distances(grid, queries, keys), is_inside(grid, (queries, keys))
    found: list[list[list[float]]] = [[] for _ in range(heads)]
    for image, head, query in np.ndindex(*matrix.shape[:3]):
        if query < prefix or place_of_query(grid, query - prefix) < 0:
            continue
        row = matrix[image, head, query]
        on_map = [key for key in range(prefix, keys) if inside[query, key]]
        far = sum(row[key] * distances[query, key] for key in on_map)
        entropy = -sum(weight * math.log(weight) for weight in row if weight > 0) / math.log(max(keys, 2))
        found[head].append([far / sum(row[key] for key in on_map), far, entropy, sum(row[:prefix])])
    return np.array(found).mean(1).T


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_figures_of_every_layer_are_those_by_hand(name):
    model, size = make(CASES[name]), SIZES.get(name, (24, 32))
    images, grids = random_images(model, size), model.attention_grids(size)
    logits, matrices = model.forward_with_attention(images)
    statistics = HeadStatistics(model)
    assert torch.equal(statistics.add(images), logits)
    plain = figures_of(model, images, renormalise=False)
    for figures, same, grid, matrix in zip(statistics.figures(), plain, grids, matrices, strict=True):
        if grid.queries == (0, 0):
            for each in (figures.distance, same.distance, figures.entropy, figures.prefix):
                assert each.shape == matrix.shape[1:2]
                assert each.isnan().all()
            assert math.isnan(figures.uniform)
            continue
        distance, not_renormalised, entropy, prefix = by_hand(grid, matrix.double().numpy())
        np.testing.assert_allclose(figures.distance, distance, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(same.distance, not_renormalised, rtol=1e-5, atol=1e-5)
        for each in (figures, same):
            np.testing.assert_allclose(each.entropy, entropy, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(each.prefix, prefix, rtol=1e-5, atol=1e-6)
        alike = np.ones((1, 1, *matrix.shape[2:]))
        np.testing.assert_allclose(figures.uniform, by_hand(grid, alike)[0, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pvt, odd map"])
def test_batches_one_after_another_and_pieces_of_any_size_give_the_same(name, monkeypatch):
    model, size = make(CASES[name]), SIZES.get(name, (24, 32))
    images = random_images(model, size, 5)
    whole = figures_of(model, images)
    for at_once in (1 << 21, 300):
        monkeypatch.setattr("vitrail.models.attention.AT_ONCE", at_once)
        statistics = HeadStatistics(model)
        for batch in images.split(2):
            statistics.add(batch)
        assert statistics.images == 5
        for found, truth in zip(statistics.figures(), whole, strict=True):
            for one, other in ((found.entropy, truth.entropy), (found.prefix, truth.prefix)):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6, equal_nan=True)
            torch.testing.assert_close(found.distance, truth.distance, atol=1e-6, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("grid", "patch"), [((14, 14), 16), ((7, 7), 32), ((16, 16), 14)])
def test_the_mean_distance_of_two_patches_is_counted(grid, patch):
    far = [math.dist((0, 0), (y - v, x - u)) for y, x, v, u in np.ndindex(*grid, *grid)]
    attention_grid = AttentionGrid(1, grid, grid, (patch, patch))
    assert compute_uniform_distance(attention_grid) == pytest.approx(patch * sum(far) / len(far), rel=1e-6)


def test_the_model_is_left_as_it_was_and_one_without_attention_is_refused():
    model = make(TINY["vit"]).train()
    figures = figures_of(model, random_images(model, (32, 32)))
    assert all(module.training for module in model.modules())
    assert not any(each.distance.requires_grad for each in figures)
    bit = create_backbone(TINY["bit"])
    with pytest.raises(ConfigError, match="a BiT ResNet has no attention"):
        HeadStatistics(bit).add(torch.zeros(1, 3, 32, 32))


@pytest.mark.slow
@torch.no_grad()
def test_heads_of_a_real_model(real_data):
    model = vitrail.load(real_data / "vit_tiny_patch16_224.safetensors")
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    found = figures_of(model, images)
    matrices = model.forward_with_attention(images)[1]
    grid, middles = (
        model.attention_grids((224, 224))[0],
        torch.cartesian_prod(torch.arange(14), torch.arange(14)) * 16.0,
    )
    for figures, matrix in zip(found, matrices, strict=True):
        on_map = matrix[0, :, 1:, 1:]  # (H, N, N)
        far = (on_map * (middles[:, None] - middles).norm(dim=-1)).sum(-1) / on_map.sum(-1)
        torch.testing.assert_close(figures.distance, far.mean(1), atol=1e-3, rtol=1e-5)
        torch.testing.assert_close(figures.prefix, matrix[0, :, 1:, 0].mean(1), atol=1e-5, rtol=1e-5)
        assert figures.uniform == pytest.approx(compute_uniform_distance(grid)) == pytest.approx(116.49, abs=0.005)


def test_nothing_seen_and_images_of_two_sizes_are_refused():
    statistics = HeadStatistics(vit((32, 32), 8))
    with pytest.raises(ConfigError, match="no images have been added"):
        statistics.figures()
    statistics.add(torch.zeros(1, 3, 32, 32, dtype=torch.float64))
    with pytest.raises(ConfigError, match="images of 32x40 pixels after images of 32x32"):
        statistics.add(torch.zeros(1, 3, 32, 40, dtype=torch.float64))
