"""Layers shared by the architectures: patches and tokens, dense layers, MLP, stochastic depth, heads, standardised
convolutions, group norm.

B images, C channels, P x Q pixels a patch, h x w cells of a map, N patches, T tokens, D width, M MLP width, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import torch_private
from vitrail.models.config import GELUS, GROUPS, STANDARDISATIONS, Pair, check_divides, grid_of


class Patches(NamedTuple):
    """Projected patches ``x`` (B, K, D) of a ``grid`` (rows, columns), in row-major order.

    ``ids`` (B, K) are the indices of the kept patches of each image; None if all N = rows x columns are kept.
    """

    x: Tensor
    grid: tuple[int, int]
    ids: Tensor | None = None


def drop_patches(patches: Patches, share: float) -> Patches:
    """Drops a fraction ``share`` of the patches, the same number for each image. A subset of patches is not changed."""
    x, grid, ids = patches
    if not share or ids is not None:
        return patches
    kept = max(round(x.shape[1] * (1 - share)), 1)
    ids = torch.rand(x.shape[:2], device=x.device).argsort(1)[:, :kept].sort(1).values  # (B, K)
    return Patches(gather_rows(x, ids), grid, ids)


def gather_rows(x: Tensor, ids: Tensor) -> Tensor:
    """Gathers the rows ``ids`` (B, K) of each image from (B, N, D): (B, K, D)."""
    return x.gather(1, ids[..., None].expand(-1, -1, x.shape[2]))


def cut_patches(images: Tensor, patch_size: Pair) -> Tensor:
    """Cuts images (B, C, h P, w Q) to patches (B, N, C, P, Q)."""
    (p, q), (height, width) = patch_size, images.shape[2:]
    x = images.unflatten(3, (width // q, q)).unflatten(2, (height // p, p))  # (B, C, h, P, w, Q)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def join_patches(patches: Tensor, size: Pair) -> Tensor:
    """Joins what `cut_patches` cut from images of ``size``, or padded to whole patches: (B, N, C, P, Q) to (B, C, h P, w Q)."""
    x = patches.unflatten(1, grid_of(size, patches.shape[3:]))  # (B, h, w, C, P, Q)
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


class Tokens(NamedTuple):
    """The output of an encoder: ``x`` (B, T, D), prefix tokens first, then the patches as in `Patches`."""

    x: Tensor
    grid: tuple[int, int]
    ids: Tensor | None = None


def as_map(x: Tensor, grid: Pair) -> Tensor:
    """Views tokens (B, N, D) as a map (B, D, h, w) in channels-last memory format, the fastest for convolutions."""
    return x.mT.unflatten(2, grid)


def as_tokens(image: Tensor) -> Tensor:
    """Converts a map (B, D, h, w) to tokens (B, N, D); a view for channels-last memory format."""
    return image.flatten(2).mT


def is_autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def working_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Returns the type of computation: that of autocast if enabled, otherwise that of the weights."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x) else weight.dtype


def by_hand(x: Tensor) -> AbstractContextManager:
    """Disables autocast within the block."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


class Dense(nn.Linear):
    """``x @ weight.T + bias`` in the type of ``x``, followed by GELU if ``gelu`` names one of `config.GELUS`.

    On a CPU without gradients, this is one call of oneDNN where that is faster: it makes a whole ViT-Ti in bf16 1.2 to 1.4 times
    faster with exact GELU and 1.5 to 2.6 with tanh (benchmarks/paths.py). Parameters are initialised by `initialise`.
    """

    def reset_parameters(self) -> None:
        """Does nothing: parameters are initialised by one function for the whole model."""

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        return dense(input, self.weight, self.bias, gelu)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None = None) -> Tensor:
    """Functional form of `Dense`: (..., D) to (..., D')."""
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if gelu != "quick" and can_fuse_dense(x, weight):
        return torch_private.linear(x, weight, bias, gelu)
    y = F.linear(x, weight, bias)
    return activate(y, gelu) if gelu else y


def can_fuse_dense(x: Tensor, weight: Tensor) -> bool:
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return x.device.type == "cpu" and not needs_gradient and not traced and torch_private.takes_fused(x.dtype)


def activate(x: Tensor, gelu: str) -> Tensor:
    """Applies one of `config.GELUS`. Raises `ValueError` for another name."""
    if gelu == "quick":
        return x * (1.702 * x).sigmoid()
    if gelu not in GELUS:
        raise ValueError(f"gelu is {gelu!r}, one of {', '.join(GELUS)} is needed")
    return F.gelu(x, approximate="tanh" if gelu == "tanh" else "none")


class LayerNorm(nn.LayerNorm):
    """Layer normalisation with fp32 statistics and an output in the type of ``x``; autocast would return fp32."""

    def forward(self, input: Tensor) -> Tensor:
        x = input
        with by_hand(x):
            y = F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
        return y.to(working_dtype(x, self.weight))


