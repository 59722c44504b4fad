"""BEiT against transformers', its bias against loops, NumPy and SciPy; its verbs, sizes and first values."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import scipy
import torch

from tests.models.conftest import gradients, outputs_of, shaken
from tests.models.equal_blocks import cost_by_two_blocks
from vitrail.models import AttentionGrid, Patches, configure, cost_of, create_backbone
from vitrail.models.beit import (
    BEITS,
    BIAS_RESIZES,
    BEiT,
    BEiTConfig,
    bias_index,
    count_rows,
    gather_bias,
    interpolate_cubic,
    interpolate_linearly,
    resize_bias,
    solve_progression,
)

GRIDS = [((4, 4), (6, 9)), ((5, 3), (3, 7)), ((7, 5), (4, 3)), ((14, 14), (24, 32))]


def table_for(grid: tuple[int, int], heads: int = 2) -> torch.Tensor:
    return torch.randn(count_rows(grid), heads, generator=torch.Generator().manual_seed(0))


def offsets(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the stored offsets of a line lie, by the authors' search, and the offsets that are asked for."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if sum(q**power for power in range(old - 1)) > new - 1 else (q, high)
    reach = np.cumsum([0, *(q**power for power in range(old - 1))])
    return np.concatenate([-reach[:0:-1], reach]), np.arange(-(new - 1), new)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_the_progression_is_read_with_a_spline_or_straight_lines(old, new):
    table = table_for(old)
    (y, wanted_y), (x, wanted_x) = (offsets(*lengths) for lengths in zip(old, new))
    image = table[:-3].T.unflatten(1, (len(y), len(x))).double().numpy()
    inside_y, inside_x = wanted_y.clip(y[0], y[-1]), wanted_x.clip(x[0], x[-1])
    for head in range(2):
        expected = scipy.interpolate.RectBivariateSpline(y, x, image[head])(inside_y, inside_x)
        found = resize_bias(table[None], old, new, "geometric-cubic")[0, :-3, head]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=2e-5)
        lines = np.stack([np.interp(inside_x, x, row) for row in image[head]])
        expected = np.stack([np.interp(inside_y, y, column) for column in lines.T], 1)
        found = resize_bias(table[None], old, new, "geometric")[0, :-3, head]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=2e-5)


def test_the_rows_of_the_class_token_stay_and_a_constant_stays_constant():
    table, ones = table_for((4, 4)), torch.ones(1, 52, 2)
    for rule in BIAS_RESIZES:
        resized = resize_bias(table[None], (4, 4), (3, 9), rule)
        assert resized.shape == (1, count_rows((3, 9)), 2), rule
        assert torch.equal(resized[0, -3:], table[-3:]), rule
        torch.testing.assert_close(resize_bias(ones, (4, 4), (3, 9), rule), torch.ones(1, count_rows((3, 9)), 2))


@pytest.mark.parametrize("rule", ["geometric", "geometric-cubic"])
def test_an_axis_that_keeps_its_length_keeps_its_numbers(rule):
    table = table_for((4, 4))
    resized = resize_bias(table[None], (4, 4), (4, 8), rule)[0, :-3].unflatten(0, (7, 15))
    # offset 0 lies on the progression whatever its q
    torch.testing.assert_close(resized[:, 7], table[:-3].unflatten(0, (7, 7))[:, 3])


def test_the_powers_of_the_progression_sum_to_the_last_offset():
    for terms, last in ((13, 23), (13, 31), (3, 4)):
        q = solve_progression(terms, torch.tensor(float(last), dtype=torch.float64))
        assert abs(sum(q**power for power in range(terms)) - last) < 1e-3
    assert (
        solve_progression(13, torch.tensor(6.0, dtype=torch.float64)) < 1.010002
    )  # fewer offsets: nearly a patch apart


@pytest.mark.parametrize("count", [1, 2, 3, 5, 27])
def test_lines_are_numpys_and_splines_scipys(count):
    generator = np.random.default_rng(0)
    places = np.sort(generator.normal(size=count)) * 3
    values = generator.normal(size=count)
    wanted = np.linspace(places[0], places[-1], 31)
    given = torch.from_numpy(places), torch.from_numpy(wanted)
    np.testing.assert_allclose(
        interpolate_linearly(*given) @ torch.from_numpy(values), np.interp(wanted, places, values), atol=1e-12
    )
    if count % 2:  # as the number of offsets on a line is
        expected = scipy.interpolate.make_interp_spline(places, values, k=min(count - 1, 3))(wanted)
        np.testing.assert_allclose(interpolate_cubic(*given) @ torch.from_numpy(values), expected, atol=1e-7, rtol=1e-7)


SMALL = {"image_size": 32, "patch_size": 8, "classes": 7, "width": 12, "depth": 3, "heads": 3, "mlp_width": 20}
KINDS = {
    "fine-tuned": ({}, {"use_relative_position_bias": True}),
    "pre-trained": (
        {"relative_bias": "shared", "pool": "cls"},
        {"use_shared_relative_position_bias": True, "use_mean_pooling": False},
    ),
    "positions, no bias, no factors": (
        {"relative_bias": "none", "positions": True, "layer_scale": None},
        {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0},
    ),
    "both": ({"positions": True}, {"use_relative_position_bias": True, "use_absolute_position_embeddings": True}),
}
SIZES_SEEN = [(32, 32), (24, 56), (48, 16), (64, 64)]


def make(dtype: torch.dtype = torch.float64, **changes) -> BEiT:
    return shaken(create_backbone(BEiTConfig(**{**SMALL, **changes}))).to(dtype).eval()


def pictures(batch=2, channels=3, height=32, width=32) -> torch.Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def from_memory(tensors: Iterable[tuple[str, torch.Tensor]], depth: int) -> dict[str, torch.Tensor]:
    """Our names for what transformers holds in memory, weights or gradients."""
    names = {
        "beit.embeddings.": "",
        "patch_embeddings.projection": "patch_embed.proj",
        "position_embeddings": "pos_embed",
        "beit.layers.": "blocks.",
        "attention.o_proj": "attn.proj",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "lambda_": "gamma_",
        ".relative_position_bias.": ".attn.",
        "beit.shared_position_bias": "rel_pos_bias",
        "beit.layernorm": "norm",
        "beit.pooler.layernorm": "fc_norm",
        "classifier": "head",
        "q_proj.bias": "q_bias",
        "v_proj.bias": "v_bias",
        "attention.q_bias": "attn.q_bias",
        "attention.v_bias": "attn.v_bias",
    }
    state = {}
    for name, tensor in tensors:
        for before, after in names.items():
            name = name.replace(before, after)
        state[name] = tensor
    for layer in range(depth):
        parts = [state.pop(f"blocks.{layer}.attention.{part}_proj.weight") for part in "qkv"]
        state[f"blocks.{layer}.attn.qkv.weight"] = torch.cat(parts)
    return state


def with_transformers(kind: str) -> tuple[BEiT, torch.nn.Module]:
    transformers = pytest.importorskip("transformers")
    changes, options = KINDS[kind]
    sizes = {"image_size": 32, "patch_size": 8, "num_labels": 7, "hidden_size": 12, "num_hidden_layers": 3}
    config = transformers.BeitConfig(
        **sizes,
        num_attention_heads=3,
        intermediate_size=20,
        layer_norm_eps=1e-6,
        attn_implementation="eager",
        **options,
    )
    theirs = shaken(transformers.BeitForImageClassification(config)).double().eval()
    ours = make(bias_resize="bilinear", position_resize="bicubic", **changes)
    ours.load_state_dict(from_memory(theirs.state_dict().items(), depth=3))
    return ours, theirs


@pytest.mark.parametrize(("kind", "size"), [*zip(KINDS, SIZES_SEEN), ("fine-tuned", (24, 56))], ids=str)
def test_logits_blocks_attention_and_gradients_are_transformers(kind, size):
    ours, theirs = with_transformers(kind)
    images = pictures(2, 3, *size)
    near = {"atol": 1e-5, "rtol": 1e-5}  # transformers' softmax is in fp32 even in fp64, and resized tables are
    after = outputs_of(theirs.beit.layers)
    answer = theirs(images, output_attentions=True)
    torch.testing.assert_close(ours(images), answer.logits, **near)
    logits, matrices = ours.forward_with_attention(images)
    assert torch.equal(logits, ours(images))
    grid = (size[0] // 8, size[1] // 8)
    for mine, other in zip(ours.feature_maps(images), after, strict=True):
        torch.testing.assert_close(mine, other[:, 1:].mT.unflatten(2, grid), **near)
    for mine, other in zip(matrices, answer.attentions, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other.float(), atol=2e-5, rtol=1e-4)
    mine = gradients(ours, ours(images).square().sum())
    theirs.zero_grad()
    answer.logits.square().sum().backward()
    expected = ((name, parameter.grad) for name, parameter in theirs.named_parameters())
    for name, other in from_memory(expected, depth=3).items():
        scale = other.abs().max()
        assert scale > 0
        # The fp32 rounding of resized tables adds up over images and pairs, differently on each processor.
        torch.testing.assert_close(
            mine[name] / scale, other / scale, atol=1e-4, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_bias_is_read_by_the_offset_of_each_pair():
    rows, columns, heads = 2, 3, 2
    table = torch.randn(3 * 5 + 3, heads)
    bias = gather_bias(table, bias_index((rows, columns), None, table.device))
    assert bias.shape == (1, heads, 7, 7)
    for head in range(heads):
        assert bias[0, head, 0, 0] == table[-1, head]
        for i in range(6):
            assert bias[0, head, 0, 1 + i] == table[-3, head]
            assert bias[0, head, 1 + i, 0] == table[-2, head]
            for j in range(6):
                down, right = i // 3 - j // 3, i % 3 - j % 3
                assert bias[0, head, 1 + i, 1 + j] == table[(down + 1) * 5 + right + 2, head]


@pytest.mark.parametrize("positions", [True, False])
def test_a_subset_of_the_patches_reads_the_bias_of_its_pairs(positions):
    model, images = make(positions=positions), pictures()
    patches = model.patchify(images)
    ids = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(image)) for image in range(2)])
    shuffled = Patches(patches.x.gather(1, ids[..., None].expand(-1, -1, 12)), patches.grid, ids)
    straight, mixed = (model.encode(model.place(each)) for each in (patches, shuffled))
    torch.testing.assert_close(mixed.x[:, 0], straight.x[:, 0])
    torch.testing.assert_close(mixed.x[:, 1:], straight.x[:, 1:].gather(1, ids[..., None].expand(-1, -1, 12)))
    assert not torch.allclose(model.encode(model.place(Patches(shuffled.x, (4, 4)))).x, mixed.x)
    few = Patches(shuffled.x[:, :5], patches.grid, ids[:, :5])
    whole, index = bias_index((4, 4), None, ids.device), bias_index((4, 4), few.ids, ids.device)
    for image in range(2):
        places = torch.cat([torch.zeros(1, dtype=torch.long), few.ids[image] + 1])
        assert torch.equal(index[image], whole[places][:, places])
    assert model.encode(model.place(few)).x.shape == (2, 6, 12)


def test_keys_have_no_bias_and_every_parameter_matters():
    model = make()
    assert not any("k_bias" in name or name.endswith("qkv.bias") for name, _ in model.named_parameters())
    for name, gradient in gradients(model, model(pictures()).square().sum()).items():
        assert gradient.abs().max() > 0, name


def test_grids_say_what_rows_and_columns_are():
    model, size = make(), (24, 40)
    grids = model.attention_grids(size)
    assert grids == [AttentionGrid(1, (3, 5), (3, 5), (8, 8))] * 3
    _, matrices = model.forward_with_attention(pictures(2, 3, *size))
    for grid, matrix in zip(grids, matrices, strict=True):
        assert matrix.shape == (2, 3, grid.prefix + math.prod(grid.queries), grid.prefix + math.prod(grid.keys))
        torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:-1]))


def test_pooling_reads_the_normed_mean_of_patches_or_the_normed_class_token():
    images = pictures()
    for pool in ("gap", "cls"):
        model = make(pool=pool)
        tokens = model.forward_features(images)
        expected = model.fc_norm(tokens.x[:, 1:].mean(1)) if pool == "gap" else tokens.x[:, 0]
        features = model.pool(tokens)
        torch.testing.assert_close(features, expected)
        assert ("norm.weight" in model.state_dict()) == (pool == "cls")
        torch.testing.assert_close(model.heads(features)[pool], model(images))


def test_parameters_lie_in_layers_by_depth():
    model = make(relative_bias="shared", positions=True)
    layers = model.layers()
    assert len(layers) == 3 + 2
    first = {"patch_embed.proj.weight", "patch_embed.proj.bias", "cls_token", "pos_embed"}
    assert set(layers[0]) == {*first, "rel_pos_bias.relative_position_bias_table"}
    assert all(name.startswith("blocks.2.") for name in layers[3])
    assert set(layers[-1]) == {"fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"}
    assert {"blocks.0.gamma_1", "rel_pos_bias.relative_position_bias_table"} <= model.no_decay()
    assert "blocks.1.attn.relative_position_bias_table" in make().no_decay()
    assert "blocks.1.attn.relative_position_bias_table" in make().layers()[2]


def test_first_values_are_the_authors():
    torch.manual_seed(0)
    model = create_backbone("beit-b16", width=192, heads=3, mlp_width=768, depth=2, head_bias=-2.0, positions=True)
    cut = 0.5398960  # deviation of a standard normal variable cut at +-1
    scales = {"head.weight": 0.001, "blocks.0.attn.proj.weight": 0.5**0.5, "blocks.0.mlp.fc2.weight": 0.5**0.5}
    scales |= {"blocks.1.attn.proj.weight": 0.5, "blocks.1.mlp.fc2.weight": 0.5}
    for name, x in model.state_dict().items():
        if "gamma" in name or x.ndim == 1 or "bias_table" in name:
            value = 0.1 if "gamma" in name else -2 if name == "head.bias" else float(name.endswith("weight"))
            assert torch.equal(x, torch.full_like(x, value)), name
        else:
            scale = scales.get(name, 1.0)
            assert x.abs().max() <= 0.02001 * scale, name
            assert math.isclose(x.std(), cut * 0.02 * scale, rel_tol=0.1), name


# parameters with 1,000 classes; the ViT of the same sizes, whose multiply-adds it has
SIZES = {"beit-b16": (86_530_984, "vit-b16"), "beit-l16": (304_430_568, "vit-l16")}


def test_the_cost_extrapolated_from_two_blocks_is_exact():
    config = configure("beit-b16", depth=3, width=24, heads=2, mlp_width=32, image_size=96)
    assert cost_by_two_blocks(config) == cost_of(config)


def test_every_model_costs_what_is_published():
    assert SIZES.keys() == BEITS.keys()
    for name, (parameters, vit) in SIZES.items():
        cost = cost_by_two_blocks(configure(name))
        assert (cost.parameters, cost.multiply_adds) == (
            parameters,
            cost_by_two_blocks(configure(vit)).multiply_adds,
        ), name
