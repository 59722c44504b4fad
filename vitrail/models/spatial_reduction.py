"""Shared parts of PVT and PVT v2: the config of stages, and spatial-reduction attention.

B images, h x w = N cells of a map, T tokens, R reduction, K keys, D width, H heads, E = D / H.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.attention import attend, attention_path
from vitrail.models.config import GELUS, StagedConfig, grid_of
from vitrail.models.layers import Conv, Dense, LayerNorm
from vitrail.models.recording import AttentionGrid, AttentionRecord, OnAttention

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
        drop_path: rate of the last block; increases linearly from 0 at the first.
    """

    attention: ClassVar[str] = "N^2/R^2"
    PAIRS: ClassVar = ("image_size", "patch_size")
    STAGES: ClassVar = ("depths", "widths", "heads", "mlp_ratios", "reductions")
    SHARES: ClassVar = ("dropout", "attention_dropout", "drop_path")
    POSITIVE: ClassVar = ("norm_eps", "conv_norm_eps")
    CHOICES: ClassVar = {"gelu": GELUS}

    patch_size: tuple[int, int] = (4, 4)
    widths: tuple[int, ...] = (64, 128, 320, 512)
    depths: tuple[int, ...] = (2, 2, 2, 2)
    heads: tuple[int, ...] = (1, 2, 5, 8)
    mlp_ratios: tuple[int, ...] = (8, 8, 4, 4)
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    gelu: str = "exact"
    norm_eps: float = 1e-6
    conv_norm_eps: float = 1e-5
    qkv_bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def _check_together(self) -> None:
        divide = all(width % heads == 0 for width, heads in zip(self.widths, self.heads))
        self._check("heads", divide, f"in each stage a divisor of its width, widths={self.widths}")

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


def as_map(x: Tensor, grid: Grid) -> Tensor:
    """Views tokens (B, N, D) as a map (B, D, h, w) in channels-last memory format, the fastest for convolutions."""
    return x.mT.unflatten(2, grid)


def as_tokens(image: Tensor) -> Tensor:
    """Converts a map (B, D, h, w) to tokens (B, N, D); a view for channels-last memory format."""
    return image.flatten(2).mT


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
        path = attention_path(x.device.type, q.dtype, training=q.requires_grad, tokens=k.shape[2])
        output = attend(q, k, v, dropout=self.dropout if self.training else 0.0, path=path)
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
