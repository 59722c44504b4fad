"""Windows of a grid of patches, in which blocks of a plain ViT may attend (Li et al. 2022, "ViTDet", section 3).

B images, H heads, P prefix tokens, h x w = N patches, T = P + N tokens, n windows of s x t = S patches, E width of a head.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.config import grid_of
from vitrail.torch_private import check


class GridWindows(NamedTuple):
    """``rows`` x ``columns`` windows of ``height`` x ``width`` patches of a ``grid`` (h, w) that follows ``prefix`` tokens.

    Windows reach over the grid at the bottom and on the right by fewer patches than there are rows or columns of windows.
    """

    prefix: int
    grid: tuple[int, int]
    rows: int
    columns: int
    height: int
    width: int

    @classmethod
    def over(cls, prefix: int, grid: tuple[int, int], longest: int) -> GridWindows:
        """Returns as few windows as possible of at most ``longest`` patches a side, all of one size, as small as possible."""
        counts = grid_of(grid, (longest, longest))
        rows, columns = (opaque(count, 1) for count in counts) if torch.compiler.is_exporting() else counts
        height, width = grid_of(grid, (rows, columns))
        if torch.compiler.is_exporting():
            height, width = opaque(height, 1), opaque(width, 1)
        return cls(prefix, grid, rows, columns, height, width)

    @property
    def _beyond(self) -> tuple[int, int]:
        """Rows and columns of patches by which the windows reach over the grid."""
        return self.rows * self.height - self.grid[0], self.columns * self.width - self.grid[1]

    @property
    def is_padded(self) -> bool:
        """Whether windows reach over the grid; in a graph they may always do so, and one graph is valid for all sizes."""
        return torch.compiler.is_compiling() or any(self._beyond)

    def cut(self, x: Tensor) -> Tensor:
        """Partitions patches into windows, padded with zeros: (B, H, N, E) to (B n, H, S, E)."""
        x = x.unflatten(2, self.grid)
        if self.is_padded:
            below, right = self._beyond
            x = F.pad(x, (0, 0, 0, right, 0, below))
        batch, heads, *_, width = x.shape
        x = x.reshape(batch, heads, self.rows, self.height, self.columns, self.width, width)
        return x.permute(0, 2, 4, 1, 3, 5, 6).reshape(-1, heads, self.height * self.width, width)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `cut`, without padding: (B n, H, S, E) to (B, N, H, E)."""
        _, heads, _, width = x.shape
        x = x.reshape(-1, self.rows, self.columns, heads, self.height, self.width, width)
        x = x.permute(0, 1, 4, 2, 5, 3, 6).reshape(-1, self.rows * self.height, self.columns * self.width, heads, width)
        if torch.compiler.is_compiling():
            # a slice would branch on whether anything is cut off, which needs two graphs
            for axis, length in enumerate(self.grid, 1):
                x = x.index_select(axis, torch.arange(length, device=x.device))
        else:
            x = x[:, : self.grid[0], : self.grid[1]]
        return x.flatten(1, 2)

    def padding_bias(self, batch: int, like: Tensor) -> Tensor | None:
        """Returns the bias that masks padding among the keys of a window, prefix tokens first: (B n, 1, S, P + S), or None."""
        if not self.is_padded:
            return None
        inside = torch.ones(1, 1, math.prod(self.grid), 1, dtype=like.dtype, device=like.device)
        inside = F.pad(self.cut(inside), (0, 0, self.prefix, 0), value=1.0).mT  # (n, 1, 1, P + S)
        bias = torch.zeros_like(inside).masked_fill(inside == 0, -math.inf)
        return bias.repeat(batch, 1, 1, 1).expand(-1, -1, self.height * self.width, -1)

    def bias(self, q: Tensor, rows: slice) -> Tensor:
        """Returns the bias of the whole matrix that leaves the same pairs, for the queries ``rows`` of q: (1, 1, R, T)."""
        down, across = (torch.arange(length, device=q.device) for length in self.grid)
        windows = down[:, None] // self.height * self.columns + across // self.width  # (h, w)
        keys = F.pad(windows.flatten(), (self.prefix, 0), value=-1)
        queries = keys[rows, None]
        is_apart = (queries != keys) & (queries >= 0) & (keys >= 0)
        return torch.zeros(is_apart.shape, device=q.device).masked_fill(is_apart, -math.inf)[None, None]


def opaque(length: Any, least: int) -> Any:
    """Returns a length as an independent symbol of at least ``least`` in a graph with dynamic size. As expressions of the image
    size, the lengths of windows would grow with each stage, and tracing would take several times as long.
    """
    if isinstance(length, int):
        return length
    number = torch.scalar_tensor(length, dtype=torch.int64).item()
    check(number >= least)
    return number
