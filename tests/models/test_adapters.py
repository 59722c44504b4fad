"""Low-rank adapters: what they compute in every architecture, what they train, and the weights that they merge into."""

from __future__ import annotations

import copy
import io
from dataclasses import replace

import pytest
import torch

from tests.each_row import each_row
from tests.models.conftest import shaken
from tests.models.test_vit_kinds import KINDS, create, draw_images
from tests.models.tiny import TINY
from vitrail.errors import ConfigError
from vitrail.models import Backbone, ViTConfig, create_backbone
from vitrail.models.adapters import ADAPTER, LowRank, add_adapters, has_adapters, list_adapters, merge_tensors
from vitrail.models.resnet import AxialResNetConfig, ResNetConfig

ADAPTED = {name: config for name, config in TINY.items() if not isinstance(config, ResNetConfig | AxialResNetConfig)}
SCALE = 4.0


def adapt(config, **how) -> Backbone:
    model = create_backbone(config)
    add_adapters(model, **{"rank": 2, "alpha": 2 * SCALE, **how})
    return shaken(model).eval()


def merge(model: Backbone) -> Backbone:
    merged = create_backbone(model.config).eval()
    merged.load_state_dict(merge_tensors(model))
    return merged


def images_of(config, count: int = 2) -> torch.Tensor:
    return torch.randn(count, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(1))


