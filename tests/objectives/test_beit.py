"""Masked codes: the loss against NumPy, the mask, what is measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from tests.objectives.masked import KINDS, VOCABULARY, cross_entropy, inputs_of, make, names, predictions_by_hand
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.objectives import MaskedCodes
from vitrail.objectives.masking import block_mask, cut_patches


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_is_the_mean_cross_entropy_of_the_hidden_patches(name):
    objective = make(KINDS[name], "codes").eval()
    images, hidden, codes = inputs_of(objective)
    own = torch.arange(hidden.shape[1]).expand_as(hidden)
    with torch.no_grad():
        loss, measured = objective(images, hidden, codes)
        predicted = predictions_by_hand(objective, images, own.masked_fill(hidden, -1))
    answers = [
        (logits, code)
        for logits, is_hidden, code in zip(predicted.reshape(-1, VOCABULARY), hidden.flatten(), codes.flatten())
        if is_hidden
    ]
    np.testing.assert_allclose(loss, np.mean([cross_entropy(*each) for each in answers]), rtol=2e-5)
    right = np.mean([logits.argmax() == code for logits, code in answers])
    assert measured["accuracy"] == pytest.approx(right)


def test_codes_of_what_shows_are_not_read():
    objective = make(TINY["vit"], "codes").eval()
    images, hidden, codes = inputs_of(objective)
    loss = objective(images, hidden, codes)[0]
    assert torch.equal(objective(images, hidden, torch.where(hidden, codes, 0))[0], loss)
    assert not torch.equal(objective(images, hidden, torch.where(hidden, 0, codes))[0], loss)


def test_hidden_patches_are_shown_grey_and_with_the_codes_that_are_predicted():
    objective = make(TINY["vit"], "codes").eval()
    images, hidden, codes = inputs_of(objective)
    assert list(objective.show(images, hidden, codes)) == ["masked"]
    given = []
    objective.drawn = lambda codes, size: given.append(codes) or images
    masked = objective.show(images, hidden, codes)["masked"]
    patch_size = objective.encoder.config.patch_size
    patches = cut_patches(masked, patch_size)
    assert (patches[hidden] == 0).all()
    assert torch.equal(patches[~hidden], cut_patches(images, patch_size)[~hidden])
    told, predicted = given
    assert torch.equal(told, codes)
    assert torch.equal(predicted[~hidden], codes[~hidden])
    accuracy = objective(images, hidden, codes)[1]["accuracy"]
    assert (predicted == codes)[hidden].float().mean() == accuracy
    assert not torch.equal(predicted, codes)


def test_the_papers_share_of_the_patches_is_hidden_in_blocks():
    objective = MaskedCodes(create_backbone(TINY["beit"], patch_size=16))
    (hidden,) = objective.draw(names(30), (224, 224), 5)
    assert hidden.dtype == torch.bool
    assert (hidden.sum(1) == 75).all()
    assert np.array_equal(hidden.numpy(), block_mask(names(30), (14, 14), 75, 5))
    assert torch.equal(objective.draw(names(6, first=9), (224, 224), 5)[0], hidden[9:15])


@pytest.mark.parametrize("name", ["swin", "pvt"])
def test_cells_of_a_pyramid_are_hidden_as_a_whole(name):
    objective = make(TINY[name], "codes")
    (r, s), (down, across) = objective.head.repeats, objective.encoder.config.cell
    (hidden,) = objective.draw(names(10), (6 * down, 7 * across), 0)
    cells = hidden.view(10, 6, r, 7, s)
    assert (cells == cells[:, :, :1, :, :1]).all()
    assert (cells[:, :, 0, :, 0].sum((1, 2)) == round(75 / 196 * 42)).all()


def test_a_vocabulary_is_a_number_of_codes():
    for vocabulary in (1, 0, 8192.0):
        with pytest.raises(ConfigError, match=rf"vocabulary is {vocabulary}\n.*from 2"):
            MaskedCodes(create_backbone(TINY["vit"]), vocabulary)
