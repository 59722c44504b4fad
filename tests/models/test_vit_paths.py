"""Every fast path against the obvious one beside it, gradients included."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import gradients, shaken
from vitrail.models import Patches, attention, layers
from vitrail.models.attention import PLAIN, attend, attention_path
from vitrail.models.layers import Dense, add_branch, skips_work


# on a CPU torch's kernel takes a frozen bias; for a learned one it is torch's own definition, which has the gradient
@pytest.mark.parametrize("bias_is", ["absent", "frozen", "learned"])
def test_plain_and_fused_attention_are_equal_gradients_included(bias_is):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 3, tokens, 8, generator=generator).requires_grad_() for tokens in (5, 9, 9)]
    bias = None if bias_is == "absent" else torch.randn(2, 3, 5, 9, generator=generator)
    wanted = [*given, bias.requires_grad_()] if bias_is == "learned" else given
    towards = torch.randn(2, 3, 5, 8, generator=generator)
    found = []
    for path in ("plain", "fused"):
        y = attend(*given, bias=bias, path=path)
        found.append((y, *torch.autograd.grad((y * towards).sum(), wanted)))
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(plain, fused, atol=1e-6, rtol=1e-5)


def test_both_attention_paths_drop_and_rescale_the_attention_matrix():
    q, k, v = (torch.randn(1, 1, 200, 4) for _ in range(3))
    v = torch.ones_like(v)
    for path in ("plain", "fused"):
        torch.manual_seed(0)
        dropped = attend(q * 0, k, v, dropout=0.5, path=path)[..., 0]  # each row: kept of 200 weights, times 2 / 200
        kept = dropped * 100
        torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)
        assert 70 < kept.min() < kept.max() < 130
        torch.testing.assert_close(attend(q * 0, k, v, path=path), v)


def test_the_attention_path_follows_the_table(monkeypatch):
    for (device, dtype, training), (least, most) in PLAIN.items():
        monkeypatch.setattr(attention, "processor", lambda name=device: name)
        chosen = {tokens: attention_path("cpu", dtype, training=training, tokens=tokens) for tokens in (least, most)}
        assert set(chosen.values()) == {"plain"}
        assert attention_path("cpu", dtype, training=training, tokens=most + 1) == "fused"
        assert not least or attention_path("cpu", dtype, training=training, tokens=least - 1) == "fused"
    for processor, path in (("cpu", "fused"), ("cpu without AMX", "plain")):
        monkeypatch.setattr(attention, "processor", lambda name=processor: name)
        assert attention_path("cpu", torch.bfloat16, training=True, tokens=197) == "plain"
        assert attention_path("cpu", torch.bfloat16, training=False, tokens=197) == path
        assert attention_path("cpu", torch.float32, training=True, tokens=197) == "fused"
    assert attention_path("cuda", torch.bfloat16, training=True, tokens=197) == "fused"


def test_the_attention_path_of_a_learned_bias_is_plain_where_a_cpu_needs_its_gradient():
    for device, path in (("cpu", "plain"), ("cuda", "fused")):
        assert attention_path(device, torch.float32, training=True, tokens=197, learned_bias=True) == path
        with torch.no_grad():
            assert attention_path(device, torch.float32, training=False, tokens=197, learned_bias=True) == "fused"


def test_the_path_of_attention_is_obeyed_for_a_learned_bias_too(monkeypatch):
    q, bias = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 5, requires_grad=True)
    seen = []
    monkeypatch.setattr(attention, "attention_weights", lambda q, k, bias: seen.append("plain") or q @ k.mT)
    attend(q, q, q, bias=bias, path="fused")
    assert seen == []
    attend(q, q, q, bias=bias, path="plain")
    assert seen == ["plain"]


CASES = {
    "plain": {},
    "registers": {"registers": 2},
    "relative": {"positions": "relative"},
    "every layer": {"positions_at": "every"},
    "two heads": {"prefix": ("cls", "dist")},
    "no qkv bias": {"qkv_bias": False},
    "layer scale": {"layer_scale": 0.1},
    "one block": {"depth": 1},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_last_block_for_the_class_token_alone_changes_nothing(make, pictures, changes):
    model, images = make(**changes), pictures()
    sizes = []
    model.blocks[-1].mlp.register_forward_hook(lambda module, given, result: sizes.append(result.shape[1]))
    short = model(images)
    whole = model.head(model.pool(model.encode(model.place(model.patchify(images)))))
    tokens = len(model.prefix) + model.config.registers + 16
    assert sizes == [len(model.prefix), tokens]
    torch.testing.assert_close(short, whole)
    towards = torch.randn(short.shape, dtype=short.dtype)
    of_short, of_whole = (gradients(model, (logits * towards).sum()) for logits in (short, whole))
    for name in of_whole:
        torch.testing.assert_close(of_short[name], of_whole[name], msg=lambda text, name=name: f"{name}: {text}")
    assert all(each.abs().max() > 0 for name, each in of_whole.items() if "reg_token" not in name or tokens > 17)


@pytest.mark.parametrize(("bias", "gelu"), [(True, None), (False, "tanh"), (True, "exact")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_dense_layer_without_gradients_is_the_one_with_them(dtype, gelu, bias):
    layer = shaken(Dense(12, 20, bias=bias)).to(dtype)
    wide = torch.randn(3, 11, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    for x in (wide[..., :12], wide[:, 0, :12].contiguous(), wide[:0, :, :12]):
        slow = layer(x, gelu)
        assert slow.requires_grad
        with torch.inference_mode():
            fast = layer(x, gelu)
        assert fast.dtype == dtype
        tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
        torch.testing.assert_close(fast, slow.detach(), **tolerance)


def test_a_frozen_dense_layer_lets_gradients_through_to_its_input():
    layer = shaken(Dense(6, 4)).requires_grad_(False)
    x = torch.randn(2, 6, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, -1))


def test_the_patch_projection_is_a_strided_convolution_gradients_included(make, pictures):
    model = make(image_size=(16, 40), patch_size=(8, 10))
    images = pictures(2, 3, 16, 40).requires_grad_()
    convolution = model.patch_embed.proj
    found = []
    for y in (model.patchify(images).x, convolution(images).flatten(2).mT):
        found.append((y, *torch.autograd.grad(y.square().sum(), [images, convolution.weight, convolution.bias])))
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_checkpointed_blocks_give_the_same_loss_and_gradients_with_all_randomness_on(make, pictures):
    options = {"dropout": 0.2, "drop_path": 0.4, "attention_dropout": 0.1, "positions": "relative"}
    found = []
    for again in (False, True):
        model = make(checkpoint=again, **options).train()
        torch.manual_seed(3)
        loss = model(pictures(16)).square().sum()
        found.append((loss, gradients(model, loss)))
    (loss, kept), (loss_again, recomputed) = found
    assert torch.equal(loss, loss_again)
    for name in kept:
        torch.testing.assert_close(kept[name], recomputed[name])


@pytest.mark.parametrize("skip", [False, True])
def test_each_sample_is_dropped_with_the_stated_probability_and_the_rest_is_scaled(skip):
    drop, runs, samples = 0.3, 400, 7
    x = torch.arange(samples, dtype=torch.float64)[:, None, None].expand(-1, 2, 1)
    torch.manual_seed(0)
    dropped = torch.zeros(samples)
    for _ in range(runs):
        added = (add_branch(x, lambda x: x + 1, drop=drop, skip=skip) - x)[:, :, 0]  # (samples, 2)
        assert torch.equal(added[:, 0], added[:, 1])
        is_dropped = added[:, 0] == 0
        torch.testing.assert_close(added[~is_dropped, 0], (x[~is_dropped, 0, 0] + 1) / (1 - drop))
        dropped += is_dropped
    share = dropped / runs
    assert share.sub(drop).abs().max() < 4 * math.sqrt(drop * (1 - drop) / runs)


def test_skipping_the_dropped_samples_really_leaves_them_out_and_equals_masking_gradients_included():
    x, weight = torch.randn(10, 3, 4).requires_grad_(), torch.randn(4, 4).requires_grad_()
    seen = []

    def branch(x):
        seen.append(len(x))
        return torch.tanh(x @ weight)

    torch.manual_seed(0)
    y = add_branch(x, branch, drop=0.5, skip=True)
    torch.manual_seed(0)
    assert torch.equal(add_branch(x, branch, drop=0.5), y)  # ten samples on a CPU are enough to skip by default
    assert seen == [5, 5]
    kept = (y != x).any(-1).any(-1)
    assert kept.sum() == 5
    expected = x + torch.tanh(x @ weight) * kept[:, None, None] / 0.5
    torch.testing.assert_close(y, expected)
    towards = torch.randn(10, 3, 4)
    found, wanted = (torch.autograd.grad((each * towards).sum(), [x, weight]) for each in (y, expected))
    for ours, theirs in zip(found, wanted):
        torch.testing.assert_close(ours, theirs)


def test_dropped_depth_grows_linearly_from_0_and_is_off_in_evaluation(make, pictures):
    model = make(drop_path=0.5, depth=5)
    assert [block.drop_path for block in model.blocks] == [0, 0.125, 0.25, 0.375, 0.5]
    images = pictures(16)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


# with dropped patches each image has relative positions of its own, and no work is skipped
@pytest.mark.parametrize("patch_dropout", [0.0, 0.5])
@pytest.mark.parametrize("skip", [False, True])
def test_a_model_with_dropped_depth_trains_either_way(make, pictures, monkeypatch, skip, patch_dropout):
    monkeypatch.setattr("vitrail.models.layers.skips_work", lambda samples, drop, device: skip)
    model = make(drop_path=0.9, depth=2, positions="relative", patch_dropout=patch_dropout).train()
    model(pictures(6)).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_work_is_skipped_only_where_it_measures_faster():
    assert not skips_work(32, 0.0, "cpu")
    assert not skips_work(1, 0.5, "cpu")
    assert skips_work(64, 0.5, "cpu")
    assert not skips_work(64, 0.5, "mps")


def test_dropped_patches_are_as_many_in_each_image_their_ids_are_kept_and_evaluation_drops_none(make, pictures):
    model, images = make(patch_dropout=0.4), pictures()
    everything = model.place(model.patchify(images))
    assert everything.ids is None
    model.train()
    torch.manual_seed(0)
    kept = model.place(model.patchify(images))
    assert kept.x.shape == (2, 10, 16)  # round(16 * 0.6)
    assert kept.grid == (4, 4)
    assert not torch.equal(kept.ids[0], kept.ids[1])
    for image in range(2):
        assert kept.ids[image].unique().numel() == 10
        torch.testing.assert_close(kept.x[image], everything.x[image, kept.ids[image]])
    assert model.encode(kept).ids is kept.ids
    given = Patches(model.patchify(images).x[:, :4], (4, 4), torch.arange(4).expand(2, -1))
    assert model.place(given).x.shape[1] == 4  # what an objective chose is not thinned again


ORDERS = [
    *(
        {"positions": kind, "positions_at": at}
        for kind in ("learned", "learned2d", "sincos2d")
        for at in ("stem", "every")
    ),
    {"positions": "relative"},
    {"positions": "learned", "positions_at": "shared", "registers": 2},
    {"positions": "relative", "registers": 2},
]


@pytest.mark.parametrize("changes", ORDERS, ids=str)
def test_patches_keep_their_place_whatever_their_order(make, pictures, changes):
    model, images = make(**changes), pictures(3)
    patches = model.patchify(images)
    ids = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(image)) for image in range(3)])
    shuffled = Patches(patches.x.gather(1, ids[..., None].expand(-1, -1, 16)), patches.grid, ids)
    straight, mixed = (model.encode(model.place(each)).x for each in (patches, shuffled))
    before = 1 + model.config.registers
    torch.testing.assert_close(mixed[:, :before], straight[:, :before])
    expected = straight[:, before:].gather(1, ids[..., None].expand(-1, -1, 16))
    torch.testing.assert_close(mixed[:, before:], expected)
    assert not torch.allclose(model.encode(model.place(Patches(shuffled.x, (4, 4)))).x, mixed)


def test_gelu_is_the_stated_one_on_every_path():
    x = torch.linspace(-4, 4, 101)
    for gelu, approximate in (("tanh", "tanh"), ("exact", "none")):
        identity = Dense(101, 101, bias=False)
        with torch.no_grad():
            identity.weight.copy_(torch.eye(101))
            torch.testing.assert_close(identity(x[None], gelu)[0], F.gelu(x, approximate=approximate))
            torch.testing.assert_close(layers.activate(x, gelu), F.gelu(x, approximate=approximate))
    assert (F.gelu(x) - layers.activate(x, "tanh")).abs().max() > 4e-4