class RMSNorm(nn.RMSNorm):
    """Division by the root mean square, in fp32, and the output type of `LayerNorm` (Zhang & Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        with by_hand(x):
            y = F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
        return y.to(working_dtype(x, self.weight))


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


class Conv(nn.Conv2d):
    """A convolution in the type of autocast if enabled, otherwise that of its kernel, followed by optional GELU.

    As in `Dense`, both are one call without gradients. Parameters are initialised by the model.
    """

    def reset_parameters(self) -> None:
        """Does nothing, as in `Dense`."""

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        """(B, C, H, W) to (B, D, h, w)."""
        return self.apply_kernel(input, self.weight, gelu)

    def apply_kernel(self, x: Tensor, weight: Tensor, gelu: str | None = None, bias: Tensor | None = None) -> Tensor:
        """Convolves with another kernel of the same shape, or another bias."""
        dtype = working_dtype(x, self.weight)
        window: dict[str, Any] = {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}
        bias = self.bias if bias is None else bias
        with by_hand(x):
            x = x.to(dtype)
            bias = None if bias is None else bias.to(x.dtype)
            weight = weight.to(x.dtype)
            if gelu and gelu != "quick" and can_fuse_dense(x, weight):
                return torch_private.convolution(x, weight, bias, gelu, **window)
            y = F.conv2d(x, weight, bias, **window)
            # channels last, the memory format of token maps, in which GELU and its gradient are 20 % faster
            return activate(y.movedim(1, -1), gelu).movedim(-1, 1) if gelu else y


def whole_patches(images: Tensor, patch_size: tuple[int, int], *, pad: bool) -> Tensor:
    """Checks that images (B, C, H, W) are divisible into patches, or with ``pad``, pads with zeros at the bottom and right.

    Raises `ConfigError` for other sizes, with the nearest valid ones.
    """
    if not pad:
        check_divides(images.shape[2:], patch_size)
        if not torch.compiler.is_exporting():
            return images
        # exported graphs cannot raise; they fail to reshape other sizes
        whole = (length // patch * patch for length, patch in zip(images.shape[2:], patch_size))
        return images.reshape(*images.shape[:2], *whole)
    whole = (count * patch for count, patch in zip(grid_of(images.shape[2:], patch_size), patch_size))
    below, right = (full - length for full, length in zip(whole, images.shape[2:]))
    fills = torch.compiler.is_compiling() or below or right  # the same graph for all sizes
    return F.pad(images, (0, right, 0, below)) if fills else images


def residual_stream(x: Tensor) -> Tensor:
    """Converts an fp16 residual stream to fp32, because massive activations (Sun et al. 2024) overflow fp16, but not bf16."""
    return x.float() if x.dtype == torch.float16 else x


class PatchEmbed(nn.Module):
    """Linear projection of patches of P x Q pixels and C channels, E of equation (1).

    The parameter has the shape of a convolution kernel, (D, C, P, Q). It is applied as a dense layer to unfolded patches,
    which is 3.5 times faster in bf16 on a CPU, gradient included (benchmarks/paths.py).
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        patch_size: tuple[int, int],
        *,
        bias: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch_size, stride=patch_size, bias=bias)
        self.norm = norm or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h P, w Q) to (B, h w, D)."""
        weight = self.proj.weight
        (batch, channels, height, width), (p, q) = images.shape, weight.shape[2:]
        images = images.to(working_dtype(images, weight))
        x = images.reshape(batch, channels, height // p, p, width // q, q).permute(0, 2, 4, 1, 3, 5)
        return self.norm(dense(x.flatten(3).flatten(1, 2), weight.flatten(1), self.proj.bias))


class LayerScale(nn.Module):
    """One learned factor per channel with a small initial value (CaiT, Touvron et al. 2021, section 2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return scale_channels(x, self.gamma)


def scale_channels(x: Tensor, gamma: Tensor | None) -> Tensor:
    """Multiplies each channel by its factor in ``gamma`` (D,), if there is one."""
    return x if gamma is None else x * gamma.to(x.dtype)


class Mlp(nn.Module):
    """Two dense layers with GELU in between and dropout after each (paper, section 3.1 and appendix B.1).

    Args:
        norm: of the hidden layer, before the second dense layer.
        bias: whether the dense layers have one.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        gelu: str = "tanh",
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.gelu = gelu
        self.fc1 = Dense(width, hidden, bias=bias)
        self.norm = norm or nn.Identity()
        self.fc2 = Dense(hidden, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.norm(self.dropout(self.fc1(x, self.gelu)))))


class SwiGLU(nn.Module):
    """W2 (silu(W x) * (V x)), with dropout and norm as in `Mlp` (Shazeer 2020); the rows of ``fc1`` are W, then V."""

    def __init__(self, width: int, hidden: int, *, dropout: float, norm: nn.Module | None, bias: bool) -> None:
        super().__init__()
        self.fc1 = Dense(width, 2 * hidden, bias=bias)
        self.norm = norm or nn.Identity()
        self.fc2 = Dense(hidden, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, -1)  # (B, T, M) each
        return self.dropout(self.fc2(self.norm(self.dropout(F.silu(gate) * value))))


Branch = Callable[[Tensor], Tensor]  # what a residual connection adds to its input


def add_branch(
    x: Tensor, branch: Branch, *, drop: float = 0.0, skip: bool | None = None, queries: int | None = None
) -> Tensor:
    """Returns ``x + branch(x)`` with stochastic depth (Huang et al. 2016): the branch is dropped with probability ``drop`` for
    each sample, and otherwise scaled by 1 / (1 - drop).

    Args:
        x: (B, T, D), or (B, ..., D) without ``queries``.
        skip: run the branch on the kept samples only, instead of masking its output, by default if `skips_work`. B drop samples
            are dropped, rounded up or down at random, so that each is dropped with probability ``drop`` exactly.
        queries: number Q of tokens that the branch returns; the result is then (B, Q, D).
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


class ResidualBlock(nn.Module):
    """A block of two residual branches, attention and MLP, each dropped with probability ``drop_path`` (stochastic depth)."""

    drop_path: float

    def add_branches(
        self, x: Tensor, attention: Branch, mlp: Branch, *, whole: bool = False, queries: int | None = None
    ) -> Tensor:
        """Returns z of z' = attention(x) + x, z = mlp(z') + z', for the first ``queries`` tokens.

        With ``whole`` the branches see all images: attention is recorded, or depends on the image.
        """
        drop = self.drop_path if self.training else 0.0
        skip = False if whole else None
        x = add_branch(x, attention, drop=drop, skip=skip, queries=queries)
        return add_branch(x, mlp, drop=drop, skip=skip)


class PreNormBlock(ResidualBlock):
    """z' = attention(LN(x)) + x, z = MLP(LN(z')) + z', with dropout after attention."""

    attn: Any

    def __init__(self, config: Any, width: int, attn: nn.Module, mlp: nn.Module, drop_path: float) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = LayerNorm(width, eps=config.norm_eps)
        self.attn = attn
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = LayerNorm(width, eps=config.norm_eps)
        self.mlp = mlp

    def run_branches(self, x: Tensor, attention: Branch, mlp: Branch | None = None, *, whole: bool) -> Tensor:
        """Returns z with ``attention`` and ``mlp``, by default that of the block, of normalised inputs; see `add_branches`."""
        of_norm = mlp or self.mlp

        def attend(x: Tensor) -> Tensor:
            return self.dropout(attention(self.norm1(x)))

        return self.add_branches(x, attend, lambda x: of_norm(self.norm2(x)), whole=whole)


def drop_rates(last: float, depth: int) -> list[float]:
    """Returns the drop rate of each of ``depth`` blocks, linear from 0 to ``last`` (Huang et al. 2016)."""
    return [last * block / max(depth - 1, 1) for block in range(depth)]


def stage_drop_rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Returns the drop rates of the blocks of each stage, linear over all stages."""
    rates = iter(drop_rates(last, sum(depths)))
    return [list(islice(rates, depth)) for depth in depths]


# Minimum batch size and drop rate from which skipping samples is faster than masking them.
SKIPS_FROM = {"cpu": (8, 0.1)}


def skips_work(samples: int, drop: float, device: str) -> bool:
    """Whether `add_branch` should skip dropped samples, from measurements of benchmarks/paths.py.

    Compiled models use masks, because their graphs have static shapes.
    """
    least_samples, least_drop = SKIPS_FROM.get(device, (0, 1.0))
    # the batch size last: a graph that depends on it would be valid for some batch sizes only
    return drop >= least_drop and not torch.compiler.is_compiling() and samples >= least_samples


class Head(Dense):
    """Linear head. It computes in the type of its weights even under autocast, because bf16 logits have only two digits.

    In pretraining, a hidden layer with tanh precedes it (paper, section 3.1).
    """

    def __init__(self, width: int, classes: int, *, pre_logits: bool = False) -> None:
        super().__init__(width, classes)
        self.pre_logits = Dense(width, width) if pre_logits else None

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        """(B, D) to (B, K)."""
        with by_hand(input):
            x = input.to(self.weight.dtype)
            if self.pre_logits is not None:
                x = self.pre_logits(x).tanh()
            return dense(x, self.weight, self.bias, gelu)


def standardise(weight: Tensor, rule: str) -> Tensor:
    """Standardises the kernel (D, C, P, Q) of each output to mean 0 and std 1 by one of `STANDARDISATIONS`, in at least fp32
    (Qiao et al. 2019): as a layer norm over each kernel, several times faster on a CPU than separate mean and variance.
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
        return self.apply_kernel(input, standardise(self.weight, self.rule) if self.rule else self.weight, gelu)

    @torch.no_grad()
    def fix_kernel(self) -> None:
        """Standardises the kernel once and for all, for a network whose weights no longer change."""
        if self.rule:
            self.weight.copy_(standardise(self.weight, self.rule))
            self.rule = ""


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
