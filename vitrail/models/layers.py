"""What architectures share unchanged: patches and tokens, dense layers, MLP, dropped branches. Attention has its own file.

B images, C channels, P x Q pixels a patch, N patches, T tokens, D width, M MLP width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import torch_private
from vitrail.models.config import check_divides, grid_of


class Patches(NamedTuple):
    """Projected patches ``x`` (B, K, D) of a ``grid`` (rows, columns), in row-major order.

    ``ids`` (B, K) names those that were kept, each image's own; None where all N = rows x columns are there.
    """

    x: Tensor
    grid: tuple[int, int]
    ids: Tensor | None = None


def drop_patches(patches: Patches, share: float) -> Patches:
    """Leaves out a ``share`` of the patches, the same number for each image; what was chosen before is not thinned again."""
    x, grid, ids = patches
    if not share or ids is not None:
        return patches
    kept = max(round(x.shape[1] * (1 - share)), 1)
    ids = torch.rand(x.shape[:2], device=x.device).argsort(1)[:, :kept].sort(1).values  # (B, K)
    return Patches(x.gather(1, ids[..., None].expand(-1, -1, x.shape[2])), grid, ids)


class Tokens(NamedTuple):
    """What an encoder gives: ``x`` (B, T, D), prefix tokens first, then the patches as in `Patches`."""

    x: Tensor
    grid: tuple[int, int]
    ids: Tensor | None = None


def is_autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def working_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """What dense layers compute in: autocast's type where that is on, else the weights'."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x) else weight.dtype


def by_hand(x: Tensor) -> AbstractContextManager:
    """Autocast off: what follows says itself which type it computes in."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


class Dense(nn.Linear):
    """``x @ weight.T + bias`` in the type of ``x``, then GELU where ``gelu`` names one ("tanh" or "exact").

    On a CPU, where nothing needs a gradient, all of it is one call of oneDNN, which makes a whole ViT-Ti in bf16 1.2 to 1.4
    times faster with exact GELU and 1.5 to 2.6 with tanh (benchmarks/paths.py). Parameters are filled by `initialise`.
    """

    def reset_parameters(self) -> None:
        """Leaves the memory as it is: the paper's table of initial values is one function of the whole model."""

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        return dense(input, self.weight, self.bias, gelu)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None = None) -> Tensor:
    """`Dense` as a function: (..., D) to (..., D')."""
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if can_fuse_dense(x, weight):
        return torch_private.linear(x, weight, bias, gelu)
    y = F.linear(x, weight, bias)
    return activate(y, gelu) if gelu else y


def can_fuse_dense(x: Tensor, weight: Tensor) -> bool:
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return x.device.type == "cpu" and not needs_gradient and not traced and torch_private.has_fused(x.dtype)


