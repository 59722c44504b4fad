"""The verbs that objectives, tasks and analysis use, and that they go together whatever the options."""

from __future__ import annotations

import io

import pytest
import torch

from tests.models.conftest import gradients, outputs_of
from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, create_backbone

POSITIONS = ("learned", "learned2d", "sincos2d", "relative", "none")
POOLS = {"cls": ("cls",), "gap": (), "cls+gap": ("cls",), "map": ("cls",)}
SHAPES = {"oblong grey": (1, 24, 40), "five channels": (5, 32, 16)}


SOME = [([*SHAPES][case // 2 % 2], [*POOLS][case % 4], POSITIONS[case % 5]) for case in range(8)]


@pytest.mark.parametrize(("shape", "pool", "positions"), SOME)
def test_shapes_pools_and_positions_go_together(make, pictures, shape, pool, positions):
    channels, height, width = SHAPES[shape]
    at = {"learned": "every", "relative": "shared"}.get(positions, "stem")
    options = {"pool": pool, "prefix": POOLS[pool], "positions": positions, "positions_at": at, "in_channels": channels}
    model = make(torch.float32, image_size=(height, width), **options)
    images = pictures(3, channels, height, width, torch.float32)
    logits = model(images)
    assert logits.shape == (3, 7)
    for name, gradient in gradients(model, logits.square().sum()).items():
        assert gradient.isfinite().all()
        assert gradient.any(), name
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    copy = create_backbone(model.config).eval()
    copy.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(copy(images), logits)
    rough = model.bfloat16()(images)
    assert (rough.float() - logits).abs().max() < 0.1 * logits.abs().max()


def test_state_dict_names_are_timms():
    block = [f"norm{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")]
    block += [
        f"{layer}.{kind}" for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2") for kind in ("weight", "bias")
    ]
    expected = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    expected |= {f"blocks.0.{name}" for name in [*block, "ls1.gamma", "ls2.gamma"]}
    expected |= {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    model = create_backbone("vit-ti16", depth=1, layer_scale=1e-5)
    assert model.state_dict().keys() == expected
    assert model.pos_embed.shape == (1, 197, 192)
    assert model.patch_embed.proj.weight.shape == (192, 3, 16, 16)
    assert "reg_token" in create_backbone("vit-ti16", depth=1, registers=1).state_dict()


def test_feature_maps_are_the_patches_after_each_block(make, pictures):
    model = make(registers=2, positions_at="shared")
    images = pictures(2, 3, 24, 40)
    seen = outputs_of(model.blocks)
    maps = model.feature_maps(images)
    assert len(maps) == 3
    for image, tokens in zip(maps, seen):
        assert image.shape == (2, 16, 3, 5)
        torch.testing.assert_close(image[1, :, 2, 4], tokens[1, 3 + 2 * 5 + 4])
    last = model.norm(maps[-1].flatten(2).mT)
    torch.testing.assert_close(last, model.forward_features(images).x[:, 3:])


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_attention_comes_with_the_logits_and_is_what_the_model_used(make, pictures, positions, monkeypatch):
    model, images = make(positions=positions, registers=1), pictures(2, 3, 24, 40)
    used = []

    def keep(q, k, v, *, bias=None, dropout=0.0, path=None):
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)).softmax(-1)
        used.append(weights)
        return weights @ v

    monkeypatch.setattr("vitrail.models.attention.attend", keep)
    model.forward_features(images)
    monkeypatch.undo()
    logits, attention = model.forward_with_attention(images)
    assert torch.equal(logits, model(images))
    grids = model.attention_grids((24, 40))
    assert grids == [AttentionGrid(prefix=2, queries=(3, 5), keys=(3, 5), cell=(8, 8))] * 3
    assert len(attention) == len(used) == 3
    for ours, truth in zip(attention, used):
        assert ours.shape == (2, 2, 17, 17)
        assert ours.dtype == torch.float32
        # in the last block only the class token asks
        torch.testing.assert_close(ours[:, :, : truth.shape[2]], truth.float(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours.sum(-1), torch.ones(2, 2, 17), atol=1e-5, rtol=0)


def test_layers_hold_every_parameter_once_in_order_of_depth(make):
    for options in (
        {"registers": 2, "layer_scale": 0.1},
        {"pool": "map", "pre_logits": True},
        {"positions": "relative"},
    ):
        model = make(**options)
        layers = model.layers()
        assert len(layers) == 3 + 2
        names = [name for layer in layers for name in layer]
        assert sorted(names) == sorted(dict(model.named_parameters()))
        first, *blocks, last = (set(layer) for layer in layers)
        assert {"cls_token", "patch_embed.proj.weight"} <= first
        assert all(name.startswith(("cls", "reg", "pos_embed", "patch_embed")) for name in first)
        for depth, block in enumerate(blocks):
            assert all(name.startswith(f"blocks.{depth}.") for name in block)
        assert {"norm.weight", "head.weight", "head.bias"} <= last
        assert layers[0]["cls_token"] is model.cls_token


def test_only_kernels_decay(make):
    model = make(registers=1, layer_scale=0.1, pool="map", pre_logits=True)
    decayed = dict(model.named_parameters()).keys() - model.no_decay()
    ends = ("proj.weight", "qkv.weight", "fc1.weight", "fc2.weight", "q.weight", "kv.weight", "head.weight")
    assert decayed == {n for n in model.state_dict() if n.endswith((*ends, "pre_logits.weight"))}
    assert {"cls_token", "reg_token", "pos_embed", "attn_pool.latent", "norm.weight", "head.bias"} <= model.no_decay()


@pytest.mark.parametrize("prefix", [("cls",), ("cls", "dist")])
def test_a_new_head_is_linear_and_zero_and_the_config_follows(make, pictures, prefix):
    model = make(torch.bfloat16, pre_logits=True, head_bias=3.0, prefix=prefix)
    before = model.pool(model.forward_features(pictures()))
    model.reset_head(4)
    assert (model.config.classes, model.config.pre_logits) == (4, False)
    assert torch.equal(model(pictures()), torch.zeros(2, 4, dtype=torch.bfloat16))
    assert torch.equal(model.pool(model.forward_features(pictures())), before)
    assert model.state_dict().keys() == create_backbone(model.config).state_dict().keys()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_image_that_does_not_divide_is_refused_or_padded_with_zeros(make, pictures):
    images = pictures(2, 3, 30, 41)
    model = make()
    with pytest.raises(ConfigError, match=r"30x41 pixels .* 8x8\n.*24x40 or 32x48, or set pad=True"):
        model(images)
    padded = torch.zeros(2, 3, 32, 48, dtype=torch.float64)
    padded[:, :, :30, :41] = images
    filling = make(pad=True)
    assert filling.patchify(images).grid == (4, 6)
    torch.testing.assert_close(filling(images), model(padded))
    torch.testing.assert_close(filling(padded), model(padded))


def test_images_can_lie_in_memory_any_way(make, pictures):
    model, images = make(), pictures(2, 3, 32, 32)
    torch.testing.assert_close(model(images.to(memory_format=torch.channels_last)), model(images))
    torch.testing.assert_close(model(images.mT.contiguous().mT), model(images))
    torch.testing.assert_close(model(images[:1]), model(images)[:1])
