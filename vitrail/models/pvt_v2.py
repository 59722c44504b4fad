"""The Pyramid Vision Transformer v2 (Wang et al. 2022, "Improved Baselines with Pyramid Vision Transformer").

B images, C channels, H x W pixels, h x w = N cells of a stage's map, D width of a stage, M width of an MLP, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.attention import AttentionGrid, OnAttention
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import Config
from vitrail.models.initialise import fill_parameter, fills
from vitrail.models.layers import (
    Conv,
    Dense,
    LayerNorm,
    Patches,
    PreNormBlock,
    Tokens,
    activate,
    as_map,
    as_tokens,
    residual_stream,
    stage_drop_rates,
)
from vitrail.models.pvt import Grid, PyramidConfig, ReducedAttention, SpatialReductionAttention

POOLED = (7, 7)  # rows and columns of the keys of linear attention, for any image size (section 3.2)


@dataclass(frozen=True, kw_only=True)
class PVTv2Config(PyramidConfig):
    """The fields of a PVT v2 in addition to those of `PyramidConfig`; the defaults are PVTv2-B1. Images may have any size.

    Args:
        linear: compute keys and values from the map averaged to 7 x 7 cells, with ReLU before the depthwise convolution.
            ``reductions`` are then not used.
    """

    architecture: ClassVar[str] = "pvt-v2"
    about: ClassVar[str] = "a PVT v2"

    linear: bool = False

    def _check_together(self) -> None:
        super()._check_together()
        self.check_size(self.image_size)

    def check_size(self, size: Sequence[int]) -> None:
        """Raises `ConfigError` for an image size (height, width) that is invalid in some stage."""
        if not self.linear:
            self.check_reduces(size)


class OverlapPatchEmbed(nn.Module):
    """Overlapping patch embedding: a convolution with kernel 2 * stride - 1 and zero padding, then a norm (section 3.3)."""

    def __init__(self, config: PVTv2Config, stage: int) -> None:
        super().__init__()
        before, (p, q) = (config.widths[stage - 1], (2, 2)) if stage else (config.in_channels, config.patch_size)
        window, padding = (2 * p - 1, 2 * q - 1), (p - 1, q - 1)
        self.proj = Conv(before, config.widths[stage], window, stride=(p, q), padding=padding)
        self.norm = LayerNorm(config.widths[stage], eps=config.conv_norm_eps)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """(B, C, h P, w Q) or a little less to (B, h w, D), and the grid."""
        image = self.proj(images.contiguous(memory_format=torch.channels_last))  # (B, D, h, w)
        return self.norm(as_tokens(image)), (image.shape[2], image.shape[3])


class PooledAttention(ReducedAttention):
    """Linear SRA (section 3.2): keys and values are the map averaged to 7 x 7 cells, after a projection, norm and GELU."""

    def __init__(self, config: PVTv2Config, stage: int) -> None:
        super().__init__(config, stage)
        width = config.widths[stage]
        self.gelu = config.gelu
        self.sr = Conv(width, width, 1)
        self.norm = LayerNorm(width, eps=config.conv_norm_eps)

    def reduce(self, x: Tensor, grid: Grid) -> Tensor:
        return activate(self.norm(as_tokens(self.sr(average(as_map(x, grid), POOLED)))), self.gelu)

    def attention_grid(self, grid: Grid, cell: Grid) -> AttentionGrid:
        return AttentionGrid(0, grid, POOLED, cell)


def average(image: Tensor, size: Grid) -> Tensor:
    """Averages a map (B, D, h, w) to ``size``: row r of h' is the mean of rows floor(r h / h') to ceil((r + 1) h / h') - 1.

    In a compiled model it is two matrix products, one along each axis, so that one graph is valid for all sizes.
    """
    if not torch.compiler.is_compiling():
        return F.adaptive_avg_pool2d(image, size)
    of_rows, of_columns = (make_averaging(*lengths, image) for lengths in zip(image.shape[2:], size))
    return torch.einsum("yh,bdhw,xw->bdyx", of_rows, image, of_columns)


def make_averaging(old: int, new: int, like: Tensor) -> Tensor:
    """Returns the matrix (new, old) that averages ``old`` values to ``new`` ones."""
    cells, places = torch.arange(new, device=like.device)[:, None], torch.arange(old, device=like.device)
    inside = (places >= cells * old // new) & (places < ((cells + 1) * old + new - 1) // new)  # (new, old)
    return (inside / inside.sum(1, keepdim=True)).to(like.dtype)


class ConvMlp(nn.Module):
    """Two dense layers with a depthwise 3 x 3 convolution of the map and GELU in between (section 3.4)."""

    def __init__(self, config: PVTv2Config, stage: int) -> None:
        super().__init__()
        width = config.widths[stage]
        hidden = width * config.mlp_ratios[stage]
        self.gelu, self.linear = config.gelu, config.linear
        self.fc1 = Dense(width, hidden)
        self.dwconv = Conv(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = Dense(hidden, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        y = self.fc1(x)  # (B, N, M)
        y = y.relu() if self.linear else y
        y = as_tokens(self.dwconv(as_map(y, grid), self.gelu))
        return self.dropout(self.fc2(self.dropout(y)))


class Block(PreNormBlock):
    """x' = SRA(LN(x)) + x, then MLP(LN(x')) + x'."""

    def __init__(self, config: PVTv2Config, stage: int, drop_path: float) -> None:
        attn = PooledAttention(config, stage) if config.linear else SpatialReductionAttention(config, stage)
        super().__init__(config, config.widths[stage], attn, ConvMlp(config, stage), drop_path)

    def forward(self, x: Tensor, grid: Grid, on_attention: OnAttention | None = None) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        attention, mlp = (lambda x: self.attn(x, grid, on_attention)), (lambda x: self.mlp(x, grid))
        return self.run_branches(x, attention, mlp, whole=on_attention is not None)


