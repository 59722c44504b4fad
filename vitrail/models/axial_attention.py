"""Position-sensitive axial attention (Wang et al. 2020, "Axial-DeepLab"), the middle of the AxialResNet's bottlenecks, and the
grids of attention along lines.

Queries and keys have half the width of values, and the stride is an average of cells after both attentions, as in the
authors' code. Instead of its batch norm, queries, keys and values have BiT's group norm, and logits are divided by
sqrt(E / 2), the root of the width of queries.

B images, h x w = N cells of a map, L lines (columns or rows) of T cells, M channels, A heads, E = M / A, S cells in the
lines of the config's image size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers import by_hand
from vitrail.models.positions import resize
from vitrail.models.recording import (
    ALL,
    AttentionGrid,
    GroupedAttentionRecord,
    OnAttention,
    attention_weights,
    concatenate_groups,
)
from vitrail.models.standardise import GroupNorm, StdConv


def line_grids(grid: tuple[int, int], cell: tuple[int, int]) -> tuple[AttentionGrid, AttentionGrid]:
    """Returns the grids of the matrices of row attention, (B, A, N, w) in row-major order, and of column attention,
    (B, A, N, h) in column-major order, on a map of ``grid`` cells of ``cell`` pixels.
    """
    rows, columns = grid
    places = torch.arange(rows * columns).unflatten(0, grid)  # (h, w)
    of_row = AttentionGrid(0, grid, grid, cell, columns=places.repeat_interleave(columns, 0))
    of_column = places.mT.repeat_interleave(rows, 0)  # (w h, h)
    return of_row, of_row._replace(rows=places.mT.flatten(), columns=of_column)


class Positions(NamedTuple):
    """Relative positions of one axis for lines of T cells, shared by all heads: the vectors of queries r^q and of keys r^k,
    (T, T, E / 2) each, and of values r^v, (T, T, E), by the place of the query, then that of the key.
    """

    of_queries: Tensor
    of_keys: Tensor
    of_values: Tensor

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns the scaled relative logits q_o r^q_{p - o} + k_p r^k_{p - o}: (B, L, A, T, T)."""
        logits = torch.einsum("blaoe,ope->blaop", q, self.of_queries) + torch.einsum(
            "blape,ope->blaop", k, self.of_keys
        )
        return logits * q.shape[-1] ** -0.5

    def values(self, weights: Tensor) -> Tensor:
        """Returns the sum of r^v_{p - o} weighted by attention: (B, L, A, T, T) to (B, L, A, T, E)."""
        return torch.einsum("blaop,ope->blaoe", weights, self.of_values)


class LineRecord(GroupedAttentionRecord):
    """Position-sensitive attention of all lines, whose output also has positions of values."""

    def __init__(
        self, split: Callable[[], tuple[Tensor, Tensor, Tensor]], output: Tensor, positions: Callable[[], Positions]
    ) -> None:
        super().__init__(split, output)
        self.positions = positions

    def weights(self, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        q, k, _ = (part[:, groups] for part in self.parts)
        with by_hand(q):
            bias = self.positions().bias(q, k)
        return concatenate_groups(attention_weights(q, k, bias))[:, :, inside]

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        of_output = of_output.float()[:, groups]
        with by_hand(of_output):
            gradient = of_output @ self.parts[2][:, groups].mT
            gradient = gradient + torch.einsum("blaoe,ope->blaop", of_output, self.positions().of_values)
        return concatenate_groups(gradient)[:, :, inside]


class LineAttention(nn.Module):
    """Position-sensitive self-attention along one axis (Wang et al. 2020, equation 4), without an output layer.

    Args:
        width: M.
        span: S, the length of the lines for the config's image size.
        axis: 2 for columns, 3 for rows of a map (B, M, h, w).
        rule, eps: of the standardised kernel and of the group norm.
    """

    def __init__(self, width: int, heads: int, span: int, axis: int, *, rule: str, eps: float) -> None:
        super().__init__()
        self.heads, self.axis = heads, axis
        self.qkv = StdConv(width, 2 * width, 1, rule=rule)
        self.norm = GroupNorm(2 * width, eps=eps, relu=False)
        self.relative = nn.Parameter(torch.empty(2 * span - 1, 2 * width // heads))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, M, h, w) to q and k, (B, L, A, T, E / 2) each, and v, (B, L, A, T, E)."""
        qkv = self.norm(self.qkv(x)).unflatten(1, (self.heads, -1))  # (B, A, 2 E, h, w)
        across = 5 - self.axis  # the axis along which lines are counted
        lines = qkv.permute(0, across + 1, 1, self.axis + 1, 2)  # (B, L, A, T, 2 E)
        q, k, v = _split_channels(lines)
        return q, k, v

    def positions(self, length: int, dtype: torch.dtype) -> Positions:
        """Returns the relative positions of lines of T = ``length`` cells: the vector of offset p - o is row p - o + T - 1."""
        table = resize(self.relative[None], (1, len(self.relative)), (1, 2 * length - 1), "paper")[0].to(dtype)
        places = torch.arange(length, device=table.device)
        return Positions(*_split_channels(table[places - places[:, None] + length - 1]))

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, M, h, w) to (B, M, h, w)."""
        q, k, v = self.split(x)
        length = x.shape[self.axis]
        positions = self.positions(length, q.dtype)
        weights = attention_weights(q, k, positions.bias(q, k))
        output = weights @ v + positions.values(weights)  # (B, L, A, T, E)
        if on_attention is not None:
            on_attention(LineRecord(partial(self.split, x), output, partial(self.positions, length, torch.float32)))
        columns_or_rows = (0, 2, 4, 3, 1) if self.axis == 2 else (0, 2, 4, 1, 3)
        return output.permute(columns_or_rows).flatten(1, 2)


def _split_channels(x: Tensor) -> tuple[Tensor, ...]:
    """Splits (..., 2 E) into the parts of queries and keys, (..., E / 2) each, and values, (..., E)."""
    width = x.shape[-1] // 4
    return x.split([width, width, 2 * width], -1)


class AxialAttention(nn.Module):
    """Attention along columns, then along rows, and an average of stride x stride cells.

    Args:
        width: M.
        grid: rows and columns of the map for the config's image size.
        rule, eps: of the standardised kernels and of the group norms.
    """

    def __init__(self, width: int, heads: int, grid: tuple[int, int], stride: int, *, rule: str, eps: float) -> None:
        super().__init__()
        self.column = LineAttention(width, heads, grid[0], 2, rule=rule, eps=eps)
        self.row = LineAttention(width, heads, grid[1], 3, rule=rule, eps=eps)
        self.stride = stride

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, M, h, w) to (B, M, h / stride, w / stride), rounded up."""
        x = self.row(self.column(x, on_attention), on_attention)
        # squares at the border of an odd map are averaged over the cells that they have
        return x if self.stride == 1 else F.avg_pool2d(x, self.stride, ceil_mode=True)
