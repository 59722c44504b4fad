"""The table of initial values, parameter by parameter: limits exactly, deviations within five standard errors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from vitrail.errors import ConfigError
from vitrail.models import ViTConfig, configure, create_backbone
from vitrail.models.positions import sincos2d

CONFIG = configure(
    "vit-s16",
    depth=2,
    pool="map",
    prefix=("cls", "dist"),
    registers=4,
    pre_logits=True,
    layer_scale=0.25,
    head_bias=-6.9,
    classes=50,
)
SMALL = {"image_size": 32, "patch_size": 8, "depth": 2}
WIDTH, MLP = 384, 1536
LECUN = math.sqrt(1 / 768) / 0.87962566  # patches of 16 x 16 x 3 pixels


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return dict(create_backbone(CONFIG).named_parameters())


def is_uniform(x, limit):
    assert x.abs().max() <= limit
    assert x.abs().max() > limit * (1 - 20 / x.numel())
    assert abs(x.mean()) < 5 * limit / math.sqrt(3 * x.numel())
    # the variance of x^2 of a uniform variable is 4/45 limit^4
    assert abs(x.square().mean() - limit**2 / 3) < 5 * limit**2 * math.sqrt(4 / 45 / x.numel())


def is_normal(x, deviation):
    assert abs(x.mean()) < 5 * deviation / math.sqrt(x.numel())
    assert abs(x.std() / deviation - 1) < 5 / math.sqrt(2 * x.numel())


def test_q_k_and_v_are_xavier_uniform_each_of_its_own(weights):
    for name in ("blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight"):
        for matrix in weights[name].chunk(3):
            is_uniform(matrix, math.sqrt(3 / WIDTH))
    for matrix in weights["attn_pool.kv.weight"].chunk(2):
        is_uniform(matrix, math.sqrt(3 / WIDTH))
    is_uniform(weights["attn_pool.q.weight"], math.sqrt(3 / WIDTH))


def test_the_other_dense_layers_are_xavier_uniform(weights):
    for block in ("blocks.0.", "blocks.1.", "attn_pool."):
        attention = block if block == "attn_pool." else block + "attn."
        is_uniform(weights[f"{attention}proj.weight"], math.sqrt(3 / WIDTH))
        for layer in ("fc1", "fc2"):
            is_uniform(weights[f"{block}mlp.{layer}.weight"], math.sqrt(6 / (WIDTH + MLP)))


def test_the_patch_projection_and_the_hidden_layer_are_lecun_normal_cut_at_two_sigma(weights):
    for name, sigma in (("patch_embed.proj.weight", LECUN), ("head.pre_logits.weight", LECUN * math.sqrt(2))):
        x = weights[name]
        assert x.abs().max() <= 2 * sigma
        assert x.abs().max() > 1.99 * sigma
        assert abs(x.mean()) < 5 * sigma / math.sqrt(x.numel())
        corrected = sigma * 0.87962566
        assert abs(x.std() / corrected - 1) < 5 / math.sqrt(2 * x.numel())
    assert float(LECUN) == pytest.approx(0.04102, abs=1e-5)
    assert 2 * LECUN == pytest.approx(0.08205, abs=1e-5)


def test_biases_are_zero_but_those_of_the_mlp_and_the_head(weights):
    for name, x in weights.items():
        if not name.endswith("bias"):
            continue
        if ".mlp." in name:
            is_normal(x, 1e-6)
        else:
            assert torch.equal(x, torch.full_like(x, -6.9 if name == "head.bias" else 0)), name


def test_norms_are_one_and_factors_and_the_head_are_as_stated(weights):
    for name, x in weights.items():
        if "norm" in name and name.endswith("weight"):
            assert torch.equal(x, torch.ones_like(x))
        if name.endswith("gamma"):
            assert torch.equal(x, torch.full_like(x, 0.25))
    assert not weights["head.weight"].any()


def test_tokens_are_zero_registers_and_positions_normal_the_query_xavier(weights):
    assert not weights["cls_token"].any()
    assert not weights["dist_token"].any()
    is_normal(weights["reg_token"], 0.02)
    is_normal(weights["pos_embed"], 0.02)
    is_uniform(weights["attn_pool.latent"], math.sqrt(6 / (1 + WIDTH)))


@pytest.mark.parametrize("positions", ["learned2d", "relative"])
def test_other_positions_are_normal_too(positions):
    model = create_backbone("vit-s16", depth=1, positions=positions)
    tables = [x for name, x in model.named_parameters() if name.startswith("pos_embed")]
    assert tables
    for table in tables:
        is_normal(table, 0.02)


def test_two_heads_are_both_zero():
    model = create_backbone("vit-ti16", depth=1, prefix=("cls", "dist"), classes=3, head_bias=2.0)
    assert not model.head["dist"].weight.any()
    assert torch.equal(model.head["dist"].bias, torch.full((3,), 2.0))


def test_one_seed_gives_one_model():
    models = []
    for _ in range(2):
        torch.manual_seed(7)
        models.append(create_backbone("vit-ti16", depth=1).state_dict())
    assert all(torch.equal(each, models[1][name]) for name, each in models[0].items())


@pytest.mark.parametrize("heads", [1, 4])
def test_mimetic_attention_begins_at_the_identity_and_takes_it_away(heads):
    """Trockman & Kolter 2023: the products of the matrices are what is drawn; one head's has the full rank."""
    torch.manual_seed(0)
    width, size = 128, 128 // heads
    model = create_backbone("vit-ti16", width=width, heads=heads, depth=2, initial="mimetic", image_size=(64, 48))
    eye = torch.eye(width)
    for block in model.blocks:
        q, k, v = block.attn.qkv.weight.detach().chunk(3)
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            product = q[rows].mT @ k[rows]
            assert torch.linalg.matrix_rank(product) == size
            if heads == 1:
                is_normal(product - 0.7 * eye, 0.7 / math.sqrt(width))
            else:
                assert 0.7 * size / width < product.diagonal().mean() < 0.7
        is_normal(block.attn.proj.weight.detach() @ v + 0.4 * eye, 0.4 / math.sqrt(width))
    assert torch.equal(model.pos_embed[0, 1:], sincos2d((4, 3), width))


