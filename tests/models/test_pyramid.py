"""Necks and heads of dense tasks: against transposed convolutions, transformers' SegFormer, and the obvious order of steps."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.conftest import gradients, shaken
from vitrail.errors import ConfigError
from vitrail.models import ViTConfig
from vitrail.models.dense import (
    BoxHead,
    FeaturePyramid,
    FusedHead,
    LinearHead,
    SimplePyramid,
    Upscale,
    create_pyramid,
    to_strides,
)
from vitrail.models.swin import SwinConfig

WIDTHS, CELLS = (6, 8, 10, 12), [(4, 4), (8, 8), (16, 16), (32, 32)]


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def maps_of(height=64, width=96, batch=2):
    """Maps of a pyramid for images of that size, rounded up."""
    return [draw(batch, inputs, -(-height // down), -(-width // right)) for inputs, (down, right) in zip(WIDTHS, CELLS)]


def test_upscaling_is_a_transposed_convolution_and_a_depthwise_one():
    layer, x = shaken(Upscale(6, 4)).double(), draw(2, 6, 3, 5)
    kernel = layer.expand.weight.view(4, 2, 2, 6).permute(3, 0, 1, 2)  # (D, D', 2, 2)
    enlarged = F.conv_transpose2d(x, kernel, stride=2) + layer.expand.bias.view(4, 2, 2).repeat(1, 3, 5)
    y = F.conv2d(F.gelu(enlarged), layer.depthwise.weight, layer.depthwise.bias, padding=1, groups=4)
    y = F.layer_norm(y.movedim(1, -1), (4,), layer.norm.weight, layer.norm.bias).movedim(-1, 1)
    torch.testing.assert_close(layer(x), y)


def test_levels_of_a_plain_network_are_powers_of_two_of_its_patch():
    powers = ["4", "8", "16", "32"]
    for patch, strides in {16: powers, 14: ["7/2", "7", "14", "28"], 8: powers, 32: powers}.items():
        neck = SimplePyramid(12, (patch, patch), (4, 8, 16, 32), 5)
        assert neck.strides == [(Fraction(stride),) * 2 for stride in strides], patch
        found = neck([torch.randn(1, 12, 4, 8)])
        assert [tuple(each.shape) for each in found] == [
            (1, 5, 4 * patch / Fraction(stride), 8 * patch / Fraction(stride)) for stride in strides
        ]


def test_a_feature_pyramid_adds_coarse_maps_to_the_cells_of_finer_ones_that_they_cover():
    neck, maps = shaken(FeaturePyramid(WIDTHS, CELLS, (8, 16, 32, 64), 5)).double(), maps_of(60, 90)
    maps[2].requires_grad_()
    found = neck(maps)
    assert [stride[0] for stride in neck.strides] == [8, 16, 32, 64]
    assert [tuple(each.shape[2:]) for each in found] == [(8, 12), (4, 6), (2, 3), (1, 2)]
    (reached,) = torch.autograd.grad(
        found[0][:, :, 6, 3].square().sum(), maps[2]
    )  # looks at rows 5 to 7, columns 2 to 4
    assert reached[0].abs().sum(0).nonzero().tolist() == [[2, 1], [2, 2], [3, 1], [3, 2]]


def test_a_level_finer_than_all_maps_is_refused():
    with pytest.raises(ConfigError, match="a level of 4 pixels, and the finest map has a stride of 8"):
        create_pyramid(SwinConfig(patch_size=8), (4, 8), 16)
    assert create_pyramid(ViTConfig(patch_size=16), (4,), 16).strides == [(4, 4)]


def folded(theirs, ours):
    """Our head with the weights of transformers': batch norm becomes a part of the matrices before it."""
    norm, width = theirs.batch_norm, theirs.batch_norm.num_features
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    fuse = (scale[:, None] * theirs.linear_fuse.weight[..., 0, 0]).split(width, 1)[::-1]  # the coarsest map comes first
    ours.norm, ours.activation = nn.Identity(), nn.ReLU()
    bias = norm.bias - scale * norm.running_mean
    for project, own, part in zip(ours.project, theirs.linear_projections, fuse):
        project.weight.copy_((part @ own.proj.weight)[..., None, None])
        bias = bias + part @ own.proj.bias
    ours.project[0].bias.copy_(bias)
    ours.classifier.weight.copy_(theirs.classifier.weight)
    ours.classifier.bias.copy_(theirs.classifier.bias)
    return ours


def test_the_fused_head_is_segformers():
    from transformers import SegformerConfig
    from transformers.models.segformer.modeling_segformer import SegformerDecodeHead

    config = SegformerConfig(hidden_sizes=list(WIDTHS), decoder_hidden_size=16, num_labels=5)
    theirs = shaken(SegformerDecodeHead(config)).double().eval()
    theirs.batch_norm.running_mean.normal_(generator=torch.Generator().manual_seed(2))
    theirs.batch_norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours = folded(theirs, FusedHead(WIDTHS, to_strides(CELLS), 16, 5).double().eval())
    found, expected = ([each.requires_grad_() for each in maps_of()] for _ in range(2))
    one, other = ours(found), theirs(tuple(expected))
    torch.testing.assert_close(one, other)
    for mine, their in zip(
        *(torch.autograd.grad(out.square().sum(), maps) for out, maps in ((one, found), (other, expected)))
    ):
        torch.testing.assert_close(mine, their)


@pytest.mark.parametrize("size", [(64, 96), (33, 47)])
def test_projecting_before_enlarging_is_enlarging_before_projecting(size):
    head, maps = shaken(FusedHead(WIDTHS, to_strides(CELLS), 16, 5)).double().eval(), maps_of(*size)
    height, width = maps[0].shape[2:]
    wide = []
    for place, x in enumerate(maps):
        x = F.interpolate(x, scale_factor=2.0**place, mode="bilinear", align_corners=False)
        wide.append(x[:, :, :height, :width])  # the last cells reach beyond the image
    kernel = torch.cat([project.weight for project in head.project], 1)
    fused = head.norm(F.conv2d(torch.cat(wide, 1), kernel, head.project[0].bias))
    expected = F.conv2d(F.gelu(fused), head.classifier.weight, head.classifier.bias)
    torch.testing.assert_close(head(maps), expected)
    found = gradients(head, head(maps).square().sum())
    for name, gradient in gradients(head, expected.square().sum()).items():
        torch.testing.assert_close(found[name], gradient)


def test_untrained_heads_answer_all_classes_alike_and_detectors_expect_nothing():
    maps = maps_of()
    for head in (LinearHead(WIDTHS[-1], 5), FusedHead(WIDTHS, to_strides(CELLS), 16, 5)):
        assert not head.double()(maps).any()
    head = BoxHead(to_strides(CELLS[1:]), 16, 3).double()
    found = head([draw(1, 16, *each.shape[2:]) for each in maps[1:]])
    assert found.shape == (1, 8 * 12 + 4 * 6 + 2 * 3, 10)
    assert (found[..., 7:].sigmoid() - 0.01).abs().max() < 0.005
    assert found[0, :2, 4:7].tolist() == [[4, 4, 8], [12, 4, 8]]
    assert found[0, 96 + 6, 4:7].tolist() == [8, 24, 16]
    reach = torch.cat([found[..., 4:6] - found[..., :2], found[..., 2:4] - found[..., 4:6]], -1)
    assert (reach / found[..., 6:7] - 2).abs().max() < 0.3
