"""The stem for small images and other widths: whole networks against plain functions of PyTorch, gradients included."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.conftest import assert_near, gradients, shaken
from tests.tasks.dense_models import create
from vitrail.errors import ConfigError
from vitrail.models import MODELS, configure, cost_of, create_backbone
from vitrail.models.resnet import AxialResNetConfig, BottleneckConfig, ResNetConfig
from vitrail.weights.native import load_model, save_model

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