def test_a_mimetic_model_leaves_all_else_as_the_paper_has_it():
    names = ("mlp.fc1.weight", "norm1.weight", "attn.qkv.bias")
    model = create_backbone("vit-ti16", depth=1, initial="mimetic", positions="sincos2d")
    fc1, norm, bias = (model.blocks[0].get_parameter(name) for name in names)
    is_uniform(fc1.detach(), math.sqrt(6 / (192 + 768)))
    assert torch.equal(norm, torch.ones(192))
    assert not bias.any()
    with pytest.raises(ConfigError, match="multiple of 4"):
        create_backbone("vit-ti16", width=90, heads=3, initial="mimetic")


@torch.no_grad()
@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_identity_passes_every_token_on(gelu):
    options = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 3, "heads": 2, "mlp_width": 128, "gelu": gelu}
    model = create_backbone(ViTConfig(**options, skips=False, initial="identity"))
    assert torch.equal(model.pos_embed[0, 1:], sincos2d((4, 4), 64))
    x = F.layer_norm(torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0)), (64,))
    for block in model.blocks:
        torch.testing.assert_close(block.mlp(x), x, atol=1e-4, rtol=0)
        q, k, v = block.attn.split(x)
        assert torch.equal(q, k)
        torch.testing.assert_close(block.attn.proj(v.transpose(1, 2).flatten(2)), x, atol=1e-4, rtol=0)
        own = (q * k).sum(-1) / math.sqrt(32)
        assert abs(float(own.mean()) - 8) < 0.5  # all of a token's variance lies in its heads, evenly on average
        records = []
        block.attn(x, on_attention=records.append)
        assert records[0].weights().diagonal(dim1=2, dim2=3).mean() > 0.9


def test_an_odd_or_narrow_mlp_begins_as_a_projection():
    model = create_backbone(ViTConfig(**SMALL, width=16, mlp_width=25, heads=2, skips=False, initial="identity"))
    x = torch.randn(5, 16)
    once = model.blocks[0].mlp(x)
    torch.testing.assert_close(model.blocks[0].mlp(once), once, atol=1e-4, rtol=1e-4)
    assert not model.blocks[0].mlp.fc1.weight[24].any()


def test_truncated_is_deits():
    config = configure("deit-s16-distilled", depth=2, classes=50)
    torch.manual_seed(0)
    weights = dict(create_backbone(config).named_parameters())
    for name in ("blocks.0.attn.qkv.weight", "blocks.1.mlp.fc2.weight", "head.dist.weight", "cls_token", "pos_embed"):
        is_normal(weights[name], 0.02)
    assert weights["patch_embed.proj.weight"].abs().max() <= 2 * LECUN
    is_normal(weights["patch_embed.proj.weight"], math.sqrt(1 / 768))
    assert not any(weights[name].any() for name in weights if name.endswith(".bias"))
