"""What the measures of translation and permutation say of models whose answer is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.conftest import shaken
from tests.models.tiny import QUICK, SHALLOW, TINY
from vitrail.analysis import equivariance
from vitrail.analysis.equivariance import (
    AT_ONCE,
    measure_map_equivariance,
    measure_permutation_response,
    measure_shift_response,
)
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.models.backbone import takes_subsets
from vitrail.tasks.classification.classifier import create_classifier


def build(name="vit", **changes):
    return shaken(create_backbone(replace(TINY[name], **changes))).double().eval()


def draw(model, *, batch=3, more=0):
    height, width = model.config.image_size
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, model.config.in_channels, height + more, width + more, generator=generator).double()


def tiled(model, batch=3):
    """Images of twice the size that go on, where a window ends, as it begins."""
    return draw(model, batch=batch).repeat(1, 1, 2, 2)


class Mapping(nn.Module):
    """One feature map that a function makes of the image, each of its cells ``stride`` pixels wide."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: tuple[int, int] = (12, 12), stride: int = 1) -> None:
        super().__init__()
        patch = (stride, stride)
        self.config = SimpleNamespace(image_size=size, patch_size=patch, cells=[patch], in_channels=1)
        self.function = function
        self.unused = nn.Parameter(torch.zeros(()))

    def feature_maps(self, images: Tensor) -> list[Tensor]:
        return [self.function(images)]


# Shifts.


def test_a_shift_moves_the_answer_by_one_minus_the_cosine_and_changes_the_best_class_as_often_as_counted():
    model = build()
    images = draw(model, batch=AT_ONCE + 3, more=8)
    found = measure_shift_response(model, images)
    assert list(found) == [1, 2, 4, 8]
    features, moved = (model.pool(model.forward_features(images[:, :, by : by + 32, by : by + 32])) for by in (0, 4))
    expected = 1 - F.cosine_similarity(features, moved).mean()
    pairs = [(a, b) for a in range(len(images)) for b in range(len(images)) if a != b]
    apart = 1 - torch.stack([F.cosine_similarity(features[a], features[b], dim=0) for a, b in pairs]).mean()
    changed = (model.head(features).argmax(1) != model.head(moved).argmax(1)).double().mean()
    assert 0 < changed < 1
    assert found[4] == pytest.approx([expected.item(), apart.item(), changed.item()], abs=1e-12)
    assert found[4].moved != found[8].moved


@pytest.mark.parametrize(
    ("patch", "shifts"), [((8, 8), [1, 2, 4, 8]), ((4, 16), [1, 2, 4, 8, 16]), ((2, 32), [1, 2, 4, 8, 16, 32])]
)
def test_shifts_grow_to_whole_patches(patch, shifts):
    model = build(patch_size=patch)
    assert list(measure_shift_response(model, draw(model, batch=1, more=32))) == shifts


def test_a_vit_without_positions_does_not_see_a_periodic_image_move_by_a_patch():
    model = build(positions="none")
    found = measure_shift_response(model, tiled(model))
    assert found[8].moved < 1e-12 and found[8].changed == 0
    assert found[2].moved > 1e-4


def test_a_vit_with_positions_does():
    model = build()
    assert measure_shift_response(model, tiled(model))[8].moved > 1e-4


def test_one_image_has_no_other_and_no_head_no_best_class():
    model = build(classes=0)
    assert measure_shift_response(model, draw(model, batch=1, more=8))[1][1:] == (None, None)


def test_a_constant_image_does_not_move():
    for name in ("vit", "bit"):
        model = build(name)
        found = measure_shift_response(model, torch.full_like(draw(model, more=8), 0.7))
        assert found[4] == (0, pytest.approx(0, abs=1e-12), 0)


# Feature maps.


def lin(a: Tensor, b: Tensor) -> float:
    """Lin's concordance of two samples, from its definition."""
    a, b = a.flatten().numpy(), b.flatten().numpy()
    return 2 * np.cov(a, b, bias=True)[0, 1] / (a.var() + b.var() + (a.mean() - b.mean()) ** 2)


def test_a_periodic_image_moves_the_map_of_a_vit_without_positions_exactly():
    model = build(positions="none", image_size=(48, 48))
    found = measure_map_equivariance(model, tiled(model))
    assert [(each.stride, each.margin) for each in found] == [((8, 8), 1)] * 3
    assert all(each.concordance == pytest.approx(1, abs=1e-10) for each in found)


def test_positions_and_patches_that_leave_spoil_it():
    placed, free = (build(positions=each, image_size=(48, 48)) for each in ("learned", "none"))
    assert all(each.concordance < 1 - 1e-3 for each in measure_map_equivariance(placed, tiled(placed)))
    leaving = measure_map_equivariance(free, draw(free, more=8))
    assert all(each.concordance < 1 - 1e-6 for each in leaving[1:])


