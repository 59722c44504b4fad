"""PVT v2 against transformers', at square, oblong and odd sizes, and by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import assert_near, gradients, outputs_of, shaken
from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, configure, cost_of, create_backbone
from vitrail.models.layers import Conv, activate
from vitrail.models.pvt_v2 import PVTv2, PVTv2Config, average

TINY = PVTv2Config(
    image_size=64,
    classes=5,
    widths=(8, 12, 12, 16),
    depths=(1, 2, 1, 2),
    heads=(1, 2, 3, 2),
    mlp_ratios=(3, 2, 2, 2),
    reductions=(4, 3, 2, 1),
)
SIZES = {"square": (64, 64), "oblong": (64, 96), "odd": (61, 83)}


def make(dtype: torch.dtype = torch.float64, **changes) -> PVTv2:
    return shaken(create_backbone(replace(TINY, **changes))).to(dtype).eval()


def pictures(height: int, width: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1)).double()


# against transformers

THEIRS = {
    r"patch_embed\.proj": "pvt_v2.encoder.layers.0.patch_embedding.proj",
    r"patch_embed\.norm": "pvt_v2.encoder.layers.0.patch_embedding.layer_norm",
    r"stages\.(\d)\.downsample\.proj": r"pvt_v2.encoder.layers.\1.patch_embedding.proj",
    r"stages\.(\d)\.downsample\.norm": r"pvt_v2.encoder.layers.\1.patch_embedding.layer_norm",
    r"stages\.(\d)\.norm": r"pvt_v2.encoder.layers.\1.layer_norm",
    r"stages\.(\d)\.blocks\.(\d)\.norm(\d)": r"pvt_v2.encoder.layers.\1.blocks.\2.layer_norm_\3",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.q": r"pvt_v2.encoder.layers.\1.blocks.\2.attention.query",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.sr": r"pvt_v2.encoder.layers.\1.blocks.\2.attention.spatial_reduction",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.norm": r"pvt_v2.encoder.layers.\1.blocks.\2.attention.layer_norm",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.proj": r"pvt_v2.encoder.layers.\1.blocks.\2.attention.proj",
    r"stages\.(\d)\.blocks\.(\d)\.mlp\.fc(\d)": r"pvt_v2.encoder.layers.\1.blocks.\2.mlp.dense\3",
    r"stages\.(\d)\.blocks\.(\d)\.mlp\.dwconv": r"pvt_v2.encoder.layers.\1.blocks.\2.mlp.dwconv.dwconv",
    r"head": "classifier",
}


def named_as_theirs(ours: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict, or gradients by name, under the names of a ``PvtV2ForImageClassification``, on disk as in memory."""
    renamed = {}
    for name, tensor in ours.items():
        if found := re.fullmatch(r"stages\.(\d)\.blocks\.(\d)\.attn\.kv\.(\w+)", name):
            stage, block, kind = found.groups()
            for part, each in zip(("key", "value"), tensor.chunk(2)):
                renamed[f"pvt_v2.encoder.layers.{stage}.blocks.{block}.attention.{part}.{kind}"] = each
            continue
        [(ours_of, theirs_of)] = [each for each in THEIRS.items() if re.fullmatch(rf"{each[0]}\.(weight|bias)", name)]
        renamed[re.sub(f"^{ours_of}", theirs_of, name)] = tensor
    return renamed


def with_transformers(*, linear: bool) -> tuple[PVTv2, torch.nn.Module]:
    transformers = pytest.importorskip("transformers")
    ours = make(conv_norm_eps=1e-6, linear=linear)  # they have one eps
    config = transformers.PvtV2Config(
        image_size=64,
        num_labels=5,
        hidden_sizes=list(TINY.widths),
        depths=list(TINY.depths),
        num_attention_heads=list(TINY.heads),
        mlp_ratios=list(TINY.mlp_ratios),
        sr_ratios=list(TINY.reductions),
        linear_attention=linear,
        attn_implementation="eager",
    )
    theirs = transformers.PvtV2ForImageClassification(config).double().eval()
    theirs.load_state_dict(named_as_theirs(ours.state_dict()))
    return ours, theirs


