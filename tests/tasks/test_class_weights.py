"""Weights of rare classes: those asked for, their loss, and what a model remembers of its training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.tasks.class_weights import choose_weights, find_counts, find_log_prior, share_classes
from vitrail.tasks.classification.classifier import label_loss, softmax_loss

CLASSES, COUNTS = ("ant", "bee", "cat"), np.array([900, 100, 0])


def test_named_weights_are_relative_to_the_other_classes_and_their_mean_over_the_images_is_one():
    weights = choose_weights({"bee": 5}, CLASSES, COUNTS)
    assert weights == pytest.approx([1 / 1.4, 5 / 1.4, 1 / 1.4])
    assert choose_weights("none", CLASSES, COUNTS) == [1, 1, 1]
    assert choose_weights("auto", CLASSES, COUNTS) == pytest.approx([1 / 1.2, 3 / 1.2, 3 / 1.2])
    with pytest.raises(ConfigError, match=r"names the class 'bea'.*\n.*did you mean 'bee'"):
        choose_weights({"bea": 5}, CLASSES, COUNTS)


def test_the_shares_in_the_loss_are_those_of_what_is_drawn_times_the_weights():
    shares = {"balance": True, "weights": "none"}, {"balance": False, "weights": "auto"}
    for how in shares:
        assert share_classes(COUNTS, CLASSES, **how) == pytest.approx([0.75, 0.25, 0])
    both = share_classes(COUNTS, CLASSES, balance=True, weights={"bee": 3})
    assert both == pytest.approx([0.5, 0.5, 0])


def test_the_prior_is_that_of_the_loss_and_classes_without_images_have_that_of_the_rarest():
    known = {"class_images": [900, 100, 0]}
    np.testing.assert_allclose(np.exp(find_log_prior(known, 3)), [0.9, 0.1, 0.1])
    np.testing.assert_allclose(
        np.exp(find_log_prior(known | {"class_shares": [0.5, 0.25, 0.25]}, 3)), [0.5, 0.25, 0.25]
    )


@pytest.mark.parametrize(
    "counts", [None, [1, 2], [1, 2, "3"], [0, 0, 0], [1, -1, 3], [1, float("nan"), 2], [1, True, 2]]
)
def test_counts_that_are_not_those_of_the_classes_are_not_known(counts):
    assert find_counts({"class_images": counts}, 3) is None
    with pytest.raises(ConfigError, match="not known how many images of each class"):
        find_log_prior({"class_images": counts}, 3)


def test_a_weighted_loss_is_a_plain_mean_over_images_by_hand():
    logits, weights = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, 2.0, 4.0])
    targets = torch.tensor([0, 1, 2, 0, 1, 1])
    soft = 0.8 * torch.nn.functional.one_hot(targets, 3) + 0.2 / 3
    p = logits.double().softmax(1)
    hard = -(weights.double()[targets] * p[range(6), targets].log()).mean()
    assert softmax_loss(logits, targets, weights=weights).item() == pytest.approx(hard.item(), rel=1e-6)
    mean = 0.8 * weights[targets] + 0.2 * weights.mean()  # of each soft target
    smooth = -(mean.double() * (soft.double() * p.log()).sum(1)).mean()
    assert softmax_loss(logits, soft, weights=weights).item() == pytest.approx(smooth.item(), rel=1e-6)
    parts = [softmax_loss(logits[rows], soft[rows], weights=weights) * len(rows) / 6 for rows in ([0, 1], [2, 3, 4, 5])]
    assert sum(parts).item() == pytest.approx(smooth.item(), rel=1e-6)
    torch.testing.assert_close(softmax_loss(logits, soft, weights=torch.ones(3)), softmax_loss(logits, soft))
    with pytest.raises(ConfigError, match="weights with the loss 'sigmoid'"):
        label_loss("sigmoid", weights=weights)
