"""The stem of a hybrid (ViT paper, section 3.1): patches are cells of a ResNet's feature map instead of pixels of the image.

The ResNet is that of He et al. 2015 (with the stride in the 3 x 3 convolution), with group norm and standardised kernels.
Padding is TensorFlow's SAME: all maps have even sides, and with stride 2 the extra row and column of zeros come last.

BiT's ResNets share `Stage` and the shapes of its blocks.

B images, C channels, H x W pixels, h x w cells of a map, D its channels, N patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import call
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers import GroupNorm, PatchEmbed, StdConv


class Shape(NamedTuple):
    """The input and output channels and the stride of a bottleneck."""

    inputs: int
    outputs: int
    stride: int


def shapes(depths: Sequence[int], stem_width: int) -> Iterator[list[Shape]]:
    """Returns the shapes of the blocks of each stage; its first block changes the width, and halves all maps but the stem's."""
    inputs = stem_width
    for stage, depth in enumerate(depths):
        outputs = 4 * stem_width * 2**stage
        yield [Shape(inputs, outputs, 2 if stage else 1), *[Shape(outputs, outputs, 1)] * (depth - 1)]
        inputs = outputs


class Stage(nn.Module):
    """Blocks with maps of one size."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, run: Callable[..., Tensor]) -> Tensor:
        """(B, D, h, w) to (B, D', h', w'). ``run`` calls a block, as `Backbone._run` does."""
        for block in self.blocks:
            x = run(block, x)
        return x


class SameConv(StdConv):
    """A standardised convolution with SAME padding, from length n, a multiple of the stride, to n / stride."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, rule: str, stride: int = 1) -> None:
        zeros = max(kernel - stride, 0)  # total of both ends
        super().__init__(inputs, outputs, kernel, rule=rule, stride=stride, padding=zeros // 2)
        self.is_odd = zeros % 2 == 1

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        return super().forward(F.pad(input, (0, 1, 0, 1)) if self.is_odd else input, gelu)


class Root(nn.Module):
    """A convolution, group norm, ReLU and max pooling: (B, C, H, W) to (B, D, H / 4, W / 4)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.conv = SameConv(config.in_channels, config.stem_width, 7, stride=2, rule=config.standardise)
        self.norm = GroupNorm(config.stem_width, eps=config.group_norm_eps)

    def forward(self, images: Tensor) -> Tensor:
        x = F.pad(self.norm(self.conv(images)), (0, 1, 0, 1))  # zero padding does not affect the maximum after ReLU
        return F.max_pool2d(x, 3, stride=2)


class Bottleneck(nn.Module):
    """Bottleneck with norms after convolutions (He et al. 2015, figure 5). If the width changes, the shortcut has both."""

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__()
        (inputs, outputs, stride), rule, eps = shape, config.standardise, config.group_norm_eps
        inner = outputs // 4
        self.downsample = None
        if inputs != outputs:
            self.downsample = nn.Sequential()
            self.downsample.add_module("conv", SameConv(inputs, outputs, 1, stride=stride, rule=rule))
            self.downsample.add_module("norm", GroupNorm(outputs, eps=eps, relu=False))
        self.conv1 = SameConv(inputs, inner, 1, rule=rule)
        self.norm1 = GroupNorm(inner, eps=eps)
        self.conv2 = SameConv(inner, inner, 3, stride=stride, rule=rule)
        self.norm2 = GroupNorm(inner, eps=eps)
        self.conv3 = SameConv(inner, outputs, 1, rule=rule)
        self.norm3 = GroupNorm(outputs, eps=eps, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, h, w) to (B, D', h / stride, w / stride)."""
        y = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNetStem(nn.Module):
    """The root and some stages: (B, C, H, W) to (B, D, h, w)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        stages = shapes(config.stem or (), config.stem_width)
        self.stem = Root(config)
        self.stages = nn.ModuleList(Stage(Bottleneck(config, shape) for shape in stage) for stage in stages)

    def forward(self, images: Tensor, run: Callable[..., Tensor] = call) -> Tensor:
        """Applies root and stages. ``run`` calls a block, as `Backbone._run` does."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x, run)
        return x


class HybridEmbed(PatchEmbed):
    """E of equation (1) on the map of a ResNet: each patch covers one cell of it or several."""

    def __init__(self, config: Any) -> None:
        channels = config.stem_width * (2 ** (len(config.stem) + 1) if config.stem else 1)
        rows, columns = (length // config.stem_stride for length in config.patch_size)
        super().__init__(channels, config.width, (rows, columns))
        # timm's names for a root without stages
        self.backbone = ResNetStem(config) if config.stem else Root(config)

    def forward(self, images: Tensor, run: Callable[..., Tensor] = call) -> Tensor:
        """(B, C, H, W) to (B, N, D); ``run`` calls a block of the stem, as `Backbone._run` does."""
        cells = self.backbone(images, run) if isinstance(self.backbone, ResNetStem) else self.backbone(images)
        return super().forward(cells)
