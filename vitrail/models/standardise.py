"""Convolutions with standardised kernels, group norm, stages of blocks: what BiT's ResNets and the stems of hybrids share.

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
    """Each output's kernel with mean 0 and deviation 1, in fp32 at least: (D, C, P, Q) to the same (Qiao et al. 2019).

    Layer norm is this over a kernel's numbers, and on a CPU several times faster than mean and variance one by one.

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
    """A convolution without bias whose kernel is standardised each time, by one of `STANDARDISATIONS`."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, rule: str, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding, bias=False)
        self.rule = rule

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        return self.apply_kernel(input, standardise(self.weight, self.rule), gelu)


class GroupNorm(nn.GroupNorm):
    """Group norm with fp32 statistics in the type of `LayerNorm`, then ReLU unless ``relu`` is off."""

    def __init__(self, channels: int, *, eps: float, relu: bool = True) -> None:
        super().__init__(GROUPS, channels, eps=eps)
        self.relu = relu

    def reset_parameters(self) -> None:
        """Leaves the memory as it is, as `Dense` does."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, D, h, w) to the same."""
        x = input
        with by_hand(x):
            y = F.group_norm(x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
        y = y.to(working_dtype(x, self.weight))
        return F.relu(y, inplace=True) if self.relu else y


class Shape(NamedTuple):
    """What one bottleneck makes of a map: ``outputs`` channels of ``inputs``, every ``stride``-th row and column."""

    inputs: int
    outputs: int
    stride: int


def shapes(depths: Sequence[int], stem_width: int) -> Iterator[list[Shape]]:
    """Of the blocks of each stage: the first block of a stage changes the width, and halves all maps but the stem's."""
    inputs = stem_width
    for stage, depth in enumerate(depths):
        outputs = 4 * stem_width * 2**stage
        yield [Shape(inputs, outputs, 2 if stage else 1), *[Shape(outputs, outputs, 1)] * (depth - 1)]
        inputs = outputs


class Stage(nn.Module):
    """Blocks whose maps have one size."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, run: Callable[..., Tensor]) -> Tensor:
        """``run`` calls a block, as `Backbone._run` does: (B, D, h, w) to (B, D', h', w')."""
        for block in self.blocks:
            x = run(block, x)
        return x
