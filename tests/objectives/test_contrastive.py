"""MoCo v3 and SimCLR: their losses in plain loops, what is trained and what only follows."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.models.conftest import shaken
from tests.models.tiny import TINY
from vitrail.errors import ConfigError
from vitrail.models import create_backbone, sketch
from vitrail.objectives.contrastive import (
    MoCo,
    SimCLR,
    cached_backward,
    make_head,
    moco_loss,
    nt_xent,
    pooled_width,
    spread,
)

KINDS = pytest.mark.parametrize("kind", [MoCo, SimCLR])


def make(kind, config=TINY["vit"], dtype=torch.float64, **changes):
    return shaken(kind(create_backbone(config), hidden=24, out=12, **changes)).to(dtype)


def views(count=6, size=(32, 32), channels=3, dtype=torch.float64):
    """Two views, each some noise away from images they share."""
    generator = torch.Generator().manual_seed(1)
    images, *noise = torch.randn(3, count, channels, *size, generator=generator).to(dtype)
    return [images + each for each in noise]


def rows(count=5, width=4):
    return torch.randn(2, count, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def cosine(one, other):
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def cross_entropy(logits, right):
    return math.log(sum(math.exp(each) for each in logits)) - logits[right]


def moco_by_hand(queries, keys, tau):
    losses = [cross_entropy([cosine(query, key) / tau for key in keys], number) for number, query in enumerate(queries)]
    return 2 * tau * sum(losses) / len(losses)


def nt_xent_by_hand(first, second, tau):
    both, count = [*first, *second], len(first)
    losses = []
    for number, one in enumerate(both):
        others = [index for index in range(2 * count) if index != number]
        logits = [cosine(one, both[index]) / tau for index in others]
        losses.append(cross_entropy(logits, others.index((number + count) % (2 * count))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("loss", "by_hand"), [(moco_loss, moco_by_hand), (nt_xent, nt_xent_by_hand)])
@pytest.mark.parametrize("tau", [0.1, 0.2, 1.0])
def test_the_loss_is_that_of_plain_loops(loss, by_hand, tau):
    first, second = rows()
    assert float(loss(first, second, tau)[0]) == pytest.approx(by_hand(first.numpy(), second.numpy(), tau), rel=1e-12)


@pytest.mark.parametrize("loss", [moco_loss, nt_xent])
def test_the_gradient_of_a_loss_is_that_of_finite_differences(loss):
    first, second = (each.requires_grad_() for each in rows().unbind())
    assert torch.autograd.gradcheck(lambda *given: loss(*given, 0.2)[0], (first, second))


@pytest.mark.parametrize("loss", [moco_loss, nt_xent])
def test_views_that_agree_are_found_and_lengths_do_not_count(loss):
    first, other = rows(width=16)
    lengths = torch.arange(1.0, 6.0)[:, None]
    value, found = loss(first, lengths * first, 0.1)
    assert found == 1
    assert value < loss(first, other, 0.1)[0]
    assert loss(first, first.roll(1, 0), 0.1)[1] == 0
    torch.testing.assert_close(loss(3 * first, other, 0.1), loss(first, other / 7, 0.1))


@pytest.mark.parametrize("loss", [moco_loss, nt_xent])
def test_a_loss_is_in_fp32_whatever_it_is_given(loss):
    first, second = rows().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = loss(first, second, 0.1)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(first.float(), second.float(), 0.1)[0])


def normed(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def through(head, x):
    """A head in numpy: every norm over all rows given."""
    linears = [each for each in head if isinstance(each, torch.nn.Linear)]
    norms = [each for each in head if isinstance(each, torch.nn.BatchNorm1d)]
    for number, (linear, norm) in enumerate(zip(linears, norms)):
        x = normed(x @ linear.weight.detach().numpy().T)
        if number < len(linears) - 1:
            x = np.maximum(x * norm.weight.detach().numpy() + norm.bias.detach().numpy(), 0)
    return x


def test_mocos_loss_is_that_of_both_searches():
    objective, inputs = make(MoCo), views()
    assert not torch.equal(*(next(each.parameters()) for each in (objective.encoder, objective.momentum_encoder)))
    features = [each.detach().numpy() for each in objective.features(*inputs)]
    keys = [through(objective.momentum_projector, each.numpy()) for each in objective.references(*inputs)]
    queries = [through(objective.predictor, through(objective.projector, each)) for each in features]
    expected = moco_by_hand(queries[0], keys[1], 0.2) + moco_by_hand(queries[1], keys[0], 0.2)
    loss, measured = objective(*inputs)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    found = [
        np.argmax([cosine(query, key) for key in theirs]) == number
        for ours, theirs in zip(queries, reversed(keys))
        for number, query in enumerate(ours)
    ]
    assert float(measured["accuracy"]) == pytest.approx(np.mean(found))


def test_simclrs_projector_norms_both_views_together():
    objective, inputs = make(SimCLR), views()
    features = [each.detach().numpy() for each in objective.features(*inputs)]
    projected = through(objective.projector, np.concatenate(features))
    loss, _ = objective(*inputs)
    assert loss.item() == pytest.approx(nt_xent_by_hand(projected[:6], projected[6:], 0.1), rel=1e-9)


@KINDS
def test_the_gradient_is_that_of_finite_differences(kind):
    objective, inputs = make(kind), views()
    trained = [each for each in objective.parameters() if each.requires_grad]
    generator = torch.Generator().manual_seed(3)
    way = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in trained]
    objective(*inputs)[0].backward()
    slope = sum((each.grad * step).sum() for each, step in zip(trained, way) if each.grad is not None)
    losses = []
    with torch.no_grad():
        for share in (1e-8, -2e-8):
            torch._foreach_add_(trained, way, alpha=share)
            losses.append(objective(*inputs)[0])
    torch.testing.assert_close((losses[0] - losses[1]) / 2e-8, slope, rtol=1e-4, atol=0)


def test_spread_is_1_for_all_directions_and_0_for_one():
    generator = torch.Generator().manual_seed(4)
    assert float(spread(torch.randn(20_000, 32, generator=generator))) == pytest.approx(1, abs=0.01)
    assert float(spread(torch.randn(1, 32).expand(50, -1) * torch.arange(1.0, 51.0)[:, None])) < 1e-6
    half = torch.randn(20_000, 32, generator=generator) * torch.tensor([1.0] * 16 + [0.0] * 16)
    assert float(spread(half)) == pytest.approx(math.sqrt(0.5), abs=0.01)


def test_measured_features_are_those_of_the_encoder_without_gradient():
    for kind in (MoCo, SimCLR):
        objective, inputs = make(kind), views()
        _, measured = objective(*inputs)
        assert not any(each.requires_grad for each in measured.values())
        torch.testing.assert_close(measured["batch_spread"], spread(objective.features(*inputs)[0]))


def run(objective, inputs, *, bf16=False, steps=2, lr=3e-3):
    """The loss before each of some updates on one batch, and after the last."""
    trained = torch.optim.AdamW([each for each in objective.parameters() if each.requires_grad], lr=lr)
    losses = []
    for step in range(steps + 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss, measured = objective(*inputs)
        assert loss.dtype == torch.float32
        assert all(torch.isfinite(each) for each in (loss, *measured.values()))
        losses.append(loss.item())
        if step < steps:
            trained.zero_grad()
            loss.backward()
            trained.step()
            objective.after_step((step + 1) / (steps + 1))
    return losses


# on oblong images of one channel, in bf16 where that is not slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MoCo, "vit"),
        (SimCLR, "vit"),
        *(pytest.param(MoCo, name, marks=pytest.mark.slow) for name in ("swin", "cait", "bit", "pvt")),
    ],
)
def test_two_updates_lower_the_loss_of_a_batch(kind, name):
    torch.manual_seed(0)
    objective = kind(create_backbone(replace(TINY[name], in_channels=1)), hidden=24, out=12)
    with torch.no_grad():  # as it begins, but no zeros, behind which two updates would not look
        for parameter in objective.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    losses = run(objective, views(8, (32, 48), 1, torch.float32), bf16=name != "bit")
    assert losses[2] < losses[0], losses


@KINDS
def test_every_trained_parameter_but_those_of_the_encoders_head_has_a_gradient(kind):
    objective = make(kind)
    objective(*views())[0].backward()
    without = {name for name, each in objective.named_parameters() if each.grad is None or not each.grad.any()}
    frozen = {"encoder.patch_embed.proj.weight", "encoder.patch_embed.proj.bias"} if kind is MoCo else set()
    unread = {"encoder.head.weight", "encoder.head.bias"}
    assert without == frozen | unread | {name for name in dict(objective.named_parameters()) if "momentum" in name}


@pytest.mark.parametrize("name", ["vit", "bit"])  # with a bias and without
def test_the_first_layer_stays_as_it_is_unless_asked(name):
    for freeze in (True, False):
        objective = MoCo(sketch(TINY[name]), hidden=8, out=4, freeze_patches=freeze)
        encoder = objective.encoder
        frozen = {name for name, each in encoder.named_parameters() if not each.requires_grad}
        owner = encoder.first_layer.removesuffix("weight")
        assert frozen == (
            {each for each in dict(encoder.named_parameters()) if each.startswith(owner)} if freeze else set()
        )
        assert not any(each.requires_grad for each in objective.momentum_encoder.parameters())


def test_the_momentum_encoder_follows_by_the_formula():
    objective = make(MoCo, momentum=0.9)
    before = {name: each.clone() for name, each in objective.state_dict().items()}
    for share, momentum in ((0.0, 0.9), (0.5, 0.95), (0.25, 1 - 0.1 * (math.cos(math.pi / 4) + 1) / 2), (1.0, 1.0)):
        objective.load_state_dict(before)
        objective.after_step(share)
        after = objective.state_dict()
        for name, old in before.items():
            expected = old
            if name.startswith("momentum_"):
                expected = momentum * old + (1 - momentum) * before[name.removeprefix("momentum_")]
            torch.testing.assert_close(after[name], expected, rtol=1e-12, atol=1e-12, msg=name)


def test_a_new_momentum_encoder_is_the_encoder():
    objective = MoCo(create_backbone(TINY["vit"]), hidden=24, out=12)
    state = objective.state_dict()
    slow = {name: each for name, each in state.items() if name.startswith("momentum_")}
    assert len(slow) == len(objective.encoder.state_dict()) + len(objective.projector.state_dict())
    assert all(torch.equal(each, state[name.removeprefix("momentum_")]) for name, each in slow.items())


def test_the_momentum_encoder_has_no_dropout():
    config = replace(TINY["vit"], dropout=0.3, drop_path=0.5, patch_dropout=0.5)
    objective, inputs = make(MoCo, config), views()
    for each in (objective, deepcopy(objective), objective.train(), objective.eval().train()):
        assert each.training and each.encoder.training and not each.momentum_encoder.training
        for first, again in zip(each.references(*inputs), each.references(*inputs)):
            assert torch.equal(first, again)
    first, again = (objective.features(*inputs)[0] for _ in range(2))
    assert not torch.equal(first, again)


@KINDS
def test_a_saved_objective_has_the_same_loss_and_no_batch_statistics(kind):
    objective, inputs = make(kind), views()
    run(objective.float(), [each.float() for each in inputs])
    assert not list(objective.buffers())
    other = kind(create_backbone(TINY["vit"]), hidden=24, out=12)
    other.load_state_dict(objective.state_dict())
    inputs = [each.float() for each in inputs]
    assert torch.equal(other(*inputs)[0], objective(*inputs)[0])
    encoder = create_backbone(TINY["vit"])
    start = "encoder."
    own = {name.removeprefix(start): each for name, each in objective.state_dict().items() if name.startswith(start)}
    encoder.load_state_dict(own)
    assert torch.equal(encoder.forward_features(inputs[0]).x, objective.encoder.forward_features(inputs[0]).x)


@pytest.mark.parametrize(
    ("changes", "width"),
    [({"pool": "gap"}, 16), ({"pool": "cls+gap"}, 32), ({"prefix": ("cls", "dist")}, 32), ({"classes": 0}, 16)],
    ids=str,
)
def test_the_projector_reads_as_much_as_the_encoders_head(changes, width):
    config = replace(TINY["vit"], **changes)
    objective = make(MoCo, config)
    assert pooled_width(objective.encoder) == width
    assert objective.projector[0].in_features == width
    assert objective.features(*views())[0].shape == (6, width)
    assert torch.isfinite(objective(*views())[0])


@KINDS
def test_a_single_image_is_refused(kind):
    with pytest.raises(ConfigError, match="a batch of 1") as error:
        make(kind)(*views(1))
    assert "two" in error.value.remedy
    with pytest.raises(ConfigError):
        cached_backward(make(kind), views(1), 1, seed=lambda count: None)


def test_heads_have_the_sizes_of_the_authors_code():
    with torch.device("meta"):
        objective, simclr = (kind(create_backbone("vit-s16", classes=0)) for kind in (MoCo, SimCLR))
    counted = {
        part: sum(each.numel() for each in getattr(objective, part).parameters()) for part in ("projector", "predictor")
    }
    assert counted == {"projector": 19_415_040, "predictor": 2_105_344}
    assert (objective.temperature, objective.momentum) == (0.2, 0.99)
    assert [tuple(each.weight.shape) for each in simclr.projector if isinstance(each, torch.nn.Linear)] == [
        (2048, 384),
        (128, 2048),
    ]
    assert simclr.temperature == 0.1


def test_a_head_begins_uniform():
    torch.manual_seed(0)
    widths = (300, 200, 100)
    linears = [each for each in make_head(*widths) if isinstance(each, torch.nn.Linear)]
    for linear, (before, after) in zip(linears, pairwise(widths), strict=True):
        assert linear.weight.shape == (after, before)
        assert 0.99 < linear.weight.abs().max().item() * math.sqrt(before) <= 1
        assert linear.weight.std().item() * math.sqrt(3 * before) == pytest.approx(1, abs=0.02)