@pytest.mark.parametrize(("size", "linear"), [("square", False), ("odd", False), ("oblong", True), ("odd", True)])
def test_logits_features_of_every_block_attention_and_gradients_are_transformers(size, linear):
    ours, theirs = with_transformers(linear=linear)
    images, targets = pictures(*SIZES[size]), torch.tensor([3, 1])
    mine = outputs_of([block for stage in ours.stages for block in stage.blocks])
    others = outputs_of([block for layer in theirs.pvt_v2.encoder.layers for block in layer.blocks])
    with torch.no_grad():
        logits, attention = ours.forward_with_attention(images)
        answer = theirs(images, output_hidden_states=True, output_attentions=True)
        assert torch.equal(logits, ours(images))
        assert_near(logits, answer.logits)
        assert len(others) == 6
        for found, expected in zip(mine, others):
            assert_near(found, expected)
        for found, expected in zip(ours.feature_maps(images), answer.hidden_states, strict=True):
            assert_near(found, expected)
        for found, expected in zip(attention, [each for stage in answer.attentions for each in stage], strict=True):
            assert_near(found, expected.float(), 1e-5)
    mine = named_as_theirs(gradients(ours, F.cross_entropy(ours(images), targets)))
    others = gradients(theirs, F.cross_entropy(theirs(images).logits, targets))
    assert mine.keys() == others.keys()
    for name, expected in others.items():
        # the gradient of a key's bias is zero but for rounding
        assert (mine[name] - expected).abs().max() <= 1e-9 * max(float(expected.abs().max()), 1e-3), name


# linear attention


@pytest.mark.parametrize("grid", [(14, 21), (7, 7), (9, 16), (3, 5), (1, 1)], ids=str)
def test_averages_by_matrices_as_in_a_compiled_model_are_torchs_gradients_included(grid, monkeypatch):
    image = torch.randn(2, 3, *grid, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    plain = average(image, (7, 7))
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    found = average(image, (7, 7))
    torch.testing.assert_close(found, plain)
    towards = torch.randn(plain.shape, dtype=torch.float64)
    for_plain, for_found = (torch.autograd.grad((each * towards).sum(), image)[0] for each in (plain, found))
    torch.testing.assert_close(for_found, for_plain)


def test_each_key_of_linear_attention_averages_its_part_of_the_map_by_hand():
    """Of 16 rows to 7, row 2 is the mean of rows floor(32 / 7) = 4 to ceil(48 / 7) - 1 = 6."""
    image = torch.randn(1, 2, 16, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(average(image, (7, 7))[0, :, 2, 6], image[0, :, 4:7, 7:9].mean((1, 2)))


# paths


@pytest.mark.parametrize(
    ("dtype", "gelu", "batch"),
    [
        (torch.float32, "tanh", 3),
        (torch.float32, "exact", 3),
        (torch.bfloat16, "tanh", 3),
        (torch.bfloat16, "exact", 0),
    ],
    ids=str,
)
def test_the_convolution_with_gelu_without_gradients_is_the_one_with_them(dtype, gelu, batch):
    layer = shaken(Conv(6, 6, 3, padding=1, groups=6)).to(dtype)
    image = torch.randn(batch, 5, 7, 6, generator=torch.Generator().manual_seed(0)).to(dtype).permute(0, 3, 1, 2)
    slow = layer(image, gelu)
    assert slow.requires_grad
    with torch.inference_mode():
        fast = layer(image, gelu)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    torch.testing.assert_close(fast, slow.detach(), **tolerance)
    torch.testing.assert_close(slow, activate(layer(image), gelu))


# verbs


@pytest.mark.parametrize("linear", [False, True])
def test_the_attention_matrices_lie_on_the_stated_grids(linear):
    model = make(linear=linear)
    grids = model.attention_grids((61, 83))
    maps, keys = [(16, 21), *[(8, 11)] * 2, (4, 6), *[(2, 3)] * 2], [(4, 5), *[(2, 3)] * 2, (2, 3), *[(2, 3)] * 2]
    cells, covered = [4, 8, 8, 16, 32, 32], [(16, 20), *[(6, 9)] * 2, (4, 6), *[(2, 3)] * 2]
    assert grids == [
        AttentionGrid(0, each, (7, 7) if linear else key, (cell, cell), covered=None if linear else part)
        for each, key, cell, part in zip(maps, keys, cells, covered)
    ]
    matrices = model.forward_with_attention(pictures(61, 83))[1]
    for matrix, grid, heads in zip(matrices, grids, (1, 2, 2, 3, 2, 2), strict=True):
        queries, keys = (rows * columns for rows, columns in (grid.queries, grid.keys))
        assert (matrix.shape, matrix.dtype) == ((2, heads, queries, keys), torch.float32)
        torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:3]))


