"""The axial ViT against a ViT whose attention sees all patches through a mask: those of the same row, or column, alone.

The oracle never transposes a grid; sizes are oblong, so that rows and columns cannot be taken for each other.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import gradients, shaken
from tests.models.equal_blocks import cost_by_two_blocks
from vitrail.errors import ConfigError
from vitrail.models import Patches, configure, cost_of, create_backbone
from vitrail.models.axial import AXIALS, AxialConfig, Layer
from vitrail.models.positions import resize, sincos2d

SMALL = {"image_size": (24, 40), "patch_size": 8, "classes": 5, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24}
SIZES = [(24, 40), (40, 24), (8, 48), (8, 8)]  # the second and later ones resize positions


@pytest.fixture
def build():
    def make(**changes):
        return shaken(create_backbone(AxialConfig(**{**SMALL, **changes}))).double().eval()

    return make


def same_line(grid, axis):
    """(N, N): whether two patches of the grid lie in the same row (axis 0) or column (axis 1)."""
    place = torch.tensor([(row, column) for row in range(grid[0]) for column in range(grid[1])])[:, axis]
    return place[:, None] == place


def split(x, w, name, heads):
    q, k, v = F.linear(x, w[f"{name}.qkv.weight"], w[f"{name}.qkv.bias"]).chunk(3, -1)  # (B, N, D) each
    return [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v)]


def masked_layer(x, w, name, heads, mask):
    """Equations (2) and (3) on all patches (B, N, D), and the whole attention matrices (B, A, N, N)."""
    width = x.shape[-1:]
    q, k, v = split(
        F.layer_norm(x, width, w[f"{name}.norm1.weight"], w[f"{name}.norm1.bias"], 1e-6), w, f"{name}.attn", heads
    )
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    x = x + F.linear(y, w[f"{name}.attn.proj.weight"], w[f"{name}.attn.proj.bias"])
    y = F.layer_norm(x, width, w[f"{name}.norm2.weight"], w[f"{name}.norm2.bias"], 1e-6)
    y = F.gelu(F.linear(y, w[f"{name}.mlp.fc1.weight"], w[f"{name}.mlp.fc1.bias"]), approximate="tanh")
    logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -math.inf)
    return x + F.linear(y, w[f"{name}.mlp.fc2.weight"], w[f"{name}.mlp.fc2.bias"]), logits.softmax(-1)


def twin(w, config, images):
    """Logits, the patches after each global block (B, N, D), and the attention of each layer among all patches."""
    image = F.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=config.patch_size)
    grid = image.shape[2:]
    places = resize(w["pos_embed"], config.grid, tuple(grid), config.position_resize)
    x, states, matrices = image.flatten(2).mT + places, [], []
    for block in range(config.depth):
        for axis, part in enumerate(("row", "column")):
            x, matrix = masked_layer(x, w, f"blocks.{block}.{part}", config.heads, same_line(grid, axis))
            matrices.append(matrix)
        states.append(x)
    features = F.layer_norm(x, x.shape[-1:], w["norm.weight"], w["norm.bias"], 1e-6).mean(1)
    return F.linear(features, w["head.weight"], w["head.bias"]), states, matrices


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("grid", "axis"), [((3, 5), 0), ((5, 3), 1), ((1, 4), 0), ((1, 4), 1)])
def test_a_layer_on_lines_is_one_on_all_patches_with_a_mask_gradients_included(grid, axis):
    layer = shaken(Layer(AxialConfig(**SMALL), 0.0)).double()
    x, towards = draw(2, *grid, 16).requires_grad_(), draw(2, grid[0] * grid[1], 16)
    lines = x.transpose(1, 2) if axis else x
    found = layer(lines).transpose(1, 2) if axis else layer(lines)
    named = {f"x.{name}": parameter for name, parameter in layer.named_parameters()}
    expected, _ = masked_layer(x.flatten(1, 2), named, "x", 2, same_line(grid, axis))
    torch.testing.assert_close(found.flatten(1, 2), expected)
    wanted = [x, *layer.parameters()]
    of_lines, of_all = (torch.autograd.grad((y * towards).sum(), wanted) for y in (found.flatten(1, 2), expected))
    for ours, theirs in zip(of_lines, of_all, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert all(each.any() for each in of_all)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_model_is_its_masked_twin_block_by_block_gradients_included(build, size):
    model, images = build(), draw(2, 3, *size)
    parameters = dict(model.named_parameters())
    logits, states, matrices = twin(parameters, model.config, images)
    torch.testing.assert_close(model(images), logits)
    for image, tokens in zip(model.feature_maps(images), states, strict=True):
        grid = (size[0] // 8, size[1] // 8)
        assert image.shape == (2, 16, *grid)
        torch.testing.assert_close(image, tokens.mT.unflatten(2, grid))
    towards = draw(2, 5)
    ours, theirs = (gradients(model, (each * towards).sum()) for each in (model(images), logits))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], msg=lambda text, name=name: f"{name}: {text}")
    again, attention = model.forward_with_attention(images)
    assert torch.equal(again, model(images))
    for found, whole, grid in zip(attention, matrices, model.attention_grids(size), strict=True):
        assert found.dtype == torch.float32
        spread = torch.zeros(whole.shape).scatter(-1, grid.columns.expand_as(found), found)  # (B, A, N, N)
        spread = spread if grid.rows is None else spread[:, :, grid.rows.argsort()]
        torch.testing.assert_close(spread.double(), whole, atol=1e-6, rtol=1e-5)


def test_attention_goes_along_the_row_then_along_the_column(build):
    model = build()
    assert [tuple(each.shape) for each in model.forward_with_attention(draw(1, 3, 24, 40))[1]] == [
        (1, 2, 15, 5),
        (1, 2, 15, 3),
    ] * 2
    row, column, *others = model.attention_grids((24, 40))
    assert len(others) == 2
    for grid in (row, column):
        assert (grid.prefix, grid.queries, grid.keys, grid.cell) == (0, (3, 5), (3, 5), (8, 8))
    # patch 8 is the fourth of the second of three rows, and the second of the fourth of five columns
    assert row.rows is None
    assert row.columns[8].tolist() == [5, 6, 7, 8, 9]
    assert column.rows[3 * 3 + 1] == 8
    assert column.columns[3 * 3 + 1].tolist() == [3, 8, 13]


def test_two_patches_meet_after_a_block_and_no_earlier(build):
    """A row and a column connect any two patches (Ho et al. 2019, section 3): one layer reaches only its own line."""
    model = build(depth=1)
    x = draw(1, 3, 5, 16).requires_grad_()
    block = model.blocks[0]
    for y, reached in ((block.row(x), 5), (block.column(x.transpose(1, 2)).transpose(1, 2), 3), (block(x), 15)):
        (gradient,) = torch.autograd.grad(y[0, 1, 3].sum(), x)
        assert gradient.abs().sum(-1).count_nonzero() == reached


def test_positions_are_learned_fixed_or_none(build):
    images = draw(2, 3, 24, 40)
    for positions in ("learned", "sincos2d", "none"):
        model = build(positions=positions)
        patches = model.patchify(images)
        tables = {"sincos2d": sincos2d((3, 5), 16).double(), "none": torch.zeros(15, 16), **model.state_dict()}
        table = tables["pos_embed" if positions == "learned" else positions]
        torch.testing.assert_close(model.place(patches).x, patches.x + table)
        assert hasattr(model, "pos_embed") == (positions == "learned")


def test_samples_are_dropped_whole_in_both_layers_and_rates_grow_with_the_blocks(build):
    model = build(depth=3, drop_path=0.5).train()
    assert [(block.row.drop_path, block.column.drop_path) for block in model.blocks] == [
        (0, 0),
        (0.25, 0.25),
        (0.5, 0.5),
    ]
    x = draw(6, 3, 5, 16)
    torch.manual_seed(0)
    changed = (model.blocks[-1](x) != x).any(-1)  # (B, h, w)
    whole = changed.flatten(1).float().mean(1)
    assert set(whole.tolist()) == {0.0, 1.0}
    assert not (model.blocks[0](x) == x).any()


def test_dropout_follows_the_positions_and_every_dense_layer_but_q_k_and_v(build):
    model = build(dropout=0.5, depth=1).train()
    rates = {name: each.p for name, each in model.named_modules() if isinstance(each, torch.nn.Dropout)}
    layers = (
        "dropout",
        *(f"blocks.0.{part}.{name}" for part in ("row", "column") for name in ("dropout", "mlp.dropout")),
    )
    assert rates == dict.fromkeys(layers, 0.5)
    begun = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: begun.append(inputs[0]))
    model.encode(Patches(draw(2, 15, 16), (3, 5)))
    assert 0.3 < (begun[0] == 0).double().mean() < 0.7


def test_an_image_that_does_not_divide_is_refused_or_padded_with_zeros(build):
    images = draw(2, 3, 21, 34)
    with pytest.raises(ConfigError, match=r"21x34 pixels .* 8x8\n.*16x32 or 24x40, or set pad=True"):
        build()(images)
    torch.testing.assert_close(build(pad=True)(images), build()(F.pad(images, (0, 6, 0, 3))))


def formula(patch, width=768, depth=12, mlp=3072, size=224, classes=1000):
    """Parameters and multiply-adds: projection, positions, two layers a block, last norm, head."""
    side = size // patch
    patches, inputs = side**2, 3 * patch**2
    layer = 4 * width**2 + 4 * width + 2 * width * mlp + mlp + width + 4 * width
    parameters = (inputs + 1) * width + patches * width + 2 * depth * layer + 2 * width + (width + 1) * classes
    attention = 2 * patches * (side + side) * width
    sums = 2 * (4 * width**2 + 2 * width * mlp) * patches + attention
    return parameters, patches * inputs * width + depth * sums + width * classes, depth * attention


# name: parameters with 1,000 classes, 10^9 multiply-adds at 224 x 224
TABLE = {"axial-b32": (173_277_160, 8.453), "axial-b16": (171_620_584, 33.512)}


def test_every_model_states_its_size():
    assert TABLE.keys() == AXIALS.keys()


def test_the_cost_extrapolated_from_two_blocks_is_exact():
    config = configure("axial-b16", depth=3, width=24, heads=2, mlp_width=32, image_size=96)
    assert cost_by_two_blocks(config) == cost_of(config)


def test_parameters_and_multiply_adds_are_those_of_the_formula():
    for name, (parameters, sums) in TABLE.items():
        found = cost_by_two_blocks(configure(name))[:3]
        assert found == formula(int(name[-2:])), name
        assert (found[0], round(found[1] / 1e9, 3)) == (parameters, sums), name
    assert cost_by_two_blocks(configure("axial-b16", image_size=384))[:3] == formula(16, size=384)


def test_attention_costs_n_times_h_plus_w_where_the_vits_costs_n_squared():
    oblong = configure("axial-b16", image_size=(64, 160), depth=1)
    assert cost_of(oblong).attention == 2 * 40 * (4 + 10) * 768
    configs = (configure("axial-b16"), configure("vit-b16", prefix=(), pool="gap"))
    axial, full = (cost_by_two_blocks(config) for config in configs)
    assert axial.tokens == full.tokens == 196
    assert 7 * axial.attention == full.attention


def test_each_block_has_the_vits_names_twice():
    one = {f"blocks.0.{name}" for name in create_backbone("vit-ti16", depth=1).blocks[0].state_dict()}
    both = {name.replace("blocks.0.", f"blocks.0.{part}.") for name in one for part in ("row", "column")}
    others = {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    others |= {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    model = create_backbone("axial-b16", depth=1, width=12, heads=3)
    assert model.state_dict().keys() == both | others
    assert model.pos_embed.shape == (1, 196, 12)


def test_first_values_are_the_vits():
    torch.manual_seed(0)
    model = create_backbone("axial-b16", depth=1, width=192, heads=3, mlp_width=768, head_bias=-2.0, classes=9)
    for layer in (model.blocks[0].row, model.blocks[0].column):
        for matrix in (*layer.attn.qkv.weight.chunk(3), layer.attn.proj.weight):
            assert 0.99 * math.sqrt(3 / 192) < matrix.abs().max() <= math.sqrt(3 / 192)
        assert 0.99 * math.sqrt(6 / 960) < layer.mlp.fc1.weight.abs().max() <= math.sqrt(6 / 960)
        assert not layer.attn.qkv.bias.any()
        assert torch.equal(layer.norm1.weight, torch.ones(192))
    assert 0.019 < model.pos_embed.std() < 0.021
    assert not model.head.weight.any()
    assert (model.head.bias == -2).all()


def test_there_is_no_class_token_to_ask_for():
    with pytest.raises(ConfigError, match="an axial ViT has no field 'prefix'"):
        configure("axial-b16", prefix=("cls",))