@each_row("name", list(ADAPTED))
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"in_channels": 1}, marks=pytest.mark.slow), {"in_channels": 5}],
    ids=["rgb", "one", "five"],
)
def test_adapted_features_are_those_of_the_merged_weights(name, changes):
    config = replace(ADAPTED[name], **changes)
    model, images = adapt(config), images_of(config)
    merged = merge(model)
    assert has_adapters(model) and not has_adapters(merged)
    with torch.no_grad():
        expected = merged.features(images)
        bare = create_backbone(config).eval()
        bare.load_state_dict({name: t for name, t in plain(model).items()})
        assert (bare.features(images) - expected).abs().max() > 1e-3  # the adapters change something
        torch.testing.assert_close(model.features(images), expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(model.pool(model.forward_features(images)), expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(model.forward_with_attention(images)[0], merged(images), atol=2e-5, rtol=1e-4)
    with torch.enable_grad():
        torch.testing.assert_close(model.features(images), expected, atol=2e-5, rtol=1e-4)


def plain(model: Backbone) -> dict[str, torch.Tensor]:
    """The weights without the updates."""
    named = {name.replace(".parametrizations.weight.original", ".weight"): t for name, t in model.state_dict().items()}
    return {name: tensor for name, tensor in named.items() if ADAPTER not in name}


@each_row("kind", list(KINDS))
def test_the_parts_of_later_vits_take_adapters(kind):
    model = create(kind)
    add_adapters(model, rank=3)
    shaken(model)
    images = draw_images()
    with torch.no_grad():
        torch.testing.assert_close(model(images), merge(model)(images), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", ["cls", "gap", "cls+gap", "map"])
def test_each_pooling_uses_the_adapters_of_the_last_block(pool):
    model = adapt(replace(TINY["vit"], pool=pool), blocks=1)
    images = images_of(model.config)
    with torch.no_grad():
        before = model.features(images)
        for _, adapter in list_adapters(model):
            adapter.b.zero_()
        assert (model.features(images) - before).abs().max() > 1e-2


def test_new_adapters_leave_every_weight_bit_for_bit():
    model = shaken(create_backbone(TINY["vit"]))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    add_adapters(model, rank=4)
    after = merge_tensors(model)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_update_is_computed_by_hand():
    weight = torch.arange(6.0).view(3, 2)
    adapter = LowRank(weight, rank=1, scale=0.5, slices=3, chosen=[2, 0])
    with torch.no_grad():
        adapter.a.copy_(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
        adapter.b.copy_(torch.tensor([[[10.0]], [[100.0]]]))
    # rows 0 and 2 have products 10 [1, 2] and 100 [3, 4]
    assert adapter(weight).tolist() == [[0 + 5, 1 + 10], [2, 3], [4 + 150, 5 + 200]]


def test_slices_and_layers_choose_what_is_adapted():
    config = TINY["vit"]
    model = adapt(config, slices="qv", layers=["qkv", "fc1"], blocks=2)
    assert [name for name, _ in list_adapters(model)] == [
        f"blocks.{block}.{layer}" for block in (1, 2) for layer in ("attn.qkv", "mlp.fc1")
    ]
    weight, base = merge_tensors(model)["blocks.2.attn.qkv.weight"], plain(model)["blocks.2.attn.qkv.weight"]
    moved = (weight - base).abs().unflatten(0, (3, -1)).amax((1, 2))
    assert moved[1] == 0 and moved[0] > 0 and moved[2] > 0
    separate = adapt(TINY["cait"], slices="k", layers=["qkv", "q", "k", "v"])
    assert {name.rpartition(".")[2] for name, _ in list_adapters(separate)} == {"qkv", "k"}
    fused = adapt(TINY["pvt"], slices="v")
    shapes = {name.rpartition(".")[2]: adapter.b.shape[0] for name, adapter in list_adapters(fused)}
    assert shapes == {"kv": 1, "proj": 1, "fc1": 1, "fc2": 1}


def test_the_scale_is_alpha_by_the_rank_or_by_its_root():
    config = TINY["vit"]
    scales = [
        {adapter.scale for _, adapter in list_adapters(adapt(config, rank=4, alpha=16, rslora=root))}
        for root in (False, True)
    ]
    assert scales == [{4.0}, {8.0}]


def test_only_the_last_blocks_keep_activations():
    config = replace(TINY["vit"], depth=12, width=32, mlp_width=64)
    images = images_of(config, count=4)

    def saved(blocks: int | None) -> int:
        model = adapt(config, blocks=blocks).train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(ADAPTER in name or name.startswith("head"))
        weights = {parameter.data_ptr() for parameter in model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in weights:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(images).square().sum()
        count = sum(kept.values())
        loss.backward()
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        assert all(model.get_parameter(name).grad is not None for name in trained)
        return count

    assert saved(4) < 0.4 * saved(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_copies_types_and_files_of_an_adapted_model(dtype):
    config = TINY["vit"]
    model, images = adapt(config).to(dtype), images_of(config).to(dtype)
    with torch.no_grad():
        logits = model(images)
        copied = copy.deepcopy(model)
        assert torch.equal(copied(images), logits)
        next(list_adapters(copied))[1].b.zero_()
        assert not torch.equal(copied(images), logits) and torch.equal(model(images), logits)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = create_backbone(config).to(dtype).eval()
        add_adapters(other, rank=2, alpha=2 * SCALE)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other(images), logits)


def test_autocast_adds_the_update_in_fp32():
    model = adapt(TINY["vit"])
    layer = model.blocks[0].mlp.fc1
    exact = layer.weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, exact)


@pytest.mark.slow
def test_a_compiled_and_an_exported_model_have_the_adapters():
    model = adapt(TINY["vit"])
    images = images_of(model.config)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    gradients = [
        torch.autograd.grad(each(images).sum(), next(list_adapters(model))[1].b)[0] for each in (model, compiled)
    ]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        exported = torch.export.export(model, (images,)).module()
        torch.testing.assert_close(exported(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("bit", {}, "no dense layers"),
        ("vit", {"rank": 17}, "rank 17 for blocks.0.attn.qkv, whose weight is 16 x 16"),
        ("vit", {"blocks": 4}, "the last 4 blocks, and the network has 3"),
        ("vit", {"blocks": 0}, "the last 0 blocks"),
        ("vit", {"layers": ["fc3"]}, "no layer 'fc3'"),
        ("vit", {"layers": ["qkv"], "slices": "x"}, "has the slices 'x'"),
    ],
)
def test_what_cannot_be_adapted_is_refused(name, how, message):
    model = create_backbone(TINY[name])
    with pytest.raises(ConfigError, match=message):
        add_adapters(model, **{"rank": 2, **how})
    assert not has_adapters(model)


def test_the_head_and_the_embedding_have_no_adapters():
    model = create_backbone(
        ViTConfig(image_size=32, patch_size=8, width=16, depth=2, heads=2, mlp_width=24, classes=64)
    )
    adapted = add_adapters(model, rank=2)
    assert all(name.startswith("blocks.") for name in adapted) and len(adapted) == 8