def test_a_convolution_moves_its_map_but_for_the_border_that_zeros_reach(monkeypatch):
    kernel = torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(0)).double()
    model = Mapping(lambda images: F.conv2d(images, kernel, padding=1, stride=2), stride=2)
    images = draw(model, more=2)
    assert measure_map_equivariance(model, images) == [((2, 2), 1, 1.0)]
    monkeypatch.setattr(equivariance, "MARGIN", 0)
    (whole,) = measure_map_equivariance(model, images)
    assert whole.margin == 0 and whole.concordance < 0.99


def test_the_measure_is_lins_concordance(monkeypatch):
    ramp = torch.arange(12.0).double()[:, None] / 5
    model = Mapping(lambda images: images * (1 + ramp) + ramp.square())
    images = draw(model, batch=1, more=1)
    still, moved = (model.function(images[:, :, top : top + 12, top : top + 12]) for top in (0, 1))
    for margin in (0, 2):
        monkeypatch.setattr(equivariance, "MARGIN", margin)
        (found,) = measure_map_equivariance(model, images)
        inner = slice(margin, 11 - margin)
        expected = lin(still[:, :, 1:, 1:][:, :, inner, inner], moved[:, :, inner, inner])
        assert 0.1 < expected < 0.99
        assert found.concordance == pytest.approx(expected, abs=1e-12)


def test_maps_with_nothing_in_common_have_a_concordance_of_about_nothing():
    fixed = torch.randn(1, 4, 60, 60, generator=torch.Generator().manual_seed(0)).double()
    model = Mapping(lambda images: fixed.expand(len(images), -1, -1, -1), size=(60, 60))
    assert abs(measure_map_equivariance(model, draw(model, more=1))[0].concordance) < 0.05


def test_what_is_the_same_everywhere_cannot_be_seen_to_move():
    model = build(positions="none")
    assert all(each.concordance is None for each in measure_map_equivariance(model, torch.ones(2, 3, 40, 40).double()))


@pytest.mark.parametrize(
    ("size", "margin", "measured"),
    [((3, 3), 0, True), ((2, 2), 0, False), ((1, 9), 0, False), ((4, 4), 0, True), ((5, 4), 1, True)],
)
def test_a_margin_shrinks_until_two_cells_are_left(size, margin, measured):
    model = Mapping(lambda images: images, size=size)
    assert measure_map_equivariance(model, draw(model, more=1)) == [((1, 1), margin, 1.0 if measured else None)]


def test_a_map_that_cannot_be_measured_needs_no_room():
    model = build("bit")  # maps of 8 x 8 and 4 x 4
    assert [each.stride for each in measure_map_equivariance(model, draw(model, more=8))] == [(4, 4), (8, 8)]
    small = build("bit", image_size=(8, 8))  # of 2 x 2 and 1 x 1
    assert [each.concordance for each in measure_map_equivariance(small, draw(small))] == [None, None]


def test_batches_are_added_up():
    model = build()
    images = draw(model, batch=AT_ONCE + 2, more=8)
    whole, first, rest = (
        measure_map_equivariance(model, each) for each in (images, images[:AT_ONCE], images[AT_ONCE:])
    )
    for both, *parts in zip(whole, first, rest):
        low, high = sorted(each.concordance for each in parts)
        assert low < both.concordance < high


@pytest.mark.parametrize("name", SHALLOW)
def test_a_map_grows_by_a_cell_for_each_of_its_strides(name):
    model = shaken(create_backbone(SHALLOW[name])).double().eval()
    images = draw(model, batch=1)
    maps = model.feature_maps(images)
    strides = model.config.cells
    below, beside = 2 * strides[-1][0], 3 * strides[-1][1]
    larger = model.feature_maps(F.pad(images, (0, beside, 0, below)))
    for before, after, (down, right) in zip(maps, larger, strides):
        assert after.shape[2:] == (before.shape[2] + below / down, before.shape[3] + beside / right)


# Permutations.


def test_a_vit_without_positions_does_not_see_its_patches_change_places():
    model = build(positions="none")
    for response in measure_permutation_response(model, draw(model))[:2]:
        assert response.moved < 1e-12 and response.changed == 0


@pytest.mark.parametrize("changes", [{}, {"pool": "gap", "registers": 2}, {"pool": "map"}, {"positions": "sincos2d"}])
def test_all_that_a_vit_knows_of_places_is_in_its_positions(changes):
    model = build(**changes)
    pixels, unplaced, _ = measure_permutation_response(model, draw(model))
    assert pixels.moved > 1e-6
    assert unplaced.moved < 1e-12 and unplaced.changed == 0 and unplaced.apart > 1e-4


