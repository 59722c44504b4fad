"""Parts of a block that the paper does not have: RoPE, SwiGLU, RMSNorm, QuickGELU, norms and biases at other places."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.each_row import each_row
from vitrail.errors import ConfigError
from vitrail.models import Patches, ViTConfig, create_backbone
from vitrail.models.layers import activate
from vitrail.models.rope import ROPES, Rotation, coordinates, make_rotations

SIZES = {"image_size": (32, 48), "patch_size": 8, "width": 48, "depth": 2, "heads": 3, "mlp_width": 80, "classes": 5}
KINDS = {
    "dinov3": {"rope": "dinov3", "positions": "none", "registers": 2, "qkv_bias": "qv", "layer_scale": 0.1},
    "dinov2-giant": {"mlp": "swiglu", "layer_scale": 0.1, "registers": 1, "prefix_positions": False},
    "clip": {"pre_norm": True, "gelu": "quick", "norm_eps": 1e-5, "projection": 12},
    "siglip": {"prefix": (), "pool": "map", "pool_heads": 2, "pool_mlp_width": 40},
    "eva02-b": {"rope": "eva02", "rope_grid": (16, 16), "mlp": "swiglu", "mlp_norm": True, "attention_norm": True,
                "qkv_bias": "qv", "pool": "gap", "pool_norm": True},
    "eva02-e": {"norm_at": "post", "qkv_bias": "qv", "gelu": "exact"},
    "pe-core": {"rope": "pe", "rope_grid": (4, 6), "pre_norm": True, "pool": "map", "pool_heads": 2},
    "aimv2": {"norm": "rms", "patch_norm": True, "bias": False, "qkv_bias": False, "mlp": "swiglu", "prefix": (), "pool": "gap"},
    "radio": {"final_norm": False, "registers": 3, "prefix_positions": False},
    "rope-vit": {"rope": "mixed", "positions": "none", "layer_scale": 0.1},
    "sbb": {"rope": "axial", "positions": "none", "prefix": (), "registers": 2, "pool": "gap"},
}  # fmt: skip


def create(kind: str, **changes) -> torch.nn.Module:
    """Returns a model of a kind whose every tensor has numbers of non-trivial size."""
    model = create_backbone(ViTConfig(**{**SIZES, **KINDS[kind], **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim == 1 else 0.1)
            parameter.copy_(noise + (name.endswith("weight") and parameter.ndim == 1))
    return model.eval()


def draw_images(*size: int) -> Tensor:
    return torch.randn(2, 3, *(size or (32, 48)), generator=torch.Generator().manual_seed(1))


@each_row("kind", list(KINDS))
def test_a_step_a_graph_and_bf16_are_the_same_network(kind):
    model = create(kind)
    images = draw_images()
    with torch.no_grad():
        logits = model(images)
        torch.testing.assert_close(model.bfloat16()(images.bfloat16()).float(), logits, atol=0.2, rtol=0.2)
    model.float().train()
    model(images).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_captured_in_one_graph(kind):
    torch.compiler.reset()
    model = create(kind)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for size in ((32, 48), (40, 24)):
        images = draw_images(*size)
        with torch.no_grad():
            torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-5)


@each_row("kind", list(KINDS))
def test_records_of_attention_do_not_change_logits_and_their_rows_sum_to_one(kind):
    model, images = create(kind), draw_images()
    with torch.no_grad():
        logits, matrices = model.forward_with_attention(images)
        assert torch.equal(logits, model(images))
    assert all(torch.allclose(matrix.sum(-1), torch.ones(())) for matrix in matrices)


@each_row("kind", list(KINDS))
def test_all_patches_by_their_ids_are_the_whole_grid_and_some_train(kind):
    model, images = create(kind), draw_images()
    patches = model.place(model.patchify(images))
    ids = torch.arange(patches.x.shape[1]).expand(2, -1)
    with torch.no_grad():
        whole, by_ids = model.encode(patches), model.encode(Patches(patches.x, patches.grid, ids))
    torch.testing.assert_close(by_ids.x, whole.x, atol=1e-5, rtol=1e-5)
    trained = create(kind, patch_dropout=0.5).train()
    trained(images).sum().backward()


@each_row("kind", list(KINDS))
def test_other_sizes_and_one_window_over_the_grid(kind):
    images = draw_images(40, 64)
    with torch.no_grad():
        expected = create(kind, global_blocks=1)(images)
        windowed = create(kind, window=8, global_blocks=1)(images)  # one window covers all 5 x 8 patches
    torch.testing.assert_close(windowed, expected, atol=1e-5, rtol=1e-5)


def test_logits_between_patches_depend_on_their_offset_alone():
    """Shifted coordinates leave attention among patches as it is; tokens without a place see the shift."""
    config = ViTConfig(
        **{**SIZES, "image_size": (64, 64), "rope": "axial", "positions": "none", "prefix": (), "pool": "gap"}
    )
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 3, 64, 16, generator=generator)
    places = coordinates(config, (8, 8), q.device)
    whole, shifted = (make_rotations(config, None, None, 0, each)[0] for each in (places, places + 2.5))
    before, after = (rotation.apply(q) @ rotation.apply(k).mT for rotation in (whole, shifted))
    torch.testing.assert_close(before, after, atol=1e-4, rtol=1e-4)
    assert (q @ shifted.apply(k).mT - q @ whole.apply(k).mT).abs().max() > 0.1


def test_angles_are_those_of_the_papers_formulas():
    """Worked out one patch, one frequency at a time, from the equations of each paper."""
    for rope, rule in ROPES.items():
        if rule.is_learned:
            continue
        grid_of_training = (16, 16) if rope == "eva02" else None
        config = ViTConfig(**{**SIZES, "heads": 2, "rope": rope, "rope_grid": grid_of_training})
        rotation = make_rotations(config, None, None, 1, coordinates(config, (3, 5), torch.device("cpu")))[0]
        head, frequencies = 24, 6
        assert rotation.cos.shape == (16, 24) and (rotation.cos[0] == 1).all() and (rotation.sin[0] == 0).all()
        for row, column in itertools.product(range(3), range(5)):
            if rope == "dinov3":
                y, x = (2 * math.pi * (2 * (i + 0.5) / n - 1) for i, n in ((row, 3), (column, 5)))
            elif rope == "eva02":
                y, x = row / 3 * 16, column / 5 * 16
            else:
                y, x = row + (rope == "pe"), column + (rope == "pe")
            first, second = (y, x) if rule.axes == "yx" else (x, y)
            angles = [axis / rule.theta ** (4 * k / head) for axis in (first, second) for k in range(frequencies)]
            token = 1 + row * 5 + column
            torch.testing.assert_close(rotation.cos[token, :12], torch.tensor(angles).cos(), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(rotation.sin[token, 12:], torch.tensor(angles).sin(), atol=1e-5, rtol=1e-5)


def test_a_rotation_is_that_of_complex_numbers():
    x, angles = torch.randn(2, 3, 7, 8), torch.randn(7, 4)
    u, w = x.chunk(2, -1)
    expected = torch.complex(u, w) * torch.polar(torch.ones_like(angles), angles)
    cos, sin = angles.cos(), angles.sin()
    rotated = Rotation(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)).apply(x)
    torch.testing.assert_close(rotated, torch.cat([expected.real, expected.imag], -1))


def test_coordinates_change_in_training_only_once_for_all_layers():
    images = draw_images()
    plain, model = create("dinov3"), create("dinov3", rope_rescale=2.0, rope_shift=0.1, rope_jitter=1.5)
    with torch.no_grad():
        assert torch.equal(model(images), plain(images))
        model.train()
        torch.manual_seed(0)
        first, second = model(images), model(images)
        torch.manual_seed(0)
        assert torch.equal(model(images), first)
        assert not torch.equal(first, second)
        recorded = model.forward_recording(images, lambda record: None)
    torch.testing.assert_close(recorded, plain(images))


def test_activations_are_their_definitions_and_others_raise():
    x = torch.linspace(-6, 6, 101)
    torch.testing.assert_close(activate(x, "quick"), x / (1 + (-1.702 * x).exp()))
    torch.testing.assert_close(activate(x, "exact"), x * (1 + torch.erf(x / math.sqrt(2))) / 2)
    with pytest.raises(ValueError, match="gelu is 'silu'"):
        activate(x, "silu")


def test_swiglu_and_rms_norm_are_their_definitions():
    model = create("aimv2").double()
    x = torch.randn(2, 5, 48, dtype=torch.float64)
    block = model.blocks[0]
    with torch.no_grad():
        normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * block.norm2.weight
        torch.testing.assert_close(block.norm2(x), normed)
        gate, value = (normed @ matrix.T for matrix in block.mlp.fc1.weight.chunk(2))
        expected = gate / (1 + (-gate).exp()) * value @ block.mlp.fc2.weight.T
        torch.testing.assert_close(block.mlp(block.norm2(x)), expected)


def test_k_has_no_bias_with_qv():
    model = create("dinov3")
    with torch.no_grad():
        _, k, _ = model.blocks[0].attn.split(torch.zeros(1, 3, 48))
    assert not k.any()


def test_a_new_head_replaces_an_image_text_projection():
    model = create("clip", classes=0)
    assert model(draw_images()).shape == (2, 12)
    model.reset_head(7)
    assert model(draw_images()).shape == (2, 7) and model.config.projection == 0


@each_row(
    "changes, words",
    [
        ({"rope": "dinov3", "heads": 8}, "multiple of 4 channels"),
        ({"rope": "dinov3", "positions": "relative"}, "other than 'relative'"),
        ({"rope": "dinov3", "rope_grid": (4, 4)}, "where coordinates are indices"),
        ({"rope_theta": 100.0}, "above 1 with fixed frequencies"),
        ({"rope": "eva02", "rope_rescale": 2.0}, "rope = 'dinov3'"),
        ({"mlp": "swiglu", "initial": "mimetic"}, "'paper' or 'truncated'"),
        ({"pool_norm": True, "pool": "gap", "final_norm": False}, "one of two"),
        ({"qkv_bias": "k"}, "qkv_bias is 'k'"),
        ({"pool": "map", "pool_heads": 5}, "a divisor of width=48"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        ViTConfig(**{**SIZES, **changes})
