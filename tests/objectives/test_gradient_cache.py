"""Gradient caching: the gradient of the whole batch, whatever its pieces, in the memory of one of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.models.conftest import shaken
from vitrail.models import ViTConfig, create_backbone
from vitrail.objectives.contrastive import MoCo, SimCLR, cached_backward

SMALL = {"image_size": 8, "patch_size": 4, "in_channels": 1, "classes": 0, "width": 8, "heads": 2, "mlp_width": 16}
SMALL["pool"] = "gap"  # mean of what differs from image to image: batch norm blows up the rounding of what hardly does
CHANCE = {"dropout": 0.2, "attention_dropout": 0.1, "drop_path": 0.3, "patch_dropout": 0.25}
ROTARY = {"rope": "dinov3", "positions": "none", "rope_rescale": 2.0, "rope_shift": 0.3}
KINDS = pytest.mark.parametrize("kind", [MoCo, SimCLR])


def make(kind, *, dtype=torch.float64, hidden=16, **changes):
    config = ViTConfig(**{**SMALL, "depth": 2, **changes})
    objective = shaken(kind(create_backbone(config), hidden=hidden, out=8))
    return objective.to(dtype)


def views(count, dtype=torch.float64):
    """Two views, each some noise away from images they share."""
    generator = torch.Generator().manual_seed(1)
    images, *noise = torch.randn(3, count, 1, 8, 8, generator=generator).to(dtype)
    return [3 * images + each for each in noise]


def seed(count):
    torch.manual_seed(100 + count)


def gradients(objective):
    """Of all parameters that are trained; takes them away."""
    found = {name: each.grad for name, each in objective.named_parameters() if each.grad is not None}
    objective.zero_grad()
    return found


def assert_same(ours, theirs, tolerance):
    """To ``tolerance`` of the largest gradient."""
    assert ours.keys() == theirs.keys()
    largest = max(each.abs().max() for each in theirs.values())
    for name, each in ours.items():
        assert (each - theirs[name]).abs().max() <= tolerance * largest, name


@KINDS
def test_a_batch_in_sixteen_pieces_has_the_gradient_of_the_whole(kind):
    micro = 8
    objective, inputs = make(kind, dtype=torch.float32, depth=1), views(16 * micro, torch.float32)
    loss, measured = objective(*inputs)
    loss.backward()
    whole = gradients(objective)
    assert all(each.abs().max() > 0 for each in whole.values())
    ours, found = cached_backward(objective, inputs, micro, seed=seed)
    assert_same(gradients(objective), whole, 1e-5)
    torch.testing.assert_close(ours, loss.detach())
    torch.testing.assert_close(found, measured)
    # and pieces with losses of their own are another objective
    for some in zip(*(each.split(micro) for each in inputs)):
        (objective(*some)[0] / 16).backward()
    with pytest.raises(AssertionError):
        assert_same(gradients(objective), whole, 1e-2)


def concatenated(objective, inputs, micro):
    """The loss of features that were computed piece by piece, all with their graph."""
    made = []
    for count, some in enumerate(zip(*(each.split(micro) for each in inputs))):
        seed(count)
        made.append((*objective.features(*some), *objective.references(*some)))
    return objective.compare(*(torch.cat(each) for each in zip(*made)))


@pytest.mark.parametrize(("kind", "count", "micro"), [(MoCo, 4, 1), (MoCo, 12, 5), (SimCLR, 12, 5)])
@pytest.mark.parametrize("chance", [CHANCE, ROTARY], ids=["dropped units", "rescaled coordinates"])
def test_both_passes_draw_the_same_numbers(kind, count, micro, chance):
    objective, inputs = make(kind, **chance), views(count)
    loss, measured = concatenated(objective, inputs, micro)
    loss.backward()
    expected = gradients(objective)
    ours, found = cached_backward(objective, inputs, micro, seed=seed)
    torch.testing.assert_close(ours, loss.detach())
    torch.testing.assert_close(found, measured)
    assert_same(gradients(objective), expected, 1e-10)
    cached_backward(objective, inputs, micro, seed=lambda count: torch.manual_seed(count))
    with pytest.raises(AssertionError):
        assert_same(gradients(objective), expected, 1e-3)


@KINDS
def test_gradients_are_added_and_scaled_and_the_loss_is_not(kind):
    objective, inputs = make(kind), views(6)
    loss, _ = objective(*inputs)
    (5 * loss).backward()
    expected = gradients(objective)
    for micro, factor in ((2, 2), (6, 3)):
        ours, measured = cached_backward(objective, inputs, micro, seed=seed, scale=lambda loss: loss * factor)  # noqa: B023
        torch.testing.assert_close(ours, loss.detach())
        assert not any(each.requires_grad for each in (ours, *measured.values()))
    assert_same(gradients(objective), expected, 1e-10)


@KINDS
def test_under_autocast_every_weight_gets_the_gradient_of_the_whole_batch(kind):
    objective, inputs = make(kind, dtype=torch.float32), views(64, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = objective(*inputs)
    loss.backward()
    whole = gradients(objective)
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = cached_backward(objective, inputs, 16, seed=seed)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, loss.detach(), rtol=1e-2, atol=0)
    found = gradients(objective)
    assert found.keys() == whole.keys()
    both = [torch.cat([each.flatten() for each in some.values()]) for some in (found, whole)]
    assert torch.cosine_similarity(*both, dim=0) > 0.99
    assert 0.97 < both[0].norm() / both[1].norm() < 1.03


@KINDS
def test_features_are_computed_twice_and_references_once(kind, monkeypatch):
    objective, calls = make(kind), []
    for verb in ("features", "references", "compare"):
        method = getattr(objective, verb)

        def counted(*given, verb=verb, method=method):
            calls.append((verb, len(given[0]), torch.is_grad_enabled()))
            return method(*given)

        monkeypatch.setattr(objective, verb, counted)
    cached_backward(objective, views(5), 3, seed=lambda count: calls.append(count))
    before = [0, ("features", 3, False), ("references", 3, False), 1, ("features", 2, False), ("references", 2, False)]
    after = [("compare", 5, True), 0, ("features", 3, True), 1, ("features", 2, True)]
    assert calls == before + after


class Ledger:
    """Bytes that graphs hold for their gradients: now, and at most."""

    def __init__(self):
        self.now = self.most = 0

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(partial(Held, self), lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *given):
        self.hooks.__exit__(*given)


class Held:
    def __init__(self, ledger, tensor):
        self.ledger, self.tensor = ledger, tensor
        ledger.now += tensor.nbytes
        ledger.most = max(ledger.most, ledger.now)

    def __del__(self):
        self.ledger.now -= self.tensor.nbytes


@KINDS
def test_peak_activations_are_those_of_one_chunk_or_of_the_heads(kind):
    objective, inputs = make(kind, depth=6, hidden=8), views(64)
    with Ledger() as whole:
        loss, _ = objective(*inputs)
        loss.backward()
    with Ledger() as piece:
        made = objective.features(*(each[:8] for each in inputs))
    with torch.no_grad():
        features = [each.clone().requires_grad_() for each in objective.features(*inputs)]
        references = objective.references(*inputs)
    with Ledger() as heads:
        compared = objective.compare(*features, *references)
    with Ledger() as cached:
        cached_backward(objective, inputs, 8, seed=seed)
    assert made and compared  # held until here
    assert 0 < cached.most <= max(piece.most, heads.most)
    assert cached.now == 0
    assert cached.most < whole.most / 5