@pytest.mark.parametrize(
    ("name", "changes"),
    [("vit", {"positions": "relative"}), ("vit", {"positions_at": "every"}), ("beit", {})],
    ids=["relative", "every layer", "beit"],
)
def test_positions_inside_the_encoder_are_not_left_out(name, changes):
    model = build(name, **changes)
    assert measure_permutation_response(model, draw(model)).unplaced.moved > 1e-6


def test_squares_of_a_patch_in_another_order_are_the_patches_in_that_order():
    model = build()
    images = draw(model)
    seen = shown(model, images)
    before, after = model.patchify(images).x[0], model.patchify(seen).x[0]
    order = torch.cdist(after, before).argmin(1)
    assert sorted(order.tolist()) == list(range(16))
    assert (order != torch.arange(16)).all()
    torch.testing.assert_close(model.patchify(seen).x, model.patchify(images).x[:, order])


def shown(model, images):
    """What the model is shown once the parts of the images have changed places."""
    looks, look = [], model.forward_features
    model.forward_features = lambda images: looks.append(images) or look(images)
    measure_permutation_response(model, images)
    return looks[1]


def test_what_fills_no_square_stays():
    model = build("bit, odd map")  # 34 x 27 pixels
    images = draw(model)
    seen = shown(model, images)  # in patches of 4
    torch.testing.assert_close(seen[:, :, 32:], images[:, :, 32:])
    torch.testing.assert_close(seen[:, :, :, 24:], images[:, :, :, 24:])
    squares, cut = (each[:, :, :32, :24].unfold(2, 4, 4).unfold(3, 4, 4) for each in (images, seen))
    assert (squares != cut).all()
    torch.testing.assert_close(squares.sum((2, 3)), cut.sum((2, 3)))


# All of them.


def measures(model, **given):
    """Every number that there is, or None."""
    images = draw(model, more=32, **given)
    pixels, unplaced, _ = measure_permutation_response(model, draw(model, **given))
    responses = [pixels, *([] if unplaced is None else [unplaced]), *measure_shift_response(model, images).values()]
    return [number for each in responses for number in each], measure_map_equivariance(model, images), unplaced


@pytest.mark.parametrize("name", QUICK)
def test_every_kind_of_architecture_is_measured(name):
    model = build(name)
    numbers, maps, unplaced = measures(model)
    assert np.isfinite(numbers).all() and min(numbers) >= 0
    seen = model.feature_maps(draw(model))
    assert all(-1 <= each.concordance <= 1 + 1e-12 for each in maps if each.concordance is not None)
    assert [each.concordance is None for each in maps] == [each.shape[2] * each.shape[3] <= 4 for each in seen]
    assert (unplaced is not None) == takes_subsets(model.config)


@pytest.mark.parametrize("channels", [1, 5])
def test_any_channels_and_oblong_images_and_patches_are_measured(channels):
    model = build(in_channels=channels, image_size=(32, 48), patch_size=(8, 16))
    numbers, maps, _ = measures(model)
    assert np.isfinite(numbers).all()
    assert [each.stride for each in maps] == [(8, 16)] * 3


def test_a_classifier_is_measured_as_its_backbone_is():
    model = create_classifier(TINY["vit"], classes=7)
    shaken(model.backbone)
    assert measures(model) == measures(model.backbone)


def test_looking_leaves_the_model_the_images_and_the_global_generator_as_they_were():
    model = build().train()
    images = draw(model, more=32)
    before, state = images.clone(), torch.get_rng_state()
    (
        measure_shift_response(model, images),
        measure_map_equivariance(model, images),
        measure_permutation_response(model, images),
    )
    assert model.training and torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(images, before) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda m: measure_shift_response(m, draw(m, more=3)), r"35x35 pixels .* at least 40x40 pixels"),
        (lambda m: measure_map_equivariance(m, draw(m, more=7)), r"39x39 pixels .* at least 40x40 pixels"),
        (lambda m: measure_map_equivariance(m, draw(m)[:, :, 1:]), r"31x32 pixels .* at least 32x32 pixels"),
        (lambda m: measure_map_equivariance(m, draw(m, more=8)[:0]), r"images of shape \(0, 3, 40, 40\)"),
        (lambda m: measure_permutation_response(m, draw(m)[0]), r"images of shape \(3, 32, 32\)"),
        (lambda m: measure_permutation_response(m, draw(m)[:, :2]), r"\(3, 2, 32, 32\) for a model of 3 channels"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_words(look, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        look(build())
