"""Shared parts of BiT's ResNets and hybrid stems: convolutions with standardised kernels, group norm, and stages.

B images, C channels in, D out, P x Q the kernel, h x w cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.config import GROUPS, STANDARDISATIONS
from vitrail.models.layers import Conv, by_hand, working_dtype


def standardise(weight: Tensor, rule: str) -> Tensor:
    """Standardises the kernel (D, C, P, Q) of each output to mean 0 and std 1, in at least fp32 (Qiao et al. 2019).

    It is computed as a layer norm over each kernel, which is several times faster on a CPU than separate mean and variance.

    Args:
        rule: one of `STANDARDISATIONS`.
    """
    eps, where = STANDARDISATIONS[rule]
    kernels = weight.flatten(1).to(torch.promote_types(weight.dtype, torch.float32))  # (D, C P Q)
    inputs = kernels.shape[1]
    if where == "variance":
        return F.layer_norm(kernels, (inputs,), eps=eps).view_as(weight)
    kernels = kernels - kernels.mean(1, keepdim=True)
    deviations = torch.linalg.vector_norm(kernels, dim=1, keepdim=True) / math.sqrt(inputs)
    return (kernels / (deviations + eps)).view_as(weight)


class StdConv(Conv):
    """A convolution without bias whose kernel is standardised in every forward pass, by one of `STANDARDISATIONS`."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, rule: str, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding, bias=False)
        self.rule = rule

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        return self.apply_kernel(input, standardise(self.weight, self.rule), gelu)


class GroupNorm(nn.GroupNorm):
    """Group norm with fp32 statistics and the output type of `LayerNorm`, followed by ReLU unless ``relu`` is False."""

    def __init__(self, channels: int, *, eps: float, relu: bool = True, groups: int = GROUPS) -> None:
        super().__init__(groups, channels, eps=eps)
        self.relu = relu

    def reset_parameters(self) -> None:
        """Does nothing, as in `Dense`."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, D, h, w) to the same."""
        x = input
        with by_hand(x):
            y = F.group_norm(x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
        y = y.to(working_dtype(x, self.weight))
        return F.relu(y, inplace=True) if self.relu else y


class Shape(NamedTuple):
    """The input and output channels and the stride of a bottleneck."""

    inputs: int
    outputs: int
    stride: int


def shapes(depths: Sequence[int], stem_width: int) -> Iterator[list[Shape]]:
    """Returns the shapes of the blocks of each stage. The first block of a stage changes the width, and halves all maps but
    that of the stem.
    """
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
