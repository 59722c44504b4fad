"""BiT's ResNet against transformers', its kernels, norms and stems by plain functions of PyTorch, its verbs and its sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.conftest import assert_near, gradients, outputs_of, shaken
from tests.tasks.dense_models import create
from vitrail.errors import ConfigError
from vitrail.models import MODELS, configure, cost_of, create_backbone
from vitrail.models.config import STANDARDISATIONS
from vitrail.models.layers import GroupNorm, drop_rates, standardise
from vitrail.models.resnet import AxialResNetConfig, BottleneckConfig, ResNet, ResNetConfig
from vitrail.weights.native import load_model, save_model

TINY = ResNetConfig(image_size=32, classes=5, depths=(1, 2))


def make(dtype: torch.dtype = torch.float64, **changes) -> ResNet:
    return shaken(create_backbone(replace(TINY, **changes))).to(dtype).eval()


def pictures(height: int, width: int, batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1)).double()


# against transformers, whose rule is timm's


def theirs_of(name: str) -> str:
    """The name of a tensor in a ``BitForImageClassification``, in memory and in its files."""
    name = name.replace("stem.conv.", "embedder.convolution.").replace("stages.", "encoder.stages.")
    return (
        name.replace("head.", "classifier.1.")
        if name.startswith("head.")
        else f"bit.{name.replace('blocks', 'layers')}"
    )


def with_transformers(**changes) -> tuple[ResNet, torch.nn.Module]:
    """One of ours and theirs with the same weights."""
    transformers = pytest.importorskip("transformers")
    ours = make(standardise="timm", **changes)
    config = ours.config
    widths = [256 * config.width_factor * 2**stage for stage in range(len(config.depths))]
    theirs = transformers.BitForImageClassification(
        transformers.BitConfig(
            num_channels=config.in_channels,
            embedding_size=64 * config.width_factor,
            hidden_sizes=widths,
            depths=list(config.depths),
            layer_type="preactivation",
            global_padding=None,
            num_labels=config.classes,
        )
    )
    theirs.load_state_dict({theirs_of(name): each for name, each in ours.state_dict().items()})
    return ours, theirs.double().eval()


OPTIONS = {
    "three stages": {"depths": (1, 2, 1)},
    "wide, grey": {"depths": (2,), "width_factor": 2, "in_channels": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("three stages", (37, 51)), ("wide, grey", (32, 48))])
def test_blocks_logits_and_gradients_are_transformers(name, size):
    ours, theirs = with_transformers(**OPTIONS[name])
    images = pictures(*size, channels=ours.config.in_channels)
    blocks = outputs_of(block for stage in ours.stages for block in stage.blocks)
    expected = outputs_of(block for stage in theirs.bit.encoder.stages for block in stage.layers)
    logits, answer = ours(images), theirs(images, output_hidden_states=True)
    assert len(blocks) == len(expected) == ours.config.blocks
    for mine, other in zip(blocks, expected):
        assert_near(mine, other)
    for mine, other in zip(ours.feature_maps(images), answer.hidden_states[1:], strict=True):
        assert_near(mine, other)
    tokens = ours.forward_features(images)
    assert_near(tokens.x.mT.unflatten(2, tokens.grid), theirs.bit(images).last_hidden_state)
    assert_near(logits, answer.logits)
    mine, other = (gradients(model, each.square().sum()) for model, each in ((ours, logits), (theirs, answer.logits)))
    assert len(mine) == len(other)
    for name, gradient in mine.items():
        assert gradient.any()
        assert_near(gradient, other[theirs_of(name)], 1e-8)


# by hand


def by_hand(kernel: np.ndarray, rule: str) -> np.ndarray:
    centred = kernel - kernel.mean()
    variance = (centred**2).mean()
    return {
        "bit": centred / np.sqrt(variance + 1e-10),
        "timm": centred / np.sqrt(variance + 1e-8),
        "vit": centred / (np.sqrt(variance) + 1e-5),
    }[rule]


@pytest.mark.parametrize("rule", STANDARDISATIONS)
def test_each_kernel_is_standardised_by_its_rule(rule):
    """Small enough that the rules differ in the first digits."""
    weight = torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(0)).double() * 1e-4 + 1e-3
    found = standardise(weight, rule)
    expected = torch.from_numpy(np.stack([by_hand(kernel, rule) for kernel in weight.numpy()]))
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-9)
    assert not torch.allclose(found, standardise(weight, "vit" if rule != "vit" else "bit"), rtol=1e-3)
    assert torch.autograd.gradcheck(lambda x: standardise(x * 1e-3, rule), (weight.requires_grad_() * 1e3,))


@pytest.mark.parametrize("rule", STANDARDISATIONS)
def test_kernels_are_standardised_in_fp32_whatever_they_are_kept_in(rule):
    weight = (torch.randn(2, 64, 3, 3, generator=torch.Generator().manual_seed(0)) * 0.01 + 1).bfloat16()
    found = standardise(weight, rule)
    assert found.dtype == torch.float32
    assert (found - standardise(weight.double(), rule)).abs().max() < 1e-4
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(standardise(weight.float(), rule), found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_group_norm_is_over_places_and_a_32nd_of_the_channels_then_relu(dtype):
    norm = shaken(GroupNorm(64, eps=0.25))
    x = (torch.randn(2, 64, 3, 5, generator=torch.Generator().manual_seed(0)).double() + 20).to(dtype)
    groups = x.double().numpy().reshape(2, 32, -1)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 0.25)
    weight, bias = (each.detach().double()[:, None, None] for each in (norm.weight, norm.bias))
    expected = torch.from_numpy(normal.reshape(2, 64, 3, 5)) * weight + bias
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    found = norm.to(dtype)(x)
    assert found.dtype == dtype
    assert_near(found.double(), expected.clamp(min=0), tolerance)
    norm.relu = False
    assert_near(norm(x).double(), expected, tolerance)


def test_the_stem_pads_its_maximum_with_zeros():
    model = make()
    images = pictures(20, 12)
    x = F.conv2d(images, standardise(model.stem.conv.weight, "bit"), stride=2, padding=3)
    x[:, 0] = -1.0  # below the zeros
    expected = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    model.stem.conv.register_forward_hook(lambda module, given, result: x)
    torch.testing.assert_close(model.stem(images), expected)
    assert torch.equal(expected[:, 0, 0], torch.zeros(2, 3).double())
    assert torch.equal(expected[:, 0, 1:, 1:], -torch.ones(2, 4, 2).double())


# verbs


def test_tokens_are_cells_of_maps_of_images_of_any_size():
    model = make()
    for height, width in ((32, 48), (33, 30), (9, 200)):
        images = pictures(height, width)
        patches = model.patchify(images)
        rows, columns = math.ceil(height / 4), math.ceil(width / 4)
        assert patches.grid == (rows, columns)
        assert patches.x.shape == (2, rows * columns, 64)
        tokens = model.encode(model.place(patches))
        assert tokens.grid == (math.ceil(rows / 2), math.ceil(columns / 2))
        assert tokens.x.shape == (2, math.prod(tokens.grid), model.width)
        features = model.pool(tokens)
        torch.testing.assert_close(features, tokens.x.mean(1))
        torch.testing.assert_close(model.head(features), model(images))
        first, last = model.feature_maps(images)
        assert first.shape == (2, 256, rows, columns)
        torch.testing.assert_close(model.norm(last).flatten(2).mT, tokens.x)
    assert TINY.grid == (8, 8)
    assert configure(TINY, image_size=(33, 30)).grid == (9, 8)


def test_there_is_no_attention_and_asking_for_it_says_what_there_is():
    model = make()
    assert model.attention_grids((32, 32)) == []
    assert cost_of(TINY).attention == 0
    with pytest.raises(ConfigError, match=r"a BiT ResNet has no attention\n.*feature_maps.*vit-b16"):
        model.forward_with_attention(pictures(32, 32))


def test_channels_last_and_checkpointing_change_nothing():
    model, images = make(), pictures(32, 48)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), model(images))
    again = make(checkpoint=True).train()
    runs = outputs_of(stage.blocks[-1].norm2 for stage in again.stages)
    mine, other = (gradients(each, each(images).square().sum()) for each in (model, again))
    assert len(runs) == 4
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, other[name])


def test_layers_follow_the_depth():
    model = make()
    stem, first, second, third, last = model.layers()
    assert list(stem) == [model.first_layer] == ["stem.conv.weight"]
    assert {name.split(".conv")[0] for name in first} >= {"stages.0.blocks.0", "stages.0.blocks.0.downsample"}
    assert "stages.1.blocks.0.conv2.weight" in second
    assert "stages.1.blocks.1.norm1.bias" in third
    assert set(last) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    kernels = {name for name, each in model.named_parameters() if each.ndim > 1}
    assert model.no_decay() == {name for name, _ in model.named_parameters()} - kernels


# numerics


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_maps_are_added_in_fp32_where_they_would_overflow(dtype):
    model, images = make(torch.float32), pictures(32, 32).float()
    with torch.no_grad(), torch.autocast("cpu", dtype):
        maps, logits = model.feature_maps(images), model(images)
    assert {each.dtype for each in maps} == {torch.float32 if dtype == torch.float16 else dtype}
    assert logits.dtype == torch.float32
    assert_near(logits, model(images), 0.05)


def test_dropped_branches_leave_the_shortcut():
    model = make(depths=(1, 3), drop_path=0.6).train()
    assert [block.drop_path for stage in model.stages for block in stage.blocks] == drop_rates(0.6, 4)
    block, x = (
        model.stages[1].blocks[2],
        torch.randn(64, 512, 2, 2, generator=torch.Generator().manual_seed(0)).double(),
    )
    torch.manual_seed(0)
    dropped, kept = block(x), x + (block.eval()(x) - x) / 0.4
    is_dropped = (dropped == x).flatten(1).all(1)
    assert 20 < is_dropped.sum() < 56  # of 64, 38 expected
    torch.testing.assert_close(dropped[~is_dropped], kept[~is_dropped])


def test_first_values_are_the_authors():
    torch.manual_seed(0)
    named = dict(create_backbone(TINY, head_bias=-3.0).named_parameters())
    for name, x in named.items():
        if name.startswith("head"):
            assert torch.equal(x, torch.full_like(x, -3.0 if name == "head.bias" else 0.0))
        elif x.ndim == 1:
            assert torch.equal(x, torch.full_like(x, float(name.endswith("weight"))))
        else:
            sigma = math.sqrt(1 / x[0].numel())
            assert x.abs().max() <= 2 * sigma / 0.87962566
            assert abs(x.mean()) < 5 * sigma / math.sqrt(x.numel())
            assert abs(x.std() / sigma - 1) < 5 / math.sqrt(2 * x.numel())


# config and sizes


def test_multiply_adds_count_by_hand():
    """16 x 24 pixels: maps of 4 x 6 and 2 x 3 cells after the stem's 8 x 12."""
    stem = 8 * 12 * 49 * 3 * 64
    first = 24 * (64 * 64 + 9 * 64 * 64 + 64 * 256 + 64 * 256)
    second = 24 * 256 * 128 + 6 * (9 * 128 * 128 + 128 * 512 + 256 * 512)
    third = 6 * (512 * 128 + 9 * 128 * 128 + 128 * 512)
    assert cost_of(configure(TINY, image_size=(16, 24))).multiply_adds == stem + first + second + third + 512 * 5