def test_layers_hold_every_parameter_once_in_order_of_depth():
    model = make()
    layers = model.layers()
    assert len(layers) == 6 + 2
    assert sorted(name for layer in layers for name in layer) == sorted(dict(model.named_parameters()))
    assert all(name.startswith("patch_embed.") for name in layers[0])
    starts = ["stages.0.", "stages.1.", "stages.1.", "stages.2.", "stages.3.", "stages.3.blocks.1."]
    for layer, start in zip(layers[1:], starts):
        assert layer
        assert all(name.startswith(start) for name in layer)
    assert "stages.1.downsample.proj.weight" in layers[2]
    assert "stages.1.norm.weight" in layers[3]
    assert layers[-1].keys() == {"stages.3.norm.weight", "stages.3.norm.bias", "head.weight", "head.bias"}
    assert not any(name.endswith(("dwconv.weight", "sr.weight", "proj.weight")) for name in model.no_decay())


def test_smaller_patches_overlap_as_much():
    model = make(patch_size=(2, 1), reductions=(1, 1, 1, 1))
    assert model.patch_embed.proj.weight.shape == (8, 3, 3, 1)
    assert model.patchify(pictures(15, 9)).grid == model.config.grids((15, 9))[0] == (8, 9)


def test_first_values_are_the_authors():
    torch.manual_seed(0)
    model = create_backbone("pvt-v2-b1", head_bias=-1.5)
    named = dict(model.named_parameters())
    deviations = {
        "head": 0.02,
        "stages.2.blocks.0.attn.kv": 0.02,
        "patch_embed.proj": (2 / (49 * 64)) ** 0.5,
        "stages.1.downsample.proj": (2 / (9 * 128)) ** 0.5,
        "stages.0.blocks.0.attn.sr": (2 / (64 * 64)) ** 0.5,
        "stages.0.blocks.0.mlp.dwconv": (2 / 9) ** 0.5,
    }
    for name, deviation in deviations.items():
        assert named[f"{name}.weight"].std().item() == pytest.approx(deviation, rel=0.05), name
        assert (named[f"{name}.bias"] == (-1.5 if name == "head" else 0)).all()
    assert (named["stages.0.blocks.0.attn.norm.weight"] == 1).all()
    eps = {name: each.eps for name, each in model.named_modules() if isinstance(each, torch.nn.LayerNorm)}
    assert {eps[name] for name in eps if re.search(r"attn\.norm|downsample|patch_embed", name)} == {1e-5}
    assert {eps[name] for name in eps if re.search(r"norm\d$|stages\.\d\.norm", name)} == {1e-6}


# configs


def test_an_image_is_evaluated_as_the_size_of_a_config():
    with pytest.raises(ConfigError, match="2x5 cells in stage 2"):
        make()(pictures(16, 40))
    with pytest.raises(ConfigError, match="in_channels"):
        make()(pictures(64, 64, channels=1))
    assert make(linear=True, in_channels=1)(pictures(3, 5, channels=1)).shape == (2, 5)


def test_attention_costs_what_queries_times_keys_do():
    """By hand: 2 N K D for each of the two blocks of a stage of B1, with keys of 7 x 7 places in every stage."""
    stages = zip((56, 28, 14, 7), (64, 128, 320, 512))
    assert cost_of(configure("pvt-v2-b1")).attention == sum(2 * 2 * side**2 * 49 * width for side, width in stages)
