"""Attention maps of any layer, head and query, against the matrices that forward_with_attention gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import vitrail
from tests.analysis.dense import dense, map_of, random_images
from tests.models.conftest import shaken
from tests.models.tiny import TINY
from vitrail.analysis.attention import attention_map, compute_head_maps
from vitrail.errors import ConfigError
from vitrail.models import Backbone, create_backbone
from vitrail.tasks.classification.classifier import create_classifier

SIZES = {"swin": (34, 27), "pvt, odd map": (34, 27)}
# which tokens, and how much, ask for the answer where all of a layer's do: the prefix tokens, and all places together
POOLS = {
    "class token": ({}, [1], 0),
    "no token": ({"prefix": (), "pool": "gap"}, [], 1),
    "mean beside the class token": ({"pool": "gap"}, [0], 1),
    "class token and mean": ({"pool": "cls+gap"}, [0.5], 0.5),
    "attention pooling": ({"pool": "map"}, [0], 1),
    "registers": ({"registers": 2}, [1, 0, 0], 0),
    "registers alone": ({"prefix": (), "pool": "gap", "registers": 2}, [0, 0], 1),
    "two tokens": ({"prefix": ("cls", "dist"), "registers": 1}, [0.5, 0.5, 0], 0),
    "two tokens, one is read": ({"prefix": ("cls", "dist"), "pool": "cls-only"}, [1, 0], 0),
}


def make(name: str, **changes) -> Backbone:
    return shaken(create_backbone(replace(TINY[name], **changes))).double().eval()


def size_of(name: str) -> tuple[int, int]:
    return SIZES.get(name, (24, 32))


@torch.no_grad()
@pytest.mark.parametrize("pool", POOLS)
def test_the_map_is_what_the_tokens_of_the_answer_attend_to(pool):
    changes, of_prefix, of_places = POOLS[pool]
    model = make("vit", **changes)
    images = random_images(model, (24, 40))
    matrices = model.forward_with_attention(images)[1]
    prefix = len(of_prefix)
    asked = torch.cat([torch.tensor(of_prefix), torch.full((15,), of_places / 15)])
    for layer, matrix in enumerate(matrices):
        truth = (asked @ matrix)[..., prefix:].unflatten(-1, (3, 5))  # (B, H, h, w)
        found = compute_head_maps(model, images, layer)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, truth, atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_head_or_their_mean_in_a_layer_counted_from_either_end():
    model = make("vit")
    images = random_images(model, (24, 40))
    for layer in range(3):
        heads = compute_head_maps(model, images, layer)
        for given in (layer, layer - 3):
            torch.testing.assert_close(attention_map(model, images, given), heads.mean(1), atol=1e-6, rtol=0)
        for head in (0, 1, -1):
            torch.testing.assert_close(attention_map(model, images, layer, head), heads[:, head], atol=1e-6, rtol=0)
    torch.testing.assert_close(attention_map(model, images), heads.mean(1), atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("query", [(0, 0), (2, 4), (1, -2), (-3, 1)])
def test_a_place_can_be_the_query(query):
    model = make("vit", registers=2)
    images = random_images(model, (24, 40))
    row, column = query[0] % 3, query[1] % 5
    for layer, matrix in enumerate(model.forward_with_attention(images)[1]):
        truth = matrix[:, :, 3 + 5 * row + column, 3:].unflatten(-1, (3, 5))
        torch.testing.assert_close(compute_head_maps(model, images, layer, query), truth, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pvt, odd map"])
def test_maps_of_every_layer_are_rows_of_the_whole_matrix(name, monkeypatch):
    model, size = make(name, in_channels=1), size_of(name)
    images, grids = random_images(model, size), make(name).attention_grids(size)
    matrices = model.forward_with_attention(images)[1]
    for layer, (grid, matrix) in enumerate(zip(grids, matrices, strict=True)):
        rows, columns = map_of(grid)
        whole = np.stack([dense(grid, each.double().numpy()) for each in matrix])  # (B, H, T, T)
        shape = (*whole.shape[:2], rows, columns)
        if not grid.prefix:
            asked = np.full(rows * columns, 1 / (rows * columns))
        else:
            asked = np.r_[1, np.zeros(rows * columns)]
        truth = {None: (asked @ whole)[..., grid.prefix :].reshape(shape)}
        for query in [(0, 0), (rows - 1, columns - 1)] if grid.queries != (0, 0) else []:
            token = grid.prefix + query[0] * columns + query[1]
            truth[query] = whole[:, :, token, grid.prefix :].reshape(shape)
        for at_once in (1 << 21, 1):
            monkeypatch.setattr("vitrail.models.attention.AT_ONCE", at_once)
            for query, expected in truth.items():
                np.testing.assert_allclose(compute_head_maps(model, images, layer, query), expected, atol=1e-6)


@torch.no_grad()
def test_a_window_is_laid_back_where_its_query_lies():
    model = make(
        "swin"
    )  # maps of 5 x 4: windows of 3 x 3, filled up to 6 x 6; those of the second block are shifted by one
    images = random_images(model, (20, 16))
    plain, shifted, *_ = model.forward_with_attention(images)[1]
    # the place (4, 1) is in the window of rows 3 to 5 and columns 0 to 2, the third; rows 3 and 4 are of the map
    of_third = plain[:, :, 18 + 3 + 1].unflatten(-1, (3, 3))
    truth = torch.zeros(2, 1, 5, 4)
    truth[:, :, 3:5, :3] = of_third[:, :, :2]
    torch.testing.assert_close(compute_head_maps(model, images, 0, (4, 1)), truth, atol=1e-6, rtol=0)
    # rolled by one, (0, 0) is the last of the last window: alone, as all others there are of other regions
    truth = torch.zeros(2, 1, 5, 4)
    truth[:, :, 0, 0] = shifted[:, :, 35, 8]
    torch.testing.assert_close(compute_head_maps(model, images, 1, (0, 0)), truth, atol=1e-6, rtol=0)
    torch.testing.assert_close(truth[:, :, 0, 0], torch.ones(2, 1), atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_reduced_key_is_laid_back_on_the_places_that_it_was_made_of():
    model = make("pvt, odd map")
    images = random_images(model, (34, 27))  # 9 x 7 places, of which squares of 4 x 4 make 2 x 1 keys
    keys = model.forward_with_attention(images)[1][0][:, :, 3 * 7 + 2]
    truth = torch.zeros(2, 1, 9, 7)
    truth[:, :, :4, :4] = keys[..., 0, None, None] / 16
    truth[:, :, 4:8, :4] = keys[..., 1, None, None] / 16
    torch.testing.assert_close(compute_head_maps(model, images, 0, (3, 2)), truth, atol=1e-7, rtol=0)


def test_the_model_may_be_a_classifier_in_training_and_is_left_as_it_was():
    model = create_classifier(TINY["vit"], classes=7)
    shaken(model).train()
    images = random_images(model, (32, 32)).float()
    found = attention_map(model, images)
    assert not found.requires_grad
    assert all(module.training for module in model.modules())
    torch.testing.assert_close(found, attention_map(model.backbone, images), atol=0, rtol=0)
    with torch.inference_mode():
        torch.testing.assert_close(attention_map(model, images), found, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layer": 3}, "no layer 3: the model has 3\n.*0 to 2, or -1 for the last"),
        ({"layer": -4}, "no layer -4: the model has 3\n"),
        ({"head": 2}, "no head 2: the model has 2\n.*0 to 1"),
        ({"head": -3}, "no head -3"),
        ({"query": (4, 0)}, "no row 4: the model has 4\n.*0 to 3"),
        ({"query": (0, -5)}, "no column -5: the model has 4\n"),
    ],
)
def test_what_is_not_there_is_refused(asked, message):
    model = make("vit")
    with pytest.raises(ConfigError, match=message):
        attention_map(model, random_images(model, (32, 32)), **asked)


def test_where_only_the_class_token_asks_a_place_is_refused():
    model = make("cait")
    images = random_images(model, (32, 32))
    with pytest.raises(ConfigError, match=r"the class token is the only query of this layer\n.*choose another layer"):
        attention_map(model, images, -1, query=(0, 0))
    assert attention_map(model, images, 1, query=(0, 0)).shape == (2, 4, 4)


def test_a_model_without_attention_is_refused():
    with pytest.raises(ConfigError, match="a BiT ResNet has no attention"):
        attention_map(create_backbone(TINY["bit"]), torch.zeros(1, 3, 32, 32))


@torch.no_grad()
def test_the_last_layer_of_a_real_model(real_data):
    model = vitrail.load(real_data / "vit_tiny_patch16_224.safetensors")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    matrix = model.forward_with_attention(images)[1][11]
    found = attention_map(model, images, 11, 0)
    torch.testing.assert_close(found, matrix[:, 0, 0, 1:].unflatten(-1, (14, 14)), atol=1e-6, rtol=0)
