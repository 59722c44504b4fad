"""Masked patch prediction against a twin in NumPy that goes patch by patch: what is corrupted, the colours, the loss."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from tests.objectives.masked import (
    KINDS,
    MEAN,
    STD,
    cross_entropy,
    inputs_of,
    make,
    names,
    pictures,
    predictions_by_hand,
    preprocessing,
    size_of,
    steps,
)
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.objectives import MaskedPatch
from vitrail.objectives.masking import TARGETS, dequantise_colours, quantise_colours

PAPERS = (224, 224)


def class_by_hand(colour):
    """Three bits a channel, written one channel after another."""
    bits = "".join(format(min(int(value * 8), 7), "03b") for value in colour)
    return int(bits, 2)


def averaged_by_hand(patch, side):
    """(C, P, Q) to the colours of ``side`` x ``side`` parts, from floor(i P / side) to ceil((i + 1) P / side) - 1."""
    (height, width), colours = patch.shape[1:], []
    for row, column in itertools.product(range(side), repeat=2):
        top, bottom = row * height // side, -(-(row + 1) * height // side)
        left, right = column * width // side, -(-(column + 1) * width // side)
        colours.append(patch[:, top:bottom, left:right].mean((1, 2)))
    return colours


def loss_by_hand(objective, inputs):
    """The mean loss, and each (prediction, label) of classes."""
    images, corrupted, source = inputs
    config = objective.encoder.config
    (height, width), values = config.patch_size, pictures(config).double().numpy()
    predicted = predictions_by_hand(objective, images, source)
    losses, answers = [], []
    for image, (row, column) in itertools.product(range(len(images)), np.ndindex(predicted.shape[1:3])):
        if not corrupted[image, row * predicted.shape[2] + column]:
            continue
        patch = values[image, :, row * height : (row + 1) * height, column * width : (column + 1) * width]
        answer = predicted[image, row, column]
        if objective.target == "pixels":
            losses.append(np.square(answer - patch.flatten()).mean())
            continue
        colours = averaged_by_hand(patch, 4 if objective.target == "downsized" else 1)
        for logits, colour in zip(np.split(answer, len(colours)), colours):
            losses.append(cross_entropy(logits, class_by_hand(colour)))
            answers.append((logits.argmax(), class_by_hand(colour)))
    return np.mean(losses), answers


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, "mean") for name in KINDS), *itertools.product(["vit, no norm", "pvt"], ["downsized", "pixels"])],
)
def test_the_loss_is_that_of_the_twin(name, target):
    objective = make(KINDS[name], "patch", target).eval()
    inputs = inputs_of(objective)
    with torch.no_grad():
        loss, measured = objective(*inputs)
        expected, answers = loss_by_hand(objective, inputs)
    np.testing.assert_allclose(loss, expected, rtol=2e-5)
    if target == "pixels":
        np.testing.assert_allclose(measured["rmse"], expected**0.5, rtol=1e-5)
        return
    assert len({label for _, label in answers}) > 3  # a twin whose labels were all alike would prove nothing
    assert measured["accuracy"] == pytest.approx(np.mean([found == label for found, label in answers]))


# colours


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_classes_are_counted_as_the_twin_counts_them(channels):
    colours = torch.rand(3000, channels, generator=torch.Generator().manual_seed(0))
    colours[:100] = (colours[:100] * 9).floor() / 8  # on the borders of the levels, 1.0 included
    found = np.bincount(quantise_colours(colours).numpy(), minlength=8**channels)
    expected = np.bincount([class_by_hand(colour) for colour in colours.tolist()], minlength=8**channels)
    assert np.array_equal(found, expected)
    assert (found > 0).sum() > min(8**channels - 1, 400)


def test_one_falls_in_the_highest_level_and_zero_in_the_lowest():
    assert quantise_colours(torch.ones(3)) == 511
    assert quantise_colours(torch.zeros(3)) == 0
    assert quantise_colours(torch.tensor([1.0, 0.0, 0.124])) == 7 * 64
    assert quantise_colours(torch.tensor([0.0, 0.125, 0.999])) == 8 + 7


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_each_class_has_its_colour(channels):
    classes = torch.arange(8**channels)
    colours = dequantise_colours(classes, channels)
    assert torch.equal(quantise_colours(colours), classes)
    assert (colours.min(), colours.max()) == (1 / 16, 15 / 16)


def test_five_channels_still_have_colours():
    objective = make(TINY["vit"], "patch", shake=False, in_channels=5)
    assert objective.head.proj.out_features == 8**5
    losses = steps(objective, inputs_of(objective))
    assert losses[2] < losses[1] < losses[0]


# what is corrupted


@pytest.mark.parametrize(
    ("share", "size", "masked", "swapped", "kept"),
    [
        (0.5, PAPERS, 78, 10, 10),
        (0.15, PAPERS, 23, 3, 3),
        (0.5, (16, 80), 2, 0, 0),
        (0.01, (64, 48), 1, 0, 0),
        (1.0, (96, 64), 20, 2, 2),
    ],
)
def test_the_numbers_of_each_kind_are_exact(share, size, masked, swapped, kept):
    encoder = create_backbone(TINY["vit"], patch_size=16)
    objective = MaskedPatch(encoder, preprocessing(), share=share)
    corrupted, source = objective.draw(names(30), size, 5)
    own = torch.arange(corrupted.shape[1])
    assert corrupted.dtype == torch.bool
    assert source.dtype == torch.int64
    assert (corrupted.sum(1) == masked + swapped + kept).all()
    assert ((source == -1).sum(1) == masked).all()
    elsewhere = (source != own) & (source >= 0)
    assert (elsewhere.sum(1) == swapped).all()
    assert not ((source != own) & ~corrupted).any()
    assert source.max() < len(own)


def test_a_replaced_patch_is_any_other_patch_of_the_same_image():
    objective = make(TINY["vit"], "patch")
    _, source = objective.draw(names(2000), (24, 32), 0)
    own = torch.arange(12).expand_as(source)
    elsewhere = (source != own) & (source >= 0)
    pairs = {(place, number) for place, number in zip(own[elsewhere].tolist(), source[elsewhere].tolist())}
    assert pairs == {(place, number) for place in range(12) for number in range(12) if place != number}


def test_draws_are_each_images_own():
    objective = make(TINY["vit"], "patch")
    whole = objective.draw(names(20), PAPERS, 5)
    part = objective.draw(names(6, first=9), PAPERS, 5)
    for one, other in zip(whole, part, strict=True):
        assert torch.equal(one[9:15], other)
        assert len(one.unique(dim=0)) == 20
    assert not torch.equal(objective.draw(names(20), PAPERS, 6)[0], whole[0])


@pytest.mark.parametrize("name", ["swin", "pvt"])
def test_a_cell_of_a_pyramid_is_corrupted_as_a_whole(name):
    objective = make(TINY[name], "patch")
    (r, s), (rows, columns) = objective.head.repeats, (6, 7)
    size = tuple(count * side for count, side in zip((rows, columns), objective.encoder.config.cell))
    corrupted, source = objective.draw(names(10), size, 0)
    cells = corrupted.view(10, rows, r, columns, s)
    assert (cells == cells[:, :, :1, :, :1]).all()
    assert (cells[:, :, 0, :, 0].sum((1, 2)) == 21).all()
    kinds = set()
    for image, place in np.ndindex(*source.shape):
        number, first = int(source[image, place]), place // (columns * s) // r * r * columns * s
        corner = first + place % (columns * s) // s * s  # the patch in the upper left corner of the same cell
        other = int(source[image, corner])
        expected = -1 if other < 0 else other + place - corner
        assert number == expected
        kinds.add("masked" if number < 0 else "own" if number == place else "another's")
    assert len(kinds) == 3


# what is shown


@pytest.mark.parametrize("name", ["vit, no norm", "pvt"])  # oblong patches, and cells of several
@pytest.mark.parametrize("target", TARGETS)
def test_pictures_are_grey_where_patches_are_corrupted_and_then_have_the_predicted_colours(name, target):
    objective = make(KINDS[name], "patch", target)
    config, (images, corrupted, source) = objective.encoder.config, inputs_of(objective)
    with torch.no_grad():  # each patch of a cell, and each part of a patch, has one answer whatever the image
        objective.head.proj.weight.zero_()
        answers = objective.head.proj.bias.view(*objective.head.repeats, -1)
    shown = objective.show(images, corrupted, source)
    assert shown.keys() == {"masked", "predicted"}
    mean, std = (torch.tensor(each[:3]).view(3, 1, 1) for each in (MEAN, STD))
    height, width = config.patch_size
    rows, columns = (length // patch for length, patch in zip(size_of(config), config.patch_size))
    for image, row, column in np.ndindex(len(images), rows, columns):
        where = (image, ..., slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width))
        given = pictures(config)[where]
        grey, colours = ((shown[each] * std + mean)[where] for each in ("masked", "predicted"))
        if not corrupted[image, row * columns + column]:
            assert max((grey - given).abs().max(), (colours - given).abs().max()) < 1e-5
            continue
        assert (grey - 0.5).abs().max() < 1e-5
        answer = answers[row % answers.shape[0], column % answers.shape[1]]
        if target == "pixels":
            expected = answer.view(3, height, width).clamp(0, 1)
        else:
            side = 4 if target == "downsized" else 1
            best = dequantise_colours(answer.view(side, side, -1).argmax(2), 3).permute(2, 0, 1)  # (C, side, side)
            expected = best.repeat_interleave(height // side, 1).repeat_interleave(width // side, 2)
        assert (colours - expected).abs().max() < 1e-5


# mistakes


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'downsize'\n.*did you mean 'downsized'"):
        make(TINY["vit"], "patch", "downsize")


def test_more_than_five_channels_have_too_many_colours():
    encoder = create_backbone(TINY["vit"], in_channels=6)
    with pytest.raises(ConfigError, match=r"6 channels .* 262,144 classes\n.*target='pixels'"):
        MaskedPatch(encoder, preprocessing())


def test_preprocessing_is_of_the_encoders_channels():
    encoder = create_backbone(TINY["vit"], in_channels=1)
    with pytest.raises(ConfigError, match=r"has 3 channels, the encoder 1\n.*mean and std"):
        MaskedPatch(encoder, preprocessing(3))
