"""The fall of a probability when a window is covered is the one known by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.analysis.weighing import Counting, pictures, shaken, weighing, weights
from tests.models.tiny import QUICK, TINY
from vitrail.analysis.occlusion import measure_class, occlusion
from vitrail.models.config import StagedConfig
from vitrail.tasks.classification.classifier import Classifier


def explain(model: Classifier, images: torch.Tensor, targets: torch.Tensor | None = None, **how: Any) -> torch.Tensor:
    """The fall of the probability of ``targets``, by default of the predictions."""
    targets = model(images).argmax(1) if targets is None else targets
    return occlusion(model, images, measure_class(model, targets), **how)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_patch_is_worth_what_it_weighs(channels):
    weight = weights(channels)  # 2 x 3 patches of 8 pixels
    heat = explain(weighing(weight), torch.ones(2, *weight.shape))
    expected = weight.sum(0).view(2, 8, 3, 8).sum((1, 3))  # (2, 3)
    assert heat.shape == (2, 2, 3) and heat.dtype == torch.float32
    torch.testing.assert_close(heat, expected.expand(2, 2, 3))


def test_the_only_patch_that_matters_is_found():
    weight = torch.zeros(3, 16, 24)
    weight[:, 8:, 8:16] = 0.75 / (3 * 8 * 8)
    heat = explain(weighing(weight), torch.ones(1, 3, 16, 24))
    torch.testing.assert_close(heat, torch.tensor([[[0.0, 0, 0], [0, 0.75, 0]]]))


def test_the_class_is_the_models_answer_unless_another_is_asked_for():
    weight = weights(total=0.3)
    model, images = weighing(weight), torch.ones(2, *weight.shape)
    answer = explain(model, images)
    assert (answer < 0).all(), "class 0 is answered, and gains what class 1 loses"
    torch.testing.assert_close(
        explain(model, images, targets=torch.tensor([0, 1])), answer * torch.tensor([[[1]], [[-1]]])
    )


@pytest.mark.parametrize(("window", "grid"), [((5, 7), (3, 4)), ((4, 4), (4, 6)), ((13, 22), (1, 1))])
def test_windows_tile_the_image_and_are_cut_off_by_the_edges(window, grid):
    model, images = weighing(weights(5, 13, 22)), pictures(2, 5, 13, 22)
    targets = torch.tensor([1, 0])
    heat = explain(model, images, targets, window=window)
    (height, width), chosen = window, (torch.arange(2), targets)
    plain = model(images).softmax(1)[chosen]
    assert heat.shape == (2, *grid)
    for i, j in itertools.product(*map(range, grid)):
        covered = images.clone()
        covered[:, :, i * height : (i + 1) * height, j * width : (j + 1) * width] = 0
        torch.testing.assert_close(heat[:, i, j], plain - model(covered).softmax(1)[chosen])


def test_with_several_labels_the_probability_is_a_sigmoid():
    weight = weights()
    model, images = weighing(weight, multi_label=True), torch.ones(1, *weight.shape)
    heat = explain(model, images, targets=torch.tensor([1]), window=(16, 8))
    left = 0.8 - weight.sum(0).view(16, 3, 8).sum((0, 2))  # p where each third is covered
    torch.testing.assert_close(heat[0, 0], 0.8 / 1.8 - left / (1 + left))


@pytest.mark.parametrize("batch", [1, 4, 5, 1000])
def test_the_model_sees_at_most_a_batch_and_the_answer_is_the_same(batch):
    model, images = weighing(weights()), pictures(3, 3, 16, 24)
    targets = model(images).argmax(1)
    expected, counting = explain(model, images, targets, window=(5, 5)), Counting(model)
    heat = explain(model, images, targets, window=(5, 5), batch=batch)
    torch.testing.assert_close(heat, expected)
    assert max(counting.shown) <= batch
    assert heat.numel() == sum(counting.shown) - len(images)


def test_no_images_have_no_heat():
    assert explain(weighing(weights()), torch.empty(0, 3, 16, 24)).shape == (0, 2, 3)


@pytest.mark.parametrize("name", QUICK)
def test_a_map_is_of_patches_and_in_a_pyramid_of_about_14_windows_a_side(name):
    model = shaken(TINY[name])
    size, targets = model.config.image_size, torch.tensor([4])
    images = pictures(1, 3, *size)
    heat = explain(model, images, targets=targets)
    model.eval()
    window = (
        [round(length / 14) for length in size] if isinstance(model.config, StagedConfig) else model.config.patch_size
    )
    assert heat.shape == (1, *(-(-length // side) for length, side in zip(size, window)))
    covered = images.clone()
    covered[:, :, window[0] : 2 * window[0], : window[1]] = 0
    with torch.no_grad():
        plain, after = (model.probabilities(model(each))[:, 4] for each in (images, covered))
    torch.testing.assert_close(heat[:, 1, 0], plain - after, atol=1e-5, rtol=1e-4)


def test_a_patch_larger_than_the_image_is_the_image():
    weight = weights(3, 5, 11)
    assert explain(weighing(weight), torch.ones(1, 3, 5, 11)).shape == (1, 1, 2)


def test_the_model_is_as_it_was_and_no_gradient_is_kept():
    model = weighing(weights()).train()
    heat = explain(model, pictures(1, 3, 16, 24))
    assert model.training and not heat.requires_grad
