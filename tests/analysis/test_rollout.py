"""Rollout and relevance against products of whole matrices, of every kind of layer, map and pooling."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from tests.analysis.dense import dense_relevance, dense_rollout, map_of, random_images
from tests.models.conftest import shaken
from tests.models.plainly import run_plainly
from tests.models.tiny import TINY
from vitrail.analysis.attention import attention_map
from vitrail.analysis.cost import measure_peak_bytes
from vitrail.analysis.rollout import relevance, rollout
from vitrail.errors import ConfigError
from vitrail.models import AttentionRecord, Backbone, ViTConfig, create_backbone
from vitrail.tasks.classification.classifier import create_classifier

SIZES = {"swin": (34, 27), "pvt, odd map": (34, 27)}  # windows are filled up, and reductions leave places over
OTHERS = {
    "registers": replace(TINY["vit"], registers=2),
    "two tokens": replace(TINY["vit"], prefix=("cls", "dist")),
    "one is read": replace(TINY["vit"], prefix=("cls", "dist"), pool="cls-only"),
    "mean beside registers": replace(TINY["vit"], prefix=(), pool="gap", pool_norm=True, registers=1),
    "token and mean": replace(TINY["vit"], pool="cls+gap"),
    "attention pooling": replace(TINY["vit"], pool="map"),
    "relative": replace(TINY["vit"], positions="relative"),
}
# all tokens, windows of merged maps, patches that rest, a mean beside a class token, reduced keys and a late class token
CASES = {**{name: TINY[name] for name in ("vit", "swin", "cait", "beit", "pvt, odd map")}, **OTHERS}


def make(name: str, **changes) -> Backbone:
    return shaken(create_backbone(CASES[name], **changes)).double().eval()


def size_of(name: str) -> tuple[int, int]:
    return SIZES.get(name, (24, 32))


def asked_of(name: str, tokens: int) -> np.ndarray:
    """How much each token of the last layer counts in the answer."""
    asked = np.zeros(tokens)
    if name in ("two tokens", "token and mean"):
        asked[:1] = 0.5
        places = slice(1, 2) if name == "two tokens" else slice(1, None)
        asked[places] = 0.5 / len(asked[places])
    elif name == "swin":
        asked[:] = 1 / tokens
    elif name in ("beit", "mean beside registers", "attention pooling"):
        asked[1:] = 1 / (tokens - 1)
    else:
        asked[0] = 1
    return asked


@pytest.mark.parametrize("name", CASES)
def test_rollout_is_the_product_of_whole_matrices(name):
    model, size = make(name, in_channels=1), size_of(name)
    images, grids = random_images(model, size), model.attention_grids(size)
    _, matrices = model.forward_with_attention(images)
    tokens = grids[-1].prefix + np.prod(map_of(grids[-1]))
    truth = dense_rollout(grids, [each.detach() for each in matrices], asked_of(name, tokens))
    found = rollout(model, images)
    assert found.dtype == torch.float32
    assert found.shape == truth.shape
    np.testing.assert_allclose(found, truth, atol=1e-6)
    total = found.sum((1, 2))
    assert (total <= 1 + 1e-5).all() and (found >= 0).all()
    if not grids[-1].prefix:  # what stands for all of its layer's places loses nothing
        torch.testing.assert_close(total, torch.ones(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_relevance_is_the_product_of_whole_matrices_and_their_gradients(name):
    model, size, targets = make(name, in_channels=1), size_of(name), torch.tensor([2, 6])
    images, grids = random_images(model, size), model.attention_grids(size)
    _, matrices, gradients = run_plainly(model, images, targets)
    tokens = grids[-1].prefix + np.prod(map_of(grids[-1]))
    truth = dense_relevance(grids, matrices, gradients, asked_of(name, tokens))
    found = relevance(model, images, targets)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert found.shape == truth.shape
    assert truth.any()
    np.testing.assert_allclose(found, truth, atol=1e-6 * max(truth.max(), 1), rtol=1e-4)
    assert (found >= 0).all()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["vit", "swin", "cait", "pvt, odd map"])
def test_pieces_of_any_size_give_the_same(name, monkeypatch):
    model = make(name)
    images = random_images(model, size_of(name))
    whole = rollout(model, images), relevance(model, images)
    for at_once in (1, 500):
        monkeypatch.setattr("vitrail.models.attention.AT_ONCE", at_once)
        torch.testing.assert_close(rollout(model, images), whole[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(relevance(model, images), whole[1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("explain", [rollout, relevance])
def test_one_layer_at_a_time_is_looked_at(explain, monkeypatch):
    looks, held, weights = WeakSet(), [], AttentionRecord.weights

    def counted(look: AttentionRecord, rows: slice) -> Tensor:
        looks.add(look)
        held.append(sum("parts" in each.__dict__ for each in looks))
        return weights(look, rows)

    monkeypatch.setattr(AttentionRecord, "weights", counted)
    explain(make("vit"), random_images(make("vit"), (32, 32)))
    assert len(held) == 3 and max(held) == 1


@pytest.mark.parametrize("name", ["relative", "swin", "cait", "pvt, odd map"])
def test_relevance_of_a_frozen_model_inside_of_inference_mode_and_of_what_it_answers(name):
    model = make(name)
    images = random_images(model, size_of(name))
    answers = model(images).argmax(1)
    truth = relevance(model, images, answers)
    assert not torch.allclose(relevance(model, images, (answers + 1) % 7), truth)
    torch.testing.assert_close(relevance(model, images), truth)
    torch.testing.assert_close(relevance(model, images, answers.int()), truth)
    model.requires_grad_(False)
    torch.testing.assert_close(relevance(model, images), truth, atol=1e-6, rtol=1e-4)
    with torch.inference_mode():
        inside = relevance(model, images.clone()), relevance(model, images.clone(), answers.clone())
        assert not torch.is_grad_enabled()
    for each in inside:
        torch.testing.assert_close(each, truth, atol=1e-6, rtol=1e-4)
    assert not images.requires_grad


def test_a_classifier_is_asked_as_its_backbone_is_and_left_as_it_was():
    model = create_classifier(TINY["vit"], classes=7)
    shaken(model).train()
    images = random_images(model, (32, 32)).float()
    torch.testing.assert_close(rollout(model, images), rollout(model.backbone, images), atol=0, rtol=0)
    torch.testing.assert_close(relevance(model, images), relevance(model.backbone, images), atol=0, rtol=0)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("targets", [[0], [0, 7], [-1, 0], [[0, 1]], [0.0, 1.0]])
def test_targets_that_are_no_classes_are_refused(targets):
    model = make("vit")
    with pytest.raises(ConfigError, match=r"targets? .*\n.*one class index per image, 2 whole numbers from 0 to 6"):
        relevance(model, random_images(model, (32, 32)), torch.tensor(targets))


def test_a_model_without_a_head_has_no_answer_to_explain():
    model = make("vit", classes=0)
    images = random_images(model, (32, 32))
    with pytest.raises(ConfigError, match="no head"):
        relevance(model, images)
    assert rollout(model, images).shape == (2, 4, 4)


@pytest.mark.parametrize("look", [rollout, relevance])
def test_a_model_without_attention_is_refused(look):
    with pytest.raises(ConfigError, match="a BiT ResNet has no attention"):
        look(create_backbone(TINY["bit"]), torch.zeros(1, 3, 32, 32))


@pytest.mark.slow
def test_rollout_of_a_real_model_is_a_share(real_data):
    model = vitrail.load(real_data / "vit_tiny_patch16_224.safetensors")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    found = rollout(model, images)
    assert found.shape == (2, 14, 14)
    assert found.isfinite().all()
    assert (found >= 0).all() and (found <= 1).all() and (found.sum((1, 2)) < 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("explain", [rollout, relevance, attention_map])
def test_no_whole_matrix_of_a_large_image_is_in_memory(explain):
    config = ViTConfig(image_size=1024, patch_size=16, width=24, depth=1, heads=3, mlp_width=24, classes=3)
    model, images = create_backbone(config), torch.zeros(1, 3, 1024, 1024)
    matrix = 3 * 4097**2 * 4
    assert measure_peak_bytes(lambda: explain(model, images), images.device) < matrix / 2
