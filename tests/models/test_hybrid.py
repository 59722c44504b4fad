"""Hybrids: the stem against transformers' and TensorFlow's padding by hand, and a ViT on its map against a plain ViT."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.conftest import gradients, outputs_of, shaken
from vitrail.errors import ConfigError
from vitrail.models import ViT, ViTConfig, configure, cost_of, create_backbone
from vitrail.models.hybrid import Root, SameConv
from vitrail.models.layers import standardise

TINY = ViTConfig(
    image_size=32, patch_size=16, classes=5, stem=(1, 2), stem_width=32, width=16, depth=2, heads=2, mlp_width=24
)
ROOT = replace(TINY, stem=())


def make(config: ViTConfig = TINY, dtype: torch.dtype = torch.float64, **changes) -> ViT:
    return shaken(create_backbone(replace(config, **changes))).to(dtype).eval()


def pictures(height: int, width: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1)).double()


# the stem


def padded_as_tensorflow(image: np.ndarray, kernel: int, stride: int, value: float) -> np.ndarray:
    """SAME: as many outputs as ceil(length / stride); of the padding the smaller half comes first. (C, H, W)."""
    ends = [(0, 0)]
    for length in image.shape[1:]:
        total = max((math.ceil(length / stride) - 1) * stride + kernel - length, 0)
        ends.append((total // 2, total - total // 2))
    return np.pad(image, ends, constant_values=value)


def windows(image: np.ndarray, kernel: int, stride: int, value: float = 0.0):
    """(row, column) of each output, and what it sees: (C, kernel, kernel)."""
    padded = padded_as_tensorflow(image, kernel, stride, value)
    for row in range(0, padded.shape[1] - kernel + 1, stride):
        for column in range(0, padded.shape[2] - kernel + 1, stride):
            yield (row // stride, column // stride), padded[:, row : row + kernel, column : column + kernel]


@torch.no_grad()
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2), (1, 1)])
def test_convolutions_are_padded_as_tensorflows(kernel, stride):
    conv = shaken(SameConv(2, 3, kernel, rule="vit", stride=stride)).double()
    image = pictures(8, 12, 2)[0]
    weight = standardise(conv.weight, "vit").numpy()
    expected = np.zeros((3, 8 // stride, 12 // stride))
    for (row, column), seen in windows(image.numpy(), kernel, stride):
        expected[:, row, column] = (weight * seen).sum((1, 2, 3))
    torch.testing.assert_close(conv(image[None])[0], torch.from_numpy(expected))


@torch.no_grad()
def test_the_root_is_convolution_norm_relu_and_maximum():
    root = shaken(Root(replace(ROOT, group_norm_eps=0.1))).double()
    image = pictures(16, 24)[0]
    x = root.conv(image[None])[0].numpy()  # (32, 8, 12)
    normal = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 0.1)  # a group is one channel
    weight, bias = root.norm.weight.numpy(), root.norm.bias.numpy()
    normal = np.maximum(normal * weight[:, None, None] + bias[:, None, None], 0)
    expected = np.zeros((32, 4, 6))
    for (row, column), seen in windows(normal, 3, 2, -np.inf):
        expected[:, row, column] = seen.max((1, 2))
    torch.testing.assert_close(root(image[None])[0], torch.from_numpy(expected))


def theirs_of(name: str) -> str:
    """The name of a tensor of the stem in a ``BitModel``."""
    name = name.replace("stem.conv.", "embedder.convolution.").replace("stem.norm.", "embedder.norm.")
    return name.replace("stages.", "encoder.stages.").replace("blocks.", "layers.")


def test_maps_after_every_block_and_gradients_are_transformers():
    transformers = pytest.importorskip("transformers")
    model = make(patch_size=32, stem=(1, 2, 1), stem_width=64, standardise="timm", group_norm_eps=1e-5)
    ours = model.patch_embed.backbone
    theirs = transformers.BitModel(
        transformers.BitConfig(
            hidden_sizes=[256, 512, 1024],
            depths=[1, 2, 1],
            layer_type="bottleneck",
            global_padding="SAME",
            embedding_dynamic_padding=True,
        )
    )
    theirs.load_state_dict({theirs_of(name): each for name, each in ours.state_dict().items()})
    theirs = theirs.double().eval()
    blocks = outputs_of(block for stage in ours.stages for block in stage.blocks)
    expected = outputs_of(block for stage in theirs.encoder.stages for block in stage.layers)
    images = pictures(64, 96)
    model.patchify(images)
    last = theirs(images).last_hidden_state
    assert len(blocks) == len(expected) == 4
    for mine, other in zip([*blocks, blocks[-1]], [*expected, last]):
        torch.testing.assert_close(mine, other)
    mine, other = (gradients(each, x.square().sum()) for each, x in ((ours, blocks[-1]), (theirs, last)))
    for name, gradient in mine.items():
        assert gradient.any()
        torch.testing.assert_close(gradient, other[theirs_of(name)])


# the ViT on its map


@pytest.mark.parametrize(
    ("config", "stride", "size"),
    [(TINY, 8, (32, 80)), (replace(TINY, stem=(1,)), 4, (32, 32)), (ROOT, 4, (32, 80))],
    ids=["stages", "one stage", "root"],
)
def test_a_hybrid_is_a_plain_vit_on_the_map_of_its_stem(config, stride, size):
    model, images = make(config), pictures(*size)
    maps = model.patch_embed.backbone(images)
    assert maps.shape[2:] == (size[0] // stride, size[1] // stride)
    options = {"stem": None, "in_channels": maps.shape[1], "patch_size": 16 // stride, "image_size": 32 // stride}
    plain = make(config, **options)
    named = {name: each for name, each in model.state_dict().items() if "backbone" not in name}
    plain.load_state_dict(named)
    torch.testing.assert_close(plain(maps), model(images))
    assert model.patchify(images).grid == plain.patchify(maps).grid == (size[0] // 16, size[1] // 16)
    cell = model.config.patch_size  # in pixels of the image, not in cells of the map
    grids = plain.attention_grids(tuple(maps.shape[2:]))
    assert model.attention_grids(size) == [each._replace(cell=cell) for each in grids]
    logits, matrices = model.forward_with_attention(images)
    torch.testing.assert_close(logits, model(images))
    for mine, other in zip(matrices, plain.forward_with_attention(maps)[1], strict=True):
        torch.testing.assert_close(mine, other)


def test_sizes_are_whole_patches_of_the_image_or_filled_up():
    with pytest.raises(ConfigError, match=r"40x32 pixels does not divide into patches of 16x16\n.*32x32 or 48x32"):
        make()(pictures(40, 32))
    model, images = make(pad=True), pictures(37, 51)
    filled = torch.nn.functional.pad(images, (0, 13, 0, 11))
    torch.testing.assert_close(model(images), make()(filled))


def test_the_stem_is_the_first_layer_and_sees_the_channels():
    names = {TINY: "patch_embed.backbone.stem.conv.weight", ROOT: "patch_embed.backbone.conv.weight"}
    for config, name in names.items():
        model = make(config, in_channels=5)
        assert model.first_layer == name
        assert model.get_parameter(name).shape == (32, 5, 7, 7)
        first, *_ = model.layers()
        stem = {each for each, _ in model.named_parameters() if each.startswith("patch_embed")}
        assert set(first) == stem | {"cls_token", "pos_embed"}
        norms = {each for each in stem if ".norm" in each}
        assert norms
        assert norms <= model.no_decay()
        assert name not in model.no_decay()
    assert make(stem=None).first_layer == "patch_embed.proj.weight"


@pytest.mark.parametrize("config", [TINY, ROOT], ids=["stages", "root"])
def test_checkpointing_recomputes_the_blocks_of_the_stem_and_changes_nothing(config):
    images = pictures(32, 48)
    plain, again = make(config).train(), make(config, checkpoint=True).train()
    runs = outputs_of(module for name, module in again.named_modules() if name.endswith("blocks.1.conv3"))
    mine, other = (gradients(model, model(images).square().sum()) for model in (plain, again))
    assert len(runs) == (2 if config.stem else 0)
    for name, gradient in mine.items():
        assert gradient.any()
        torch.testing.assert_close(gradient, other[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_near(dtype):
    model, images = make(TINY, torch.float32), pictures(32, 32).float()
    logits = model(images)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        assert (model(images) - logits).abs().max() < 0.05 * logits.abs().max()
    assert (model.to(dtype)(images).float() - logits).abs().max() < 0.1 * logits.abs().max()


@pytest.mark.parametrize("initial", ["paper", "mimetic"])
def test_the_last_norm_of_each_branch_begins_at_zero_and_kernels_lecun_normal(initial):
    torch.manual_seed(0)
    model = create_backbone(TINY, initial=initial)
    stem = dict(model.patch_embed.named_parameters())
    for name, x in stem.items():
        if x.ndim == 1:
            zero = name.endswith("bias") or name.endswith("norm3.weight")
            assert torch.equal(x, torch.full_like(x, 0.0 if zero else 1.0)), name
        else:
            sigma = math.sqrt(1 / x[0].numel())
            assert x.abs().max() <= 2 * sigma / 0.87962566
            assert abs(x.std() / sigma - 1) < 5 / math.sqrt(2 * x.numel())
    assert sum(name.endswith("norm3.weight") for name in stem) == 3
    assert model(pictures(32, 32).float()).shape == (2, 5)


# config and sizes


@pytest.mark.slow
def test_larger_images_have_more_positions_and_more_work():
    cost = cost_of(configure("r50-vit-b16", image_size=384))
    assert (cost.parameters, round(cost.multiply_adds / 1e9, 2)) == (98_950_952, 67.16)
    assert cost_of(configure("r-vit-ti16", image_size=384)).tokens == 145
