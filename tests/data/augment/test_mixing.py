"""Mixup, CutMix and smoothing against cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch

from vitrail.data.augment import mixing
from vitrail.data.augment.mixing import draw_mixing, mix, smooth
from vitrail.data.augment.policy import POLICIES, Augment

MIXUP, CUTMIX = Augment(mixup=0.8), Augment(cutmix=1.0)


def ids_of(count, epoch=0):
    return np.stack([np.full(count, epoch), np.arange(count), np.zeros(count, int)], 1).astype(np.int64)


def batch(count=4, size=(20, 30)):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, *size, generator=generator), torch.eye(count)


def fixed(monkeypatch, *, weight, whether=0.0, switch=0.9, x=0.5, y=0.5):
    """Every draw as given: the weight that an image keeps, whether to mix, which way, and the middle of the box."""
    draws = np.array([[whether, switch, x, y]])
    monkeypatch.setattr(mixing, "betas", lambda *_, **__: np.array([[weight]]))
    monkeypatch.setattr(mixing, "uniforms", lambda *_, **__: draws)


def test_smoothing_by_hand():
    smoothed = smooth(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]), 0.2)
    assert torch.allclose(smoothed, torch.tensor([[0.85, 0.05, 0.05, 0.05], [0.45, 0.45, 0.05, 0.05]]))


def test_mixup_by_hand(monkeypatch):
    fixed(monkeypatch, weight=0.75)
    images = torch.tensor([0.0, 4.0, -8.0]).view(3, 1, 1, 1).expand(3, 1, 2, 2).contiguous()
    mixed, targets = mix(images, torch.eye(3), ids_of(3), MIXUP, seed=0)
    # each keeps three quarters and takes one of the image before it
    assert mixed[:, 0, 0, 0].tolist() == [-2.0, 3.0, -5.0]
    assert targets.tolist() == [[0.75, 0.0, 0.25], [0.25, 0.75, 0.0], [0.0, 0.25, 0.75]]


def test_cutmix_by_hand(monkeypatch):
    fixed(monkeypatch, weight=0.75, x=0.5, y=0.5)  # a quarter of the area: half of each side, in the middle
    images = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 8, 12).contiguous()
    mixed, targets = mix(images, torch.eye(3), ids_of(3), CUTMIX, seed=0)
    expected = images.clone()
    expected[:, :, 2:6, 3:9] = images.roll(1, 0)[:, :, 2:6, 3:9]
    assert torch.equal(mixed, expected)
    assert torch.equal(targets, torch.tensor([[0.75, 0.0, 0.25], [0.25, 0.75, 0.0], [0.0, 0.25, 0.75]]))


def test_a_box_that_the_edge_cuts_counts_for_what_is_left_of_it(monkeypatch):
    fixed(monkeypatch, weight=0.75, x=0.0, y=0.99)
    images, targets = batch(3, (8, 12))
    mixed, mixed_targets = mix(images, targets, ids_of(3), CUTMIX, seed=0)
    assert torch.equal(mixed[:, :, 5:, :3], images.roll(1, 0)[:, :, 5:, :3])
    assert torch.equal(mixed[:, :, :5], images[:, :, :5])
    assert torch.allclose(mixed_targets.diagonal(), torch.tensor(1 - 3 * 3 / 96))


def test_the_larger_part_may_be_kept(monkeypatch):
    fixed(monkeypatch, weight=0.25)
    images, targets = batch()
    kept = mix(images, targets, ids_of(4), replace(MIXUP, mix_major=True), seed=0)[1].diagonal()
    assert kept.tolist() == [0.75] * 4
    assert mix(images, targets, ids_of(4), MIXUP, seed=0)[1].diagonal().tolist() == [0.25] * 4


@pytest.mark.parametrize("policy", [MIXUP, CUTMIX, POLICIES["deit"]], ids=["mixup", "cutmix", "both"])
@pytest.mark.parametrize("each", ["batch", "image"])
def test_targets_say_how_much_of_the_partner_is_in_the_pixels(policy, each):
    policy = replace(policy, mix_each=each)
    ones = torch.tensor([1.0, 0.0]).repeat(8).view(16, 1, 1, 1).expand(16, 1, 20, 30).contiguous()
    for epoch in range(10):
        mixed, targets = mix(ones, torch.eye(16), ids_of(16, epoch), policy, seed=0)
        partner = torch.eye(16).roll(1, 0).bool()
        shares = torch.where(ones[:, 0, 0, 0] == 1, 1 - mixed.mean((1, 2, 3)), mixed.mean((1, 2, 3)))
        assert torch.allclose(targets[partner.to(torch.bool)], shares, atol=1e-5)
        assert torch.allclose(targets.sum(1), torch.ones(16))


def test_one_draw_for_the_batch_or_one_for_each_image():
    images, targets = batch(16)
    kept = mix(images, targets, ids_of(16), MIXUP, seed=0)[1].diagonal()
    assert len(kept.unique()) == 1
    kept = mix(images, targets, ids_of(16), replace(MIXUP, mix_each="image"), seed=0)[1].diagonal()
    assert len(kept.unique()) == 16


def test_the_first_image_draws_for_the_batch():
    images, targets = batch(8)
    first = mix(images, targets, ids_of(8), MIXUP, seed=0)
    other = ids_of(8)
    other[1:] += 100
    again = mix(images, targets, other, MIXUP, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    other[0, 0] = 1
    assert not torch.equal(first[0], mix(images, targets, other, MIXUP, seed=0)[0])
    assert not torch.equal(first[0], mix(images, targets, ids_of(8), MIXUP, seed=1)[0])


def test_weights_have_the_beta_distribution():
    each = replace(MIXUP, mix_each="image")
    _, shares, cut = draw_mixing(each, ids_of(3000), 0, (32, 32))
    assert not cut.any()
    assert scipy.stats.kstest(shares, scipy.stats.beta(0.8, 0.8).cdf).pvalue > 1e-3
    _, shares, _ = draw_mixing(replace(each, mix_major=True), ids_of(3000), 0, (32, 32))
    assert shares.max() <= 0.5


def test_cut_boxes_are_drawn_all_over_the_picture():
    boxes, shares, cut = draw_mixing(replace(CUTMIX, mix_each="image"), ids_of(3000), 0, (200, 300))
    assert cut.all()
    left, top, wide, tall = boxes.T
    assert ((left >= 0) & (left + wide <= 300) & (top >= 0) & (top + tall <= 200)).all()
    assert np.allclose(shares, wide * tall / 60_000)
    # uncut boxes have the picture's aspect, and areas that are uniform before the edge cuts any
    free = (left > 0) & (left + wide < 300) & (top > 0) & (top + tall < 200) & (tall > 20)
    assert np.abs(wide[free] / tall[free] - 1.5).max() < 0.15
    assert scipy.stats.kstest((left + wide / 2)[wide < 30] / 300, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("switch", "rate"), [(0.5, 0.5), (0.1, 0.1), (1.0, 1.0), (0.0, 0.0)])
def test_the_switch_chooses_between_the_two(switch, rate):
    policy = replace(POLICIES["deit"], mix_each="image", switch=switch)
    cut = draw_mixing(policy, ids_of(2000), 0, (32, 32))[2]
    assert scipy.stats.binomtest(int(cut.sum()), 2000, rate).pvalue > 1e-3


def test_some_are_not_mixed():
    policy = replace(MIXUP, mix_each="image", mix_probability=0.3)
    shares = draw_mixing(policy, ids_of(2000), 0, (32, 32))[1]
    assert scipy.stats.binomtest(int((shares > 0).sum()), 2000, 0.3).pvalue > 1e-3
    images, targets = batch()
    never = mix(images, targets, ids_of(4), replace(MIXUP, mix_probability=1e-9), seed=0)
    assert never[0] is images
    assert never[1] is targets


def test_an_image_alone_is_its_own_partner():
    images, targets = batch(1)
    mixed, mixed_targets = mix(images, targets, ids_of(1), MIXUP, seed=0)
    assert torch.allclose(mixed, images)
    assert torch.equal(mixed_targets, targets)