class Stage(nn.Module):
    """The parameters of one stage; the patch embedding of the first is that of the model."""

    def __init__(self, config: PVTv2Config, stage: int, drops: list[float]) -> None:
        super().__init__()
        self.downsample = OverlapPatchEmbed(config, stage) if stage else None
        self.blocks = nn.ModuleList(Block(config, stage, drop) for drop in drops)
        self.norm = LayerNorm(config.widths[stage], eps=config.norm_eps)


class PVTv2(Backbone):
    """PVT v2: four stages, each of which halves the map, without positions and class token."""

    config: PVTv2Config
    stages: Any  # each a Stage

    def __init__(self, config: PVTv2Config) -> None:
        super().__init__(config)
        self.patch_embed = OverlapPatchEmbed(config, 0)
        rates = enumerate(stage_drop_rates(config.drop_path, config.depths))
        self.stages = nn.ModuleList(Stage(config, stage, drops) for stage, drops in rates)
        self.head = self._make_head()
        initialise(self, config)

    def patchify(self, images: Tensor) -> Patches:
        """Projects and normalises the overlapping patches of stage 1: (B, C, H, W) to (B, N, D)."""
        self._check(images)
        self.config.check_size(images.shape[2:])
        return Patches(*self.patch_embed(images))

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies all stages, each with its norm: (B, N, D) of stage 1 to (B, N, D) of the last."""
        return Tokens(*last(self._outputs(patches, on_attention)))

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Grid]]:
        self._check_subset(patches)
        x, grid, _ = patches
        for stage in self.stages:
            if stage.downsample is not None:
                x, grid = stage.downsample(as_map(x, grid))
            x = residual_stream(x)
            for block in stage.blocks:
                x = self._run(block, x, grid, on_attention=on_attention)
            x = stage.norm(x)
            yield x, grid

    def _norm_map(self, x: Tensor) -> Tensor:
        """Returns the map as it is: each stage ends with a norm."""
        return x

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grid of each matrix of `forward_with_attention` for images of ``size`` (height, width).

        With reduction R, the key (r, c) covers the R x R cells of the map from row R r and column R c; in linear attention, the
        cells averaged by `average`.
        """
        maps = zip(self.stages, self.config.grids(size), self.config.cells)
        return [block.attn.attention_grid(grid, cell) for stage, grid, cell in maps for block in stage.blocks]

    def _layer(self, name: str) -> int:
        match name.split("."):
            case ["stages", stage, "norm", _]:  # after the last block of its stage
                past = int(stage) + 1
                return sum(self.config.depths[:past]) if past < len(self.stages) else -1
        return super()._layer(name)


@fills
def initialise(model: nn.Module, config: PVTv2Config) -> None:
    """Initialises kernels as in the authors' code, normal with std sqrt(2 / fan_out), and the rest by `fill_parameter`."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 4:
            reached = parameter[0, 0].numel() * (1 if name.endswith("dwconv.weight") else len(parameter))
            parameter.normal_(std=math.sqrt(2 / reached))
        else:
            fill_parameter(name, parameter, config.head_bias)


def _pvt_v2(*depths: int, **changes) -> PVTv2Config:
    return PVTv2Config(depths=depths, **changes)


# Table 1 of the paper
PVT_V2S: dict[str, Config] = {
    "pvt-v2-b0": _pvt_v2(2, 2, 2, 2, widths=(32, 64, 160, 256)),
    "pvt-v2-b1": _pvt_v2(2, 2, 2, 2),
    "pvt-v2-b2": _pvt_v2(3, 4, 6, 3),
    "pvt-v2-b2-li": _pvt_v2(3, 4, 6, 3, linear=True),
    "pvt-v2-b3": _pvt_v2(3, 4, 18, 3),
    "pvt-v2-b4": _pvt_v2(3, 8, 27, 3),
    "pvt-v2-b5": _pvt_v2(3, 6, 40, 3, mlp_ratios=(4, 4, 4, 4)),
}
