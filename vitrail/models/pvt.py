"""The Pyramid Vision Transformer (Wang et al. 2021, "A Versatile Backbone for Dense Prediction without Convolutions").

B images, C channels, H x W pixels, h x w = N cells of a stage's map, T tokens, D width of a stage;
in attention R the reduction, K keys, H heads, E = D / H. PVT v2 shares `PyramidConfig` and `ReducedAttention`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import positions
from vitrail.models.attention import AttentionGrid, AttentionRecord, OnAttention, attend
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import GELUS, Config, Pair, Positive, Share, StagedConfig, Stages, check_divides, grid_of
from vitrail.models.initialise import fill_truncated
from vitrail.models.layers import (
    Conv,
    Dense,
    LayerNorm,
    Mlp,
    PatchEmbed,
    Patches,
    PreNormBlock,
    Tokens,
    as_map,
    as_tokens,
    residual_stream,
    stage_drop_rates,
    whole_patches,
)

Grid = tuple[int, int]  # rows, columns


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(StagedConfig):
    """The shared fields of PVT and PVT v2; the defaults are those of their second smallest models.

    Args:
        patch_size: (height, width) in pixels of the patches of stage 1; each later stage halves the map.
        widths, depths, heads, mlp_ratios: width, number of blocks, number of heads and MLP expansion ratio of each stage.
        reductions: R of each stage: keys and values are computed from squares of R x R cells. Remaining cells at the bottom
            and on the right are not used, as in the authors' code.
        norm_eps: eps of the norms in and after the blocks; ``conv_norm_eps`` is that of the norms after convolutions, in
            patch embeddings and reductions.
        dropout: rate after every dense layer except q, k, v, and after adding positions; ``attention_dropout`` is that of
            the attention matrices.
    """

    attention: ClassVar[str] = "N^2/R^2"
    CHOICES: ClassVar = {"gelu": GELUS}

    patch_size: Pair = (4, 4)
    widths: Stages = (64, 128, 320, 512)
    heads: Stages = (1, 2, 5, 8)
    mlp_ratios: Stages = (8, 8, 4, 4)
    reductions: Stages = (8, 4, 2, 1)
    gelu: str = "exact"
    norm_eps: Positive = 1e-6
    conv_norm_eps: Positive = 1e-5
    qkv_bias: bool = True
    dropout: Share = 0.0
    attention_dropout: Share = 0.0

    def _check_together(self) -> None:
        self._check_heads(self.heads)

    def grids(self, size: Sequence[int]) -> list[Grid]:
        """Returns rows and columns of the map of each stage for an image of ``size`` (height, width) in pixels."""
        grids = [grid_of(size, self.patch_size)]
        for _ in self.depths[1:]:
            grids.append(grid_of(grids[-1], (2, 2)))
        return grids

    def check_reduces(self, size: Sequence[int]) -> None:
        """Raises `ConfigError` for an image whose map in some stage is smaller than one square of R x R cells."""
        for stage, ((rows, columns), reduction) in enumerate(zip(self.grids(size), self.reductions)):
            if rows < reduction or columns < reduction:
                height, width = (length * 2**stage * reduction for length in self.patch_size)
                raise ConfigError(
                    f"an image of {size[0]}x{size[1]} pixels has {rows}x{columns} cells in stage {stage + 1}, "
                    f"fewer than its reduction of {reduction}x{reduction}",
                    f"resize to {height}x{width} or more, or set smaller reductions",
                )


class ReducedAttention(nn.Module):
    """Multi-head attention with a reduced number of keys and values, which subclasses define."""

    def __init__(self, config: PyramidConfig, stage: int) -> None:
        super().__init__()
        width = config.widths[stage]
        self.heads = config.heads[stage]
        self.dropout = config.attention_dropout
        self.q = Dense(width, width, bias=config.qkv_bias)
        self.kv = Dense(width, 2 * width, bias=config.qkv_bias)
        self.proj = Dense(width, width)

    @abstractmethod
    def reduce(self, x: Tensor, grid: Grid) -> Tensor:
        """Returns the input of keys and values: (B, T, D) to (B, K, D)."""

    @abstractmethod
    def attention_grid(self, grid: Grid, cell: Grid) -> AttentionGrid:
        """Returns the attention grid on a map of ``grid`` cells of ``cell`` pixels."""

    def split(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, E), k and v (B, H, K, E)."""
        q = self.q(x).unflatten(-1, (self.heads, -1))  # (B, T, H, E)
        k, v = self.kv(self.reduce(x, grid)).unflatten(-1, (2, self.heads, -1)).unbind(2)  # (B, K, H, E) each
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, grid: Grid, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D); the last N of the T tokens are the cells of ``grid``."""
        q, k, v = self.split(x, grid)
        output = attend(q, k, v, dropout=self.dropout if self.training else 0.0)
        if on_attention is not None:
            on_attention(AttentionRecord(partial(self.split, x, grid), output))
        return self.proj(output.transpose(1, 2).flatten(2))


class SpatialReductionAttention(ReducedAttention):
    """SRA (Wang et al. 2021, section 3.3): each key is a projection of a square of R x R cells, followed by a norm.

    With R = 1 it is plain attention, and other tokens may precede the cells.
    """

    def __init__(self, config: PyramidConfig, stage: int) -> None:
        super().__init__(config, stage)
        width, self.reduction = config.widths[stage], config.reductions[stage]
        if self.reduction > 1:
            self.sr = Conv(width, width, self.reduction, stride=self.reduction)
            self.norm = LayerNorm(width, eps=config.conv_norm_eps)

    def reduce(self, x: Tensor, grid: Grid) -> Tensor:
        return x if self.reduction == 1 else self.norm(as_tokens(self.sr(as_map(x, grid))))

    def attention_grid(self, grid: Grid, cell: Grid) -> AttentionGrid:
        (rows, columns), side = grid, self.reduction
        keys = rows // side, columns // side
        return AttentionGrid(0, grid, keys, cell, covered=(keys[0] * side, keys[1] * side))


@dataclass(frozen=True, kw_only=True)
class PVTConfig(PyramidConfig):
    """The fields of a PVT in addition to those of `PyramidConfig`; the defaults are PVT-Tiny.

    Args:
        position_resize: interpolation of tables for other image sizes; one of `positions.RESIZES`.
        pad: pad images and maps to whole patches in every stage, with zeros at the bottom and on the right.
    """

    architecture: ClassVar[str] = "pvt"
    about: ClassVar[str] = "a PVT"
    CHOICES: ClassVar = {**PyramidConfig.CHOICES, "position_resize": tuple(positions.RESIZES)}

    position_resize: str = "bilinear"
    pad: bool = False

    def _check_together(self) -> None:
        super()._check_together()
        remedy = "1 in the last stage, where the class token is not part of the map"
        self._check("reductions", self.reductions[-1] == 1, remedy)
        self.check_size(self.image_size)

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("cls",)

    def prefixes(self, stage: int) -> int:
        """Returns the number of tokens without a cell in stage 0, 1, ..."""
        return len(self.prefix) if stage == len(self.depths) - 1 else 0

    def check_size(self, size: Sequence[int]) -> None:
        """Raises `ConfigError` for an image size (height, width) that is invalid in some stage."""
        if not self.pad:
            check_divides(size, [length * 2 ** (len(self.depths) - 1) for length in self.patch_size])
        self.check_reduces(size)


class StageEmbed(PatchEmbed):
    """Linear projection of the patches of a map, followed by a norm (section 3.2)."""

    def __init__(self, config: PVTConfig, stage: int) -> None:
        before = config.widths[stage - 1] if stage else config.in_channels
        size = (2, 2) if stage else config.patch_size
        norm = LayerNorm(config.widths[stage], eps=config.conv_norm_eps)
        super().__init__(before, config.widths[stage], size, norm=norm)
        self.size = size

    def cut(self, images: Tensor, *, pad: bool) -> Patches:
        """Embeds images of any size that is divisible into patches or padded."""
        images = whole_patches(images, self.size, pad=pad)
        return Patches(self(images), (images.shape[2] // self.size[0], images.shape[3] // self.size[1]))


class Block(PreNormBlock):
    """x' = SRA(LN(x)) + x, then MLP(LN(x')) + x' (section 3.3)."""

    def __init__(self, config: PVTConfig, stage: int, drop_path: float) -> None:
        width = config.widths[stage]
        mlp = Mlp(width, width * config.mlp_ratios[stage], gelu=config.gelu, dropout=config.dropout)
        super().__init__(config, width, SpatialReductionAttention(config, stage), mlp, drop_path)

    def forward(self, x: Tensor, grid: Grid, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.run_branches(x, lambda x: self.attn(x, grid, on_attention), whole=on_attention is not None)


class Stage(nn.Module):
    """The parameters of one stage; the patch embedding of the first is that of the model."""

    def __init__(self, config: PVTConfig, stage: int, drops: list[float]) -> None:
        super().__init__()
        rows, columns = config.grids(config.image_size)[stage]
        self.downsample = StageEmbed(config, stage) if stage else None
        self.pos_embed = nn.Parameter(torch.empty(1, config.prefixes(stage) + rows * columns, config.widths[stage]))
        self.blocks = nn.ModuleList(Block(config, stage, drop) for drop in drops)


class PVT(Backbone):
    """PVT: four stages, each of which halves the map. The class token is added in the last stage."""

    config: PVTConfig
    stages: Any  # each a Stage

    def __init__(self, config: PVTConfig) -> None:
        super().__init__(config)
        self.patch_embed = StageEmbed(config, 0)
        rates = enumerate(stage_drop_rates(config.drop_path, config.depths))
        self.stages = nn.ModuleList(Stage(config, stage, drops) for stage, drops in rates)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.width))
        self.dropout = nn.Dropout(config.dropout)
        self.norm = LayerNorm(self.width, eps=config.norm_eps)
        self.head = self._make_head()
        # as in the authors' code
        fill_truncated(self, config.head_bias, uniform=("patch_embed.proj", "downsample.proj", "attn.sr"))

    def patchify(self, images: Tensor) -> Patches:
        """Projects and normalises the patches of stage 1: (B, C, H, W) to (B, N, D)."""
        self._check(images)
        self.config.check_size(images.shape[2:])
        return self.patch_embed.cut(images, pad=self.config.pad)

    def _add_positions(self, patches: Patches) -> Patches:
        """Adds the positions of stage 1; those of later stages are added in `encode`."""
        return patches._replace(x=patches.x + self._positions(0, patches.grid)[1].to(patches.x))

    def _positions(self, stage: int, grid: Grid) -> tuple[Tensor, Tensor]:
        """Returns the positions of the class token, (1, 1, D) or empty before the last stage, and of the map, (1, N, D)."""
        config, table = self.config, self.stages[stage].pos_embed
        prefix, old = config.prefixes(stage), config.grids(config.image_size)[stage]
        return table[:, :prefix], positions.resize(table[:, prefix:], old, grid, config.position_resize)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies all stages and the last norm: (B, N, D) of stage 1 to (B, 1 + N, D) of the last."""
        x, grid = last(self._outputs(patches, on_attention))
        return Tokens(self.norm(x), grid)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Grid]]:
        self._check_subset(patches)
        x, grid, _ = patches
        for number, stage in enumerate(self.stages):
            if number:
                x, grid, _ = stage.downsample.cut(as_map(x, grid), pad=self.config.pad)
                x = x + self._positions(number, grid)[1].to(x)
            if self.config.prefixes(number):
                token = (self.cls_token + self._positions(number, grid)[0]).to(x)
                x = torch.cat([token.expand(x.shape[0], -1, -1), x], 1)
            x = self.dropout(residual_stream(x))
            for block in stage.blocks:
                x = self._run(block, x, grid, on_attention=on_attention)
            yield x, grid

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grid of each matrix of `forward_with_attention` for images of ``size`` (height, width).

        With reduction R, the key (r, c) covers the R x R cells of the map from row R r and column R c.
        """
        return [
            block.attn.attention_grid(grid, cell)._replace(prefix=self.config.prefixes(number))
            for number, (grid, cell) in enumerate(zip(self.config.grids(size), self.config.cells))
            for block in self.stages[number].blocks
        ]

    def _layer(self, name: str) -> int:
        of_last = f"stages.{len(self.stages) - 1}.cls_token"
        return super()._layer({"stages.0.pos_embed": "pos_embed", "cls_token": of_last}.get(name, name))

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: PVTConfig, new: PVTConfig) -> dict[str, Tensor]:
        resized = dict(tensors)
        for stage, grids in enumerate(zip(old.grids(old.image_size), new.grids(new.image_size))):
            name = f"stages.{stage}.pos_embed"
            prefix, table = new.prefixes(stage), {"pos_embed": tensors[name]}
            resized[name] = positions.resize_tables(table, *grids, prefix=prefix, rule=new.position_resize)["pos_embed"]
        return resized


def _pvt(*depths: int) -> PVTConfig:
    return PVTConfig(depths=depths)


# Table 1 of the paper; the depths of Large are those in the authors' code
PVTS: dict[str, Config] = {
    "pvt-tiny": _pvt(2, 2, 2, 2),
    "pvt-small": _pvt(3, 4, 6, 3),
    "pvt-medium": _pvt(3, 4, 18, 3),
    "pvt-large": _pvt(3, 8, 27, 3),
}
