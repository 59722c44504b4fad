"""The AxialResNet's attention against sums over one cell after another, its blocks and sizes by hand, and its cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import gradients, shaken
from tests.slow import slow_except
from vitrail.models import MODELS, configure, cost_of, create_backbone
from vitrail.models.hybrid import Shape
from vitrail.models.layers import standardise
from vitrail.models.resnet import AxialAttention, AxialResNetConfig, Bottleneck, LineAttention, ResNetConfig

TINY = AxialResNetConfig(image_size=(40, 24), classes=5, depths=(1, 2), heads=4)  # maps of 10 x 6 and 5 x 3


def build(**changes):
    return shaken(create_backbone(TINY, **changes)).double().eval()


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def numpy_of(tensor):
    return tensor.detach().numpy()


def attend_by_loops(attention: LineAttention, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Equation 4 of Wang et al. cell by cell and head by head on a map whose longest line is the table's.

    Returns the map (B, M, h, w), and the attention of cell (y, x) to place p of its line, (B, A, h, w, T).
    """
    kernel = numpy_of(standardise(attention.qkv.weight, "bit"))[:, :, 0, 0]  # (2 M, M)
    qkv = np.einsum("nm,bmhw->bnhw", kernel, numpy_of(x))
    batch, channels, height, width = qkv.shape
    groups = qkv.reshape(batch, 32, -1)
    groups = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    scale, shift = (numpy_of(each)[:, None, None] for each in (attention.norm.weight, attention.norm.bias))
    qkv = groups.reshape(qkv.shape) * scale + shift
    heads, table = attention.heads, numpy_of(attention.relative)
    e = channels // 2 // heads
    length = height if attention.axis == 2 else width
    found, weights = np.zeros((batch, heads * e, height, width)), np.zeros((batch, heads, height, width, length))
    for image in range(batch):
        for head in range(heads):
            part = qkv[image, head * 2 * e : (head + 1) * 2 * e]
            q, k, v = part[: e // 2], part[e // 2 : e], part[e:]
            for row in range(height):
                for column in range(width):
                    place = row if attention.axis == 2 else column
                    logits, values = [], []
                    for other in range(length):
                        at = (slice(None), other, column) if attention.axis == 2 else (slice(None), row, other)
                        r = table[other - place + (len(table) - 1) // 2]
                        logit = q[:, row, column] @ k[at] + q[:, row, column] @ r[: e // 2] + k[at] @ r[e // 2 : e]
                        logits.append(logit / math.sqrt(e // 2))
                        values.append(v[at] + r[e:])
                    share = np.exp(logits) / np.exp(logits).sum()
                    weights[image, head, row, column] = share
                    found[image, head * e : (head + 1) * e, row, column] = share @ np.array(values)
    return found, weights


@pytest.mark.parametrize(("axis", "span"), [(2, 5), (3, 3)], ids=["columns", "rows"])
def test_attention_along_a_line_is_equation_4_cell_by_cell(axis, span):
    attention = shaken(LineAttention(TINY, 32, span, axis)).double()
    x, records = draw(2, 32, 5, 3), []
    expected, shares = attend_by_loops(attention, x)
    found = attention(x, records.append)
    np.testing.assert_allclose(numpy_of(found), expected, rtol=1e-9, atol=1e-9)
    lines = shares.transpose(0, 1, 3, 2, 4) if axis == 2 else shares  # (B, A, L, T, T)
    np.testing.assert_allclose(records[0].weights().detach(), lines.reshape(2, 4, 15, span), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(records[0].weights(slice(4, 9)), records[0].weights()[:, :, 4:9])


def test_the_gradient_of_a_record_is_that_of_its_weights():
    """Of sum(output * g) by the weights: output is linear in them, so a weight's gradient is g with its value."""
    attention = shaken(LineAttention(TINY, 32, 5, 2)).double()
    x, records = draw(2, 32, 5, 3).requires_grad_(), []
    attention(x, records.append)
    (record,) = records
    towards = draw(*record.output.shape)
    q, k, v = attention.split(x)
    positions = attention.positions(5, torch.float64)
    weights = ((q @ k.mT) * q.shape[-1] ** -0.5 + positions.bias(q, k)).softmax(-1).detach().requires_grad_()
    output = weights @ v + positions.values(weights)
    torch.testing.assert_close(output, record.output)
    (expected,) = torch.autograd.grad((output * towards).sum(), weights)
    expected = expected.transpose(1, 2).flatten(2, 3).float()
    torch.testing.assert_close(record.gradient(towards), expected)
    torch.testing.assert_close(record.gradient(towards, slice(3, 11)), expected[:, :, 3:11])


def test_a_bottleneck_attends_along_columns_then_rows_and_averages_before_the_last_convolution():
    shape = Shape(128, 256, 2)
    block = shaken(Bottleneck(TINY, shape, 0.0, AxialAttention(TINY, shape, (5, 3)))).double().eval()
    x, w = draw(2, 128, 5, 3), dict(block.named_parameters())

    def norm(x, name):
        return F.group_norm(x, 32, w[f"{name}.weight"], w[f"{name}.bias"], 1e-5).relu()

    def convolve(x, name, stride=1):
        return F.conv2d(x, standardise(w[f"{name}.weight"], "bit"), stride=stride)

    y = norm(x, "norm1")
    z = norm(convolve(y, "conv1"), "norm2")
    z = torch.from_numpy(attend_by_loops(block.attn.column, z)[0])
    z = torch.from_numpy(attend_by_loops(block.attn.row, z)[0])
    cells = [[z[:, :, a : a + 2, b : b + 2].mean((2, 3)) for b in (0, 2)] for a in (0, 2, 4)]
    z = torch.stack([torch.stack(row, -1) for row in cells], -2)  # (2, 64, 3, 2), the last of fewer cells
    expected = convolve(y, "downsample.conv", 2) + convolve(norm(z, "norm3"), "conv3")
    torch.testing.assert_close(block(x), expected)


def test_a_bottleneck_lets_every_cell_see_every_other():
    attn = shaken(AxialAttention(AxialResNetConfig(), Shape(256, 256, 1), (4, 6))).double()
    x = draw(1, 64, 4, 6).requires_grad_()
    for part in (attn.column, attn.row):
        part.norm.forward = lambda x: 0.01 * x  # the statistics of the norm also reach every cell
    for layer, reached in ((attn.column, (4, 1)), (attn.row, (1, 6)), (attn, (4, 6))):
        (gradient,) = torch.autograd.grad(layer(x)[0, :, 1, 2].sum(), x)
        assert gradient.abs().sum(1).count_nonzero() == math.prod(reached)


def test_lines_of_another_length_have_a_linearly_resized_table():
    attention = shaken(LineAttention(TINY, 32, 3, 3)).double()
    table = numpy_of(attention.relative)  # offsets -2 to 2
    wanted = np.stack([np.interp(np.linspace(-2, 2, 9), np.arange(-2, 3), column) for column in table.T], 1)
    found = torch.cat([*attention.positions(5, torch.float64)], -1)  # (T, T, 2 E)
    for query in range(5):
        np.testing.assert_allclose(numpy_of(found[query]), wanted[4 - query : 9 - query], rtol=1e-6)


def test_tables_are_as_long_as_the_lines_that_each_block_sees():
    model = build()
    spans = {name: len(each) for name, each in model.named_parameters() if name.endswith("relative")}
    # stages.1.blocks.0 attends before its stride
    assert spans == {
        "stages.0.blocks.0.attn.column.relative": 19,
        "stages.0.blocks.0.attn.row.relative": 11,
        "stages.1.blocks.0.attn.column.relative": 19,
        "stages.1.blocks.0.attn.row.relative": 11,
        "stages.1.blocks.1.attn.column.relative": 9,
        "stages.1.blocks.1.attn.row.relative": 5,
    }
    column, row, *_, last = model.attention_grids((40, 24))
    assert (column.queries, column.cell, last.queries, last.cell) == ((10, 6), (4, 4), (5, 3), (8, 8))
    # the cell below the first one asks second along columns, and its row is that of cells 6 to 11
    assert column.rows[1] == 6
    assert column.columns[1].tolist() == [6 * each for each in range(10)]
    assert row.columns[6].tolist() == [6, 7, 8, 9, 10, 11]
    assert set(spans) <= model.no_decay()


def test_everything_but_the_middle_is_bit():
    ours = {name: each.shape for name, each in build().named_parameters() if ".attn." not in name}
    bit = create_backbone(ResNetConfig(image_size=(40, 24), classes=5, depths=(1, 2)))
    theirs = {name: each.shape for name, each in bit.named_parameters() if ".conv2." not in name}
    assert ours == theirs


def test_positions_matter_and_every_table_has_a_gradient_in_every_part():
    model, images = build(), draw(2, 3, 40, 24)
    for name, gradient in gradients(model, model(images).square().sum()).items():
        if name.endswith("relative"):
            assert gradient.any(0).all(), name


def formula(depths, size=224, classes=1000, heads=8):
    """Parameters and multiply-adds: stem, and in each block two 1 x 1 convolutions, two attentions and the shortcut."""
    side = -(-size // 4)
    parameters, attention, sums = 3 * 64 * 49, 0, (-(-size // 2)) ** 2 * 3 * 64 * 49
    inputs = 64
    for stage, depth in enumerate(depths):
        inner, outputs = 64 * 2**stage, 256 * 2**stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            after = -(-side // stride)
            for _ in ("column", "row"):
                table = (2 * side - 1) * 2 * inner // heads
                parameters += 2 * inner**2 + 2 * 2 * inner + table
                sums += side**2 * 2 * inner**2
                # q k, q r and k r of half the width, and weights times v and r
                attention += side**3 * (3 * inner // 2 + 2 * inner)
            parameters += inputs * inner + inner * outputs + 2 * (inputs + 2 * inner)
            sums += side**2 * inputs * inner + after**2 * inner * outputs
            if inputs != outputs:
                parameters += inputs * outputs
                sums += after**2 * inputs * outputs
            inputs, side = outputs, after
    return parameters + 2 * inputs + (inputs + 1) * classes, sums + attention + inputs * classes, attention


# name: parameters with 1,000 classes, 10^9 multiply-adds at 224 x 224
TABLE = {"axial-resnet26": (10_936_456, 2.610), "axial-resnet50": (19_358_408, 4.053)}


def test_every_model_states_its_size():
    assert TABLE.keys() == {name for name in MODELS if name.startswith("axial-resnet")}


@pytest.mark.parametrize("name", slow_except(TABLE, {"axial-resnet26"}))
def test_parameters_and_multiply_adds_are_those_of_the_formula(name):
    config = MODELS[name]
    cost = cost_of(config)
    assert cost[:3] == formula(config.depths)
    assert (cost.parameters, round(cost.multiply_adds / 1e9, 3)) == TABLE[name]


def test_the_formula_holds_for_odd_maps():
    assert cost_of(configure("axial-resnet26", image_size=97))[:3] == formula((1, 2, 4, 1), size=97)


def test_first_values_are_bits_and_tables_are_wangs():
    torch.manual_seed(0)
    model = create_backbone("axial-resnet26", head_bias=-2.0, classes=9)
    attention = model.stages[3].blocks[0].attn.row
    assert 0.98 * math.sqrt(1 / 512) < attention.qkv.weight.std() < 1.02 * math.sqrt(1 / 512)
    assert 0.98 * math.sqrt(1 / 64) < attention.relative.std() < 1.02 * math.sqrt(1 / 64)
    assert (model.head.bias == -2).all()
    assert not model.head.weight.any()