SMALL = ResNetConfig(image_size=(12, 20), classes=5, depths=(2, 1, 1), stem="small", stem_width=32)
AXIAL = AxialResNetConfig(image_size=(12, 20), classes=5, depths=(1, 2), stem="small", stem_width=32, heads=4)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def bit(config: ResNetConfig, weights: dict[str, Tensor], images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits and the maps of all stages, from nothing but convolutions, means and variances."""

    def convolve(x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        centred = kernel - kernel.mean((1, 2, 3), keepdim=True)
        kernel = centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-10).sqrt()
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    def norm(x: Tensor, name: str) -> Tensor:
        groups = x.reshape(len(x), 32, -1)
        mean, variance = groups.mean(2, keepdim=True), groups.var(2, keepdim=True, unbiased=False)
        x = ((groups - mean) / (variance + 1e-5).sqrt()).view_as(x)
        return (x * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]).clamp(min=0)

    if config.stem == "small":
        x = convolve(images, "stem.conv")
    else:
        x = F.max_pool2d(F.pad(convolve(images, "stem.conv", 2), (1, 1, 1, 1)), 3, stride=2)
    maps = []
    for stage, depth in enumerate(config.depths):
        for block in range(depth):
            name, stride = f"stages.{stage}.blocks.{block}", 2 if stage and not block else 1
            y = norm(x, f"{name}.norm1")
            z = convolve(norm(convolve(y, f"{name}.conv1"), f"{name}.norm2"), f"{name}.conv2", stride)
            shortcut = x if block else convolve(y, f"{name}.downsample.conv", stride)
            x = shortcut + convolve(norm(z, f"{name}.norm3"), f"{name}.conv3")
        maps.append(x)
    features = norm(x, "norm").mean((2, 3))
    return features @ weights["head.weight"].T + weights["head.bias"], maps


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, (12, 20)),
        ({"in_channels": 1, "stem_width": 96, "depths": (1, 1)}, (11, 7)),
        ({"width_factor": 3, "depths": (1, 1)}, (8, 8)),
        ({"stem": "paper", "stem_width": 32}, (37, 30)),
    ],
    ids=["small", "grey, odd, 96 wide", "three times as wide", "the paper's, 32 wide"],
)
def test_maps_logits_and_gradients_are_those_of_plain_functions(changes, size):
    config = replace(SMALL, **changes)
    model = shaken(create_backbone(config)).double().eval()
    images = draw(2, config.in_channels, *size)
    logits, maps = bit(config, dict(model.named_parameters()), images)
    found = model(images)
    assert_near(found, logits)
    for mine, other, cell in zip(model.feature_maps(images), maps, config.cells, strict=True):
        assert_near(mine, other)
        assert mine.shape[2:] == tuple(math.ceil(length / side) for length, side in zip(size, cell))
    mine, other = (gradients(model, each.square().sum()) for each in (found, logits))
    for name, gradient in mine.items():
        assert gradient.any(), name
        assert_near(gradient, other[name], 1e-8)


def test_every_size_follows_from_the_stem():
    assert (SMALL.patch_size, SMALL.grid, SMALL.cells) == ((1, 1), (12, 20), [(1, 1), (2, 2), (4, 4)])
    assert (SMALL.root_width, SMALL.widths, SMALL.width) == (32, (128, 256, 512), 512)
    wide = replace(SMALL, width_factor=3)
    assert (wide.root_width, wide.widths) == (96, (384, 768, 1536))
    paper = configure(SMALL, stem="paper")
    assert (paper.patch_size, paper.grid, paper.cells) == ((4, 4), (3, 5), [(4, 4), (8, 8), (16, 16)])
    model = create_backbone(SMALL)
    patches = model.patchify(torch.zeros(1, 3, 12, 20))
    assert (patches.grid, patches.x.shape[2], model.patch_width) == ((12, 20), 32, 32)
    assert model.stem.conv.weight.shape == (32, 3, 3, 3)


def test_multiply_adds_and_parameters_count_by_hand():
    """12 x 20 pixels: maps of 240, 60 and 15 cells, 32, 64 and 128 channels inside the bottlenecks."""
    stem, last = 240 * 9 * 3 * 32, 512 * 5
    first = 240 * (32 * 32 + 9 * 32 * 32 + 32 * 128 + 32 * 128)
    second = 240 * (128 * 32 + 9 * 32 * 32 + 32 * 128)
    third = 240 * 128 * 64 + 60 * (9 * 64 * 64 + 64 * 256 + 128 * 256)
    fourth = 60 * 256 * 128 + 15 * (9 * 128 * 128 + 128 * 512 + 256 * 512)
    cost = cost_of(SMALL)
    assert cost.multiply_adds == stem + first + second + third + fourth + last
    norms = 2 * ((32 + 32 + 32) + (128 + 32 + 32) + (128 + 64 + 64) + (256 + 128 + 128) + 512)
    kernels = 27 * 32 + (9 + 1 + 4 + 4) * 32**2 + (9 + 4 + 4) * 32**2 + (8 + 9 * 4 + 16 + 32) * 32**2
    kernels += (32 + 9 * 16 + 64 + 128) * 32**2
    assert cost.parameters == norms + kernels + last + 5


def test_axial_attention_runs_on_the_maps_of_the_stem():
    """Blocks in stride and place are those of the network with the paper's stem on an image four times as large."""
    small = shaken(create_backbone(AXIAL)).double().eval()
    paper = create_backbone(replace(AXIAL, stem="paper", image_size=(48, 80))).double().eval()
    state = small.state_dict()
    paper.load_state_dict({**state, "stem.conv.weight": paper.state_dict()["stem.conv.weight"]})
    patches = small.patchify(draw(2, 3, 12, 20))
    records, others = [], []
    mine, other = small.encode(patches, records.append), paper.encode(patches, others.append)
    assert_near(mine.x, other.x)
    for one, two in zip(records, others, strict=True):
        assert_near(one.weights(), two.weights())
    for size in ((12, 20), (10, 26)):
        cells = [(1, 1)] * 4 + [(2, 2)] * 2
        for grid, larger, cell in zip(
            small.attention_grids(size), paper.attention_grids((4 * size[0], 4 * size[1])), cells, strict=True
        ):
            assert (grid.queries, grid.cell) == (larger.queries, cell)
    tables = {name: len(each) for name, each in state.items() if name.endswith("relative")}
    assert set(tables.values()) == {23, 39, 11, 19}


def test_a_dense_task_answers_at_the_stride_of_the_stem(tmp_path):
    task = create("segmentation", SMALL)
    images = draw(1, 3, 12, 20).float()
    logits = task(images)
    again = load_model(save_model(tmp_path / "model", task))
    assert again.config == task.config
    assert torch.equal(again(images), logits)


def test_files_of_before_have_the_papers_stem():
    old = {name: value for name, value in MODELS["bit-r50x3"].to_dict().items() if name not in ("stem", "stem_width")}
    assert ResNetConfig.from_dict(old) == MODELS["bit-r50x3"]
    assert MODELS["bit-r50x3"].widths == (768, 1536, 3072, 6144)


@pytest.mark.parametrize("kind", [ResNetConfig, AxialResNetConfig])
def test_other_stems_are_refused(kind: type[BottleneckConfig]):
    for changes, words in (
        ({"stem": "cifar"}, r"stem is 'cifar'\n.*paper, small"),
        ({"stem_width": 48}, r"stem_width is 48\n.*a multiple of 32"),
        ({"stem_width": 0}, r"stem_width is 0\n.*at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            kind(**changes)
