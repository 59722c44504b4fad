"""The axial ViT (Dosovitskiy et al. 2021, appendix D.6), whose attention along rows, then columns, is that of Ho et al. 2019
("Axial Attention in Multidimensional Transformers") and Wang et al. 2020 ("Axial-DeepLab").

The paper does not define a class token on the grid, so the features are the mean of the patches. There are no relative
positions, unlike in Wang et al. Everything else is as in the ViT.

B images, C channels, H x W pixels, h x w = N patches, L lines (rows or columns) of T tokens, D width, A heads, E = D / A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.models.attention import Attention, AttentionGrid, AttentionRecord, GroupedAttentionRecord, OnAttention
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import Config, IsotropicConfig, Pair, Share, grid_of
from vitrail.models.initialise import fill_as_paper
from vitrail.models.layers import (
    LayerNorm,
    Mlp,
    PatchEmbed,
    Patches,
    PreNormBlock,
    Tokens,
    drop_rates,
    residual_stream,
)
from vitrail.models.positions import resize, resize_tables, sincos2d


@dataclass(frozen=True, kw_only=True)
class AxialConfig(IsotropicConfig):
    """The fields of an axial ViT in addition to those of `IsotropicConfig`; the defaults are Axial-ViT-B/16.

    Args:
        depth: number of blocks, each of two layers: row attention and an MLP, column attention and an MLP.
        positions: "learned", one vector per patch as in the ViT; "sincos2d", fixed sines and cosines; or "none".
        dropout: rate after every dense layer except q, k, v, and after adding positions.
    """

    architecture: ClassVar[str] = "axial"
    about: ClassVar[str] = "an axial ViT"
    attention: ClassVar[str] = "N (h + w)"
    CHOICES: ClassVar = {**IsotropicConfig.CHOICES, "positions": ("learned", "sincos2d", "none")}

    positions: str = "learned"
    dropout: Share = 0.0

    def _check_together(self) -> None:
        super()._check_together()
        what = "a multiple of 4, for positions='sincos2d'"
        self._check("width", self.width % 4 == 0 or self.positions != "sincos2d", what)


def line_grids(grid: tuple[int, int], cell: tuple[int, int]) -> tuple[AttentionGrid, AttentionGrid]:
    """Returns the grids of the matrices of row attention, (B, A, N, w) in row-major order, and of column attention,
    (B, A, N, h) in column-major order, on a map of ``grid`` cells of ``cell`` pixels.
    """
    rows, columns = grid
    places = torch.arange(rows * columns).unflatten(0, grid)  # (h, w)
    of_row = AttentionGrid(0, grid, grid, cell, columns=places.repeat_interleave(columns, 0))
    of_column = places.mT.repeat_interleave(rows, 0)  # (w h, h)
    return of_row, of_row._replace(rows=places.mT.flatten(), columns=of_column)


class Layer(PreNormBlock):
    """Equations (2) and (3) of the ViT with attention within lines of tokens."""

    def __init__(self, config: AxialConfig, drop_path: float) -> None:
        mlp = Mlp(config.width, config.mlp_width, gelu=config.gelu, dropout=config.dropout)
        super().__init__(config, config.width, Attention(config.width, config.heads), mlp, drop_path)

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, L, T, D) to (B, L, T, D)."""
        in_lines = None if on_attention is None else lambda record: on_attention(_group_lines(record, len(x)))

        def attention(x: Tensor) -> Tensor:
            return self.attn(x.flatten(0, 1), on_attention=in_lines).view_as(x)

        return self.run_branches(x, attention, whole=on_attention is not None)


def _group_lines(record: AttentionRecord, batch: int) -> AttentionRecord:
    """Converts the attention of lines (B L, T, D) to that of B images."""

    def split() -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part.unflatten(0, (batch, -1)) for part in record.split())  # (B, L, A, T, E) each
        return q, k, v

    return GroupedAttentionRecord(split, record.output)


class Block(nn.Module):
    """An axial block: a layer on the rows of the grid, then one on its columns (appendix D.6)."""

    def __init__(self, config: AxialConfig, drop_path: float) -> None:
        super().__init__()
        self.row = Layer(config, drop_path)
        self.column = Layer(config, drop_path)

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, h, w, D) to (B, h, w, D)."""
        # no copy: columns are a strided view of the rows
        return self.column(self.row(x, on_attention).transpose(1, 2), on_attention).transpose(1, 2)


class AxialViT(Backbone):
    """A ViT with axial attention, whose cost grows with N (h + w) instead of N^2."""

    config: AxialConfig
    blocks: Any  # the list of `Block`

    def __init__(self, config: AxialConfig) -> None:
        super().__init__(config)
        rows, columns = config.grid
        self.patch_embed = PatchEmbed(config.in_channels, config.width, config.patch_size)
        if config.positions == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, rows * columns, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, drop) for drop in drop_rates(config.drop_path, config.depth))
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        self.head = self._make_head()
        fill_as_paper(self, head_bias=config.head_bias)

    def _add_positions(self, patches: Patches) -> Patches:
        config, (x, grid, _) = self.config, patches
        if config.positions == "none":
            return patches
        if config.positions == "learned":
            places = resize(self.pos_embed, config.grid, grid, config.position_resize)  # (1, N, D)
        else:
            places = sincos2d(grid, config.width, x.device)  # (N, D)
        return Patches(x + places.to(x.dtype), grid)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Blocks and the last norm: (B, N, D) to (B, N, D). Raises `ConfigError` for a subset of the patches."""
        x, grid = last(self._outputs(patches, on_attention))
        return Tokens(self.norm(x), grid)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Pair]]:
        self._check_subset(patches)
        x = self.dropout(residual_stream(patches.x)).unflatten(1, patches.grid)  # (B, h, w, D)
        for block in self.blocks:
            x = self._run(block, x, on_attention=on_attention)
            yield x.flatten(1, 2), patches.grid

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grids of the two matrices of each block: (B, A, N, w), patches in row-major order and those of their
        row; (B, A, N, h), patches in column-major order and those of their column.
        """
        return [*line_grids(grid_of(size, self.config.patch_size), self.config.patch_size)] * self.config.depth

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: AxialConfig, new: AxialConfig) -> dict[str, Tensor]:
        return resize_tables(tensors, old.grid, new.grid, prefix=0, rule=new.position_resize)


# the two models of the paper, based on ViT-B of table 1
AXIALS: dict[str, Config] = {"axial-b32": AxialConfig(patch_size=(32, 32)), "axial-b16": AxialConfig()}
