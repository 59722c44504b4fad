"""How far a cell looks, of models whose kernels are known."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.conftest import shaken
from tests.models.tiny import QUICK, TINY
from vitrail.analysis.locality import AT_ONCE, measure_locality
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.tasks.classification.classifier import create_classifier


class Convolution(nn.Module):
    """One feature map: the image and a kernel (D, C, 3, 3), each cell looking around the first of its pixels."""

    def __init__(self, kernel: Tensor, stride: int = 1) -> None:
        super().__init__()
        self.config = SimpleNamespace(patch_size=(stride, stride), cells=[(stride, stride)])
        self.kernel = nn.Parameter(kernel.double())

    def feature_maps(self, images: Tensor) -> list[Tensor]:
        return [F.conv2d(images, self.kernel, stride=self.config.patch_size, padding=1)]


class Everywhere(nn.Module):
    """Two feature maps of which each cell is the mean of all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(patch_size=(2, 4), cells=[(2, 4), (4, 8)])
        self.unused = nn.Parameter(torch.zeros(()))

    def feature_maps(self, images: Tensor) -> list[Tensor]:
        mean, (height, width) = images.mean((1, 2, 3), keepdim=True), images.shape[2:]
        return [mean.expand(-1, 3, height // 2, width // 4), mean.expand(-1, 3, height // 4, width // 8)]


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()


def mean_distance(height, width, row, column):
    """Of all pixels from a point, by brute force."""
    far = [math.dist((y + 0.5, x + 0.5), (row, column)) for y in range(height) for x in range(width)]
    return sum(far) / len(far)


@pytest.mark.parametrize("channels", [1, 5])
def test_distances_are_weighted_with_squares(channels):
    kernel = torch.zeros(4, channels, 3, 3)
    kernel[:, :, 1, 1], kernel[:, :, 1, 2] = 1, -2  # squares: 1 here and 4 one pixel to the right
    (found,) = measure_locality(Convolution(kernel), draw(3, channels, 8, 10))
    assert found.stride == (1, 1)
    assert found.distance == pytest.approx(4 / 5)
    assert found.spread == pytest.approx((1 * 4 / 5 + 4 * 1 / 5) / 5)
    assert found.uniform == pytest.approx(mean_distance(8, 10, 4.5, 5.5))


def test_a_pixel_has_no_distance_from_itself():
    (found,) = measure_locality(Convolution(torch.eye(9)[4].view(1, 1, 3, 3)), draw(2, 1, 6, 6))
    assert found[1:3] == pytest.approx((0, 0), abs=1e-15)


def test_a_strided_convolution_looks_half_a_stride_off_the_middle_of_its_cell():
    (found,) = measure_locality(Convolution(torch.eye(9)[4].view(1, 1, 3, 3), stride=4), draw(2, 1, 16, 16))
    assert found.distance == pytest.approx(math.hypot(1.5, 1.5))
    assert found.spread == pytest.approx(0, abs=1e-15)


def test_a_cell_that_depends_on_all_pixels_alike_is_as_far_from_them_as_is_stated():
    first, second = measure_locality(Everywhere(), draw(2, 3, 8, 24))
    assert (first.stride, second.stride) == ((2, 4), (4, 8))
    assert first.distance == pytest.approx(first.uniform) == pytest.approx(mean_distance(8, 24, 5, 14))
    assert second.distance == pytest.approx(second.uniform) == pytest.approx(mean_distance(8, 24, 6, 12))
    assert first.spread == second.spread == pytest.approx(mean_distance(8, 24, 4, 12))


def test_what_depends_on_nothing_has_no_distance():
    (found,) = measure_locality(Convolution(torch.zeros(2, 1, 3, 3)), draw(2, 1, 8, 8))
    assert (found.distance, found.spread) == (None, None)
    assert found.uniform > 0


def test_an_image_that_a_cell_does_not_depend_on_counts_for_nothing():
    class Rectified(Convolution):
        def feature_maps(self, images: Tensor) -> list[Tensor]:
            return [each.relu() for each in super().feature_maps(images)]

    model = Rectified(torch.ones(1, 1, 3, 3))
    light = torch.ones(1, 1, 8, 8).double()
    assert measure_locality(model, torch.cat([light, -light])) == measure_locality(model, light)


def test_the_mean_over_images_is_that_of_each_however_many_are_shown_at_once():
    model = shaken(create_backbone(TINY["bit"])).double()
    images = draw(AT_ONCE + 1, 3, 32, 32)
    found = measure_locality(model, images)
    maps = model.feature_maps(pixels := images.requires_grad_())
    generator = torch.Generator().manual_seed(0)
    factors = [[torch.randn(n, each.shape[1], generator=generator) for each in maps] for n in (AT_ONCE, 1)]
    for place, (each, side) in enumerate(zip(maps, (8, 4))):
        cell = each[:, :, side // 2, side // 2] * torch.cat([of[place] for of in factors])
        weights = torch.autograd.grad(cell.sum(), pixels, retain_graph=True)[0].square().sum(1)
        rows = torch.arange(32)[:, None] + 0.5
        far = torch.hypot(rows - 16 - 16 / side, rows.T - 16 - 16 / side)
        expected = ((weights * far).sum((1, 2)) / weights.sum((1, 2))).mean()
        assert found[place].distance == pytest.approx(expected.item(), rel=1e-6)


def test_the_squared_gradient_of_a_random_combination_is_that_of_all_channels_on_average():
    kernel = torch.zeros(2, 1, 3, 3)
    kernel[0, 0, 1, 1], kernel[1, 0, 1, 2] = 1, 1  # either pixel has a channel of its own
    images = torch.zeros(1000, 1, 3, 3).double()
    (found,) = measure_locality(Convolution(kernel), images)
    assert found.distance == pytest.approx(1 / 2, abs=0.05)


@pytest.mark.parametrize("name", QUICK)
def test_every_kind_of_architecture_is_measured(name):
    model = shaken(create_backbone(TINY[name])).double()
    height, width = model.config.image_size
    found = measure_locality(model, draw(2, 3, height, width))
    assert len(found) == len(model.feature_maps(draw(1, 3, height, width)))
    assert all(0 < each.spread < math.hypot(height, width) for each in found)
    assert all(0 < each.distance < math.hypot(height, width) for each in found)


def test_oblong_and_constant_images_of_five_channels_are_measured():
    model = shaken(create_backbone(replace(TINY["vit"], in_channels=5))).double()
    for each in measure_locality(model, torch.full((1, 5, 24, 40), 0.3).double()):
        assert each.uniform == pytest.approx(mean_distance(24, 40, 12, 20))
        assert 0 < each.distance < 30


def test_a_classifier_is_measured_as_its_backbone_is():
    model = create_classifier(TINY["vit"], classes=7)
    images = draw(2, 3, 32, 32).float()
    assert measure_locality(model, images) == measure_locality(model.backbone, images)


def test_looking_leaves_the_model_the_images_and_the_global_generator_as_they_were():
    model = shaken(create_backbone(TINY["vit"])).double().train()
    images, state = draw(2, 3, 32, 32), torch.get_rng_state()
    with torch.no_grad():
        measure_locality(model, images)
        assert not torch.is_grad_enabled()
    assert model.training and not images.requires_grad and images.grad is None
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert torch.equal(images, draw(2, 3, 32, 32)) and torch.equal(torch.get_rng_state(), state)


def test_what_is_no_batch_is_refused():
    with pytest.raises(ConfigError, match=r"images of shape \(3, 32, 32\)"):
        measure_locality(create_backbone(TINY["vit"]), draw(3, 32, 32))