def activate(x: Tensor, gelu: str) -> Tensor:
    return F.gelu(x, approximate="tanh" if gelu == "tanh" else "none")


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in the type of ``x`` with fp32 statistics, where autocast would make fp32 tensors of it."""

    def forward(self, input: Tensor) -> Tensor:
        x = input
        with by_hand(x):
            y = F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
        return y.to(working_dtype(x, self.weight))


class Conv(nn.Conv2d):
    """A convolution in autocast's type where that is on, else in that of its kernel; then GELU where ``gelu`` names one.

    As in `Dense` both are one call where nothing needs a gradient. Parameters are filled by the model.
    """

    def reset_parameters(self) -> None:
        """Leaves the memory as it is, as `Dense` does."""

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        """(B, C, H, W) to (B, D, h, w)."""
        return self.apply_kernel(input, self.weight, gelu)

    def apply_kernel(self, x: Tensor, weight: Tensor, gelu: str | None = None) -> Tensor:
        """The same with another kernel of the same shape."""
        dtype = working_dtype(x, self.weight)
        window: dict[str, Any] = {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }
        with by_hand(x):
            x = x.to(dtype)
            bias = None if self.bias is None else self.bias.to(x.dtype)
            weight = weight.to(x.dtype)
            if gelu and can_fuse_dense(x, weight):
                return torch_private.convolution(x, weight, bias, gelu, **window)
            y = F.conv2d(x, weight, bias, **window)
            # with the channels last, as maps of tokens lie in memory: there GELU and its gradient take a fifth less time
            return activate(y.movedim(1, -1), gelu).movedim(-1, 1) if gelu else y


def whole_patches(images: Tensor, patch_size: tuple[int, int], *, pad: bool) -> Tensor:
    """Images (B, C, H, W) that divide into patches, with ``pad`` filled up with zeros at the bottom and on the right.

    Raises `ConfigError` for others, with the nearest sizes.
    """
    if not pad:
        check_divides(images.shape[2:], patch_size)
        if not torch.compiler.is_exporting():
            return images
        # a graph without Python has no other door: it cannot reshape what does not divide
        return images.reshape(
            *images.shape[:2], *(length // patch * patch for length, patch in zip(images.shape[2:], patch_size))
        )
    whole = (count * patch for count, patch in zip(grid_of(images.shape[2:], patch_size), patch_size))
    below, right = (full - length for full, length in zip(whole, images.shape[2:]))
    fills = torch.compiler.is_compiling() or below or right  # one graph for all sizes
    return F.pad(images, (0, right, 0, below)) if fills else images


def residual_stream(x: Tensor) -> Tensor:
    """What branches are added to: fp32 instead of fp16, which its massive activations (Sun et al. 2024) overflow; not bf16."""
    return x.float() if x.dtype == torch.float16 else x


class PatchEmbed(nn.Module):
    """E of equation (1): each patch of P x Q pixels and C channels times one matrix.

    The parameter has the shape of a convolution, (D, C, P, Q); the product is a dense layer on unfolded patches, which
    with its gradient is 3.5 times faster in bf16 on a CPU (benchmarks/paths.py).
    """

    def __init__(self, in_channels: int, width: int, patch_size: tuple[int, int]) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h P, w Q) to (B, h w, D)."""
        weight = self.proj.weight
        (batch, channels, height, width), (p, q) = images.shape, weight.shape[2:]
        images = images.to(working_dtype(images, weight))
        x = images.reshape(batch, channels, height // p, p, width // q, q).permute(0, 2, 4, 1, 3, 5)
        return dense(x.flatten(3).flatten(1, 2), weight.flatten(1), self.proj.bias)


class LayerScale(nn.Module):
    """One learned factor a channel, small at first (CaiT, Touvron et al. 2021, section 2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma.to(x.dtype)


class Mlp(nn.Module):
    """Two dense layers with GELU between; dropout after each (paper, section 3.1 and appendix B.1)."""

    def __init__(self, width: int, hidden: int, *, gelu: str = "tanh", dropout: float = 0.0) -> None:
        super().__init__()
        self.gelu = gelu
        self.fc1 = Dense(width, hidden)
        self.fc2 = Dense(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.dropout(self.fc1(x, self.gelu))))


def add_branch(
    x: Tensor,
    branch: Callable[[Tensor], Tensor],
    *,
    drop: float = 0.0,
    skip: bool | None = None,
    queries: int | None = None,
) -> Tensor:
    """``x + branch(x)``, the branch dropped with probability ``drop`` for each sample (stochastic depth, Huang et al.
    2016) and scaled by 1 / (1 - drop) where it is not.

    Args:
        x: (B, T, D), or (B, ..., D) without ``queries``.
        skip: do no work for the dropped samples: the branch runs on a subset whose size is fixed up to the rounding
            of B drop, which is drawn, so that each sample is dropped with probability ``drop`` exactly. Otherwise the
            branch runs on all and is masked. By default `skips_work` decides.
        queries: the branch answers for the first Q tokens only, and so does this: (B, Q, D).
    """
    if drop == 0:
        return x[:, :queries] + branch(x)
    if skip is None:
        skip = skips_work(len(x), drop, x.device.type)
    if skip:
        kept = len(x) - int(len(x) * drop + torch.rand(()).item())
        chosen = torch.randperm(len(x), device=x.device)[:kept]
        return x[:, :queries].index_add(0, chosen, branch(x[chosen]).to(x.dtype), alpha=1 / (1 - drop))
    keep = torch.rand(len(x), *[1] * (x.ndim - 1), device=x.device) >= drop
    return x[:, :queries] + branch(x) * (keep.to(x.dtype) / (1 - drop))


def drop_rates(last: float, depth: int) -> list[float]:
    """Stochastic depth of each of ``depth`` blocks, linear from 0 to ``last`` (Huang et al. 2016)."""
    return [last * block / max(depth - 1, 1) for block in range(depth)]


def stage_drop_rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """The same of each block of each stage, linear over all stages."""
    rates = iter(drop_rates(last, sum(depths)))
    return [list(islice(rates, depth)) for depth in depths]


# Samples from which leaving out the dropped ones measures faster than masking them, and the least share to drop.
SKIPS_FROM = {"cpu": (8, 0.1)}


def skips_work(samples: int, drop: float, device: str) -> bool:
    """Whether `add_branch` should leave out the work of dropped samples, from what benchmarks/paths.py measured.

    A compiled model masks: its graph has one shape.
    """
    least_samples, least_drop = SKIPS_FROM.get(device, (0, 1.0))
    # the samples last: a graph that looked at them would hold for some batches only
    return drop >= least_drop and not torch.compiler.is_compiling() and samples >= least_samples
