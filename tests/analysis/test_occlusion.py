"""The fall of a probability when a window is covered is the one known by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from tests.analysis.weighing import Counting, pictures, shaken, weighing, weights
from tests.models.tiny import QUICK, TINY
from vitrail.analysis.occlusion import occlusion
from vitrail.errors import ConfigError


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_patch_is_worth_what_it_weighs(channels):
    weight = weights(channels)  # 2 x 3 patches of 8 pixels
    heat = occlusion(weighing(weight), torch.ones(2, *weight.shape))
    expected = weight.sum(0).view(2, 8, 3, 8).sum((1, 3))  # (2, 3)
    assert heat.shape == (2, 2, 3) and heat.dtype == torch.float32
    torch.testing.assert_close(heat, expected.expand(2, 2, 3))


def test_the_only_patch_that_matters_is_found():
    weight = torch.zeros(3, 16, 24)
    weight[:, 8:, 8:16] = 0.75 / (3 * 8 * 8)
    heat = occlusion(weighing(weight), torch.ones(1, 3, 16, 24))
    torch.testing.assert_close(heat, torch.tensor([[[0.0, 0, 0], [0, 0.75, 0]]]))


def test_the_class_is_the_models_answer_unless_another_is_asked_for():
    weight = weights(total=0.3)
    model, images = weighing(weight), torch.ones(2, *weight.shape)
    answer = occlusion(model, images)
    assert (answer < 0).all(), "class 0 is answered, and gains what class 1 loses"
    torch.testing.assert_close(
        occlusion(model, images, targets=torch.tensor([0, 1])), answer * torch.tensor([[[1]], [[-1]]])
    )


@pytest.mark.parametrize(
    ("window", "stride", "grid"), [((5, 7), (3, 4), (5, 6)), (4, 4, (4, 6)), ((13, 22), 9, (2, 3))]
)
def test_windows_may_overlap_and_are_cut_off_by_the_edges(window, stride, grid):
    model, images = weighing(weights(5, 13, 22)), pictures(2, 5, 13, 22)
    targets = torch.tensor([1, 0])
    heat = occlusion(model, images, targets=targets, window=window, stride=stride, fill=0.3)
    (height, width), (down, right) = ((each, each) if isinstance(each, int) else each for each in (window, stride))
    chosen = torch.arange(2), targets
    plain = model(images).softmax(1)[chosen]
    assert heat.shape == (2, *grid)
    for i in range(grid[0]):
        for j in range(grid[1]):
            covered = images.clone()
            covered[:, :, i * down : i * down + height, j * right : j * right + width] = 0.3
            torch.testing.assert_close(heat[:, i, j], plain - model(covered).softmax(1)[chosen])


def test_the_stride_is_the_window_unless_it_is_given():
    model, images = weighing(weights()), pictures(1, 3, 16, 24)
    assert torch.equal(occlusion(model, images, window=(4, 6)), occlusion(model, images, window=(4, 6), stride=(4, 6)))
    assert torch.equal(occlusion(model, images, stride=4), occlusion(model, images, window=8, stride=4))


def test_with_several_labels_the_probability_is_a_sigmoid():
    weight = weights()
    model, images = weighing(weight, multi_label=True), torch.ones(1, *weight.shape)
    heat = occlusion(model, images, targets=torch.tensor([1]), window=(16, 8))
    left = 0.8 - weight.sum(0).view(16, 3, 8).sum((0, 2))  # p where each third is covered
    torch.testing.assert_close(heat[0, 0], 0.8 / 1.8 - left / (1 + left))


@pytest.mark.parametrize("batch", [1, 4, 5, 1000])
def test_the_model_sees_at_most_a_batch_and_the_answer_is_the_same(batch):
    model, images = weighing(weights()), pictures(3, 3, 16, 24)
    expected, counting = occlusion(model, images, stride=5), Counting(model)
    heat = occlusion(model, images, stride=5, batch=batch)
    torch.testing.assert_close(heat, expected)
    assert max(counting.shown) <= batch
    assert heat.numel() == sum(counting.shown) - 2 * len(images)


def test_no_images_have_no_heat():
    assert occlusion(weighing(weights()), torch.empty(0, 3, 16, 24)).shape == (0, 2, 3)


@pytest.mark.parametrize("name", QUICK)
def test_a_map_is_of_patches_and_in_a_pyramid_of_about_14_windows_a_side(name):
    model = shaken(TINY[name])
    size, targets = model.config.image_size, torch.tensor([4])
    images = pictures(1, 3, *size)
    heat = occlusion(model, images, targets=targets)
    model.eval()
    window = [round(length / 14) for length in size] if model.config.STAGES else model.config.patch_size
    assert heat.shape == (1, *(-(-length // side) for length, side in zip(size, window)))
    covered = images.clone()
    covered[:, :, window[0] : 2 * window[0], : window[1]] = 0
    with torch.no_grad():
        plain, after = (model.probabilities(model(each))[:, 4] for each in (images, covered))
    torch.testing.assert_close(heat[:, 1, 0], plain - after, atol=1e-5, rtol=1e-4)


def test_a_patch_larger_than_the_image_is_the_image():
    weight = weights(3, 5, 11)
    assert occlusion(weighing(weight), torch.ones(1, 3, 5, 11)).shape == (1, 1, 2)


def test_the_model_is_as_it_was_and_no_gradient_is_kept():
    model = weighing(weights()).train()
    heat = occlusion(model, pictures(1, 3, 16, 24))
    assert model.training and not heat.requires_grad


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"window": (17, 4)}, "a window of 17x4 on images of 16x24 pixels"),
        ({"window": 0}, "window is 0"),
        ({"window": (4, -1)}, "window is (4, -1)"),
        ({"window": 3.5}, "window is 3.5"),
        ({"window": (4, 4, 4)}, "window is (4, 4, 4)"),
        ({"stride": 0}, "stride is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"targets": torch.tensor([0, 2])}, "target 2 for a model of 2 classes"),
        ({"targets": torch.tensor([-1, 0])}, "target -1 for a model of 2 classes"),
        ({"targets": torch.tensor([1])}, "targets of shape (1,) and torch.int64"),
        ({"targets": torch.tensor([0.0, 1.0])}, "targets of shape (2,) and torch.float32"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(given, what):
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        occlusion(weighing(weights()), pictures(2, 3, 16, 24), **given)
    assert caught.value.remedy


def test_one_image_without_a_batch_is_refused():
    with pytest.raises(ConfigError, match=re.escape("images of shape (3, 16, 24)")):
        occlusion(weighing(weights()), torch.ones(3, 16, 24))


def test_a_model_without_a_head_is_refused():
    headless = shaken(replace(TINY["vit"], classes=0))
    with pytest.raises(ConfigError, match="no head"):
        occlusion(headless, pictures(1, 3, 32, 32))
