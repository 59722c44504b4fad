"""Distillation of features: its losses in plain loops, what makes them zero, and what they need of an encoder."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.models.conftest import shaken
from tests.models.tiny import TINY
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.objectives import features
from vitrail.objectives.features import FeatureDistillation, compare_patches, divergence, size_bank, uniformity

IDS = np.stack([np.zeros(4), np.arange(4), np.zeros(4)], 1).astype(np.int64)


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)


def make(config=TINY["vit"], *, width=12, images=64, dtype=torch.float64, **changes) -> FeatureDistillation:
    made = shaken(FeatureDistillation(create_backbone(config), images=images, features=width, **changes)).to(dtype)
    made.fill_bank(torch.randn(len(made.bank), width))
    return made.eval()


def draw_outputs(count: int, patches: int, width: int = 12, map_width: int = 20) -> torch.Tensor:
    return torch.randn(count, width + patches * map_width)


def cosines_by_hand(ours, theirs):
    return [[float(a @ b / (a.norm() * b.norm())) for b in theirs.double()] for a in ours.double()]


def divergence_by_hand(teacher, student, tau=0.07):
    total = 0.0
    for theirs, ours in zip(teacher, student):
        p, q = ([math.exp(each / tau) for each in row] for row in (theirs, ours))
        total += sum(a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q))
    return total / len(teacher)


def test_the_loss_is_the_mean_divergence_of_images_and_of_patches():
    objective, images = make(patches=0.5), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    outputs = draw_outputs(3, 16)
    loss, measured = objective(images, outputs)
    pooled, patches = objective.encoder.features_and_map(images)
    ours = objective.pooled_head(pooled).detach()
    of_images = divergence_by_hand(
        cosines_by_hand(outputs[:, :12], objective.bank), cosines_by_hand(ours, objective.bank)
    )
    each = [
        divergence_by_hand(cosines_by_hand(theirs, theirs), cosines_by_hand(mine, mine))
        for theirs, mine in zip(
            outputs[:, 12:].unflatten(1, (16, -1)), objective.patch_head(patches.flatten(2).mT).detach()
        )
    ]
    assert float(measured["images_loss"]) == pytest.approx(of_images, rel=1e-5)
    assert float(measured["patches_loss"]) == pytest.approx(sum(each) / 3, rel=1e-5)
    assert float(loss.detach()) == pytest.approx(of_images + 0.5 * sum(each) / 3, rel=1e-5)
    cosine = np.mean(np.diag(cosines_by_hand(ours, outputs[:, :12])))
    assert float(measured["teacher_cosine"]) == pytest.approx(cosine, abs=1e-5)


@pytest.mark.parametrize("name", ["vit", "beit", "swin", "cait", "bit"])
def test_a_student_that_is_its_teacher_has_no_loss(name):
    """Class token, mean of normed patches, mean of patches, class attention, convolutions; with the identity as heads."""
    encoder = create_backbone(TINY[name])
    objective = shaken(FeatureDistillation(encoder, images=64, features=encoder.width)).eval()
    objective.fill_bank(torch.randn(16, encoder.width))
    objective.pooled_head, objective.patch_head = nn.Identity(), nn.Identity()
    images = torch.randn(2, 3, *encoder.config.image_size)
    with torch.no_grad():
        pooled, patches = encoder.features_and_map(images)
    loss, measured = objective(images, torch.cat([pooled, patches.flatten(2).mT.flatten(1)], 1))
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-5)
    assert float(measured["teacher_cosine"]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_the_features_and_the_map_of_one_pass_are_those_of_two(name):
    config = replace(TINY[name], in_channels=5)
    model = shaken(create_backbone(config)).double().eval()
    images = torch.randn(2, 5, *config.image_size, dtype=torch.float64)
    pooled, last = model.features_and_map(images)
    torch.testing.assert_close(pooled, model.features(images))
    torch.testing.assert_close(last, model.dense_maps(images)[-1])


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_micro_batches_add_up_to_the_batch(size):
    objective, images = make(), torch.randn(4, 3, *size, dtype=torch.float64)
    outputs = draw_outputs(4, size[0] * size[1] // 64)
    whole, _ = objective(images, outputs)
    parts = [objective(images[part], outputs[part])[0] for part in (slice(1), slice(1, 4))]
    torch.testing.assert_close(whole, (parts[0] + 3 * parts[1]) / 4)


def test_every_parameter_but_those_that_features_do_not_use_gets_a_gradient():
    objective = make(replace(TINY["vit"], classes=0)).train()
    objective(torch.randn(2, 3, 32, 32, dtype=torch.float64), draw_outputs(2, 16))[0].backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in objective.parameters())
    assert set(dict(objective.layers()[-1])) >= {"pooled_head.weight", "patch_head.bias"}


def test_of_many_patches_some_rows_are_compared_that_depend_on_the_image_alone(monkeypatch):
    monkeypatch.setattr(features, "MANY_PATCHES", 15)
    monkeypatch.setattr(features, "ROWS", 5)
    objective = make()
    (noise,) = objective.draw(IDS, (32, 32), 7)
    assert noise.shape == (4, 5) and torch.equal(objective.draw(IDS[2:], (32, 32), 7)[0], noise[2:])
    images, outputs = torch.randn(4, 3, 32, 32, dtype=torch.float64), draw_outputs(4, 16)
    noise[0, 0] = 1.0  # what the largest numbers below 1 become in fp32
    _, measured = objective(images, noise, outputs)
    rows = (noise * 16).long().clamp(max=15)
    theirs = outputs[:, 12:].unflatten(1, (16, -1))
    ours = objective.patch_head(objective.encoder.features_and_map(images)[1].flatten(2).mT).detach()
    each = [
        divergence_by_hand(
            [cosines_by_hand(a, a)[row] for row in chosen.tolist()],
            [cosines_by_hand(b, b)[row] for row in chosen.tolist()],
        )
        for a, b, chosen in zip(theirs, ours, rows)
    ]
    assert float(measured["patches_loss"]) == pytest.approx(sum(each) / 4, rel=1e-5)
    monkeypatch.setattr(features, "MANY_PATCHES", 16)
    assert objective.draw(IDS, (32, 32), 7) == ()


def test_equal_similarities_have_the_uniformity_one_and_a_single_neighbour_zero():
    assert float(uniformity(torch.eye(6), 0.07)) == pytest.approx(1.0)
    pairs = torch.eye(3).repeat_interleave(2, 0)  # each image has one like it
    assert float(uniformity(pairs, 0.01)) == pytest.approx(0.0, abs=1e-6)


def test_divergence_is_zero_for_equal_rows_and_computed_in_fp32_under_autocast():
    scores = torch.randn(3, 5)
    assert float(divergence(scores, scores, 0.07)) == 0.0
    objective = make(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = objective(torch.randn(2, 3, 32, 32), draw_outputs(2, 16))
    assert loss.dtype == torch.float32 and compare_patches(torch.randn(1, 3, 4).bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    ("images", "size"), [(10, 10), (50, 16), (250, 64), (1_000, 256), (20_000, 4_096), (10**6, 8_192)]
)
def test_the_bank_grows_with_the_images(images, size):
    assert size_bank(images) == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "the temperature is 0"),
        ({"patches": -1.0}, "the weight of the patches is -1"),
        ({"bank": 65}, "a bank of 65 features for 64 images"),
        ({"bank": 1}, "a bank of 1 features"),
        ({"bank": 16.5}, "a bank of 16.5 features"),
        ({"temperature": "0.1"}, "the temperature is '0.1'"),
        ({"patches": None}, "the weight of the patches is None"),
        ({"config": replace(TINY["vit"], patch_dropout=0.5)}, "patch_dropout is 0.5"),
    ],
)
def test_invalid_values_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)
