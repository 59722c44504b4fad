"""Windows of a map, shifted or not: partitioning, masks and the cells of each window.

B images, h x w cells of a map, D width, n windows of s x s = S cells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.config import grid_of
from vitrail.models.grid_windows import opaque
from vitrail.models.recording import AttentionGrid


class Windows(NamedTuple):
    """``rows`` x ``columns`` windows of ``side`` x ``side`` cells of a map, which is padded with zeros at the bottom and on
    the right, then rolled by ``shift`` cells upwards and to the left (paper, section 3.2).
    """

    rows: int
    columns: int
    side: int
    shift: int

    @classmethod
    def over(cls, height: int, width: int, window: int, *, shifted: bool) -> Windows:
        """Returns the windows of a map of (height, width) cells. If its smaller side is at most ``window``, the windows have
        that side and are not shifted, as in the authors' code.
        """
        if torch.compiler.is_exporting():  # the same without branches, so that one graph is valid for all sizes
            least = torch.sym_min(height, width)
            side = opaque(torch.sym_min(least, window), 1)
            shift = opaque(torch.sym_ite(least > window, window // 2, 0), 0) if shifted else 0
            rows, columns = (opaque(count, 1) for count in grid_of((height, width), (side, side)))
            return cls(rows, columns, side, shift)
        least = min(height, width)
        side, shift = (least, 0) if least <= window else (window, window // 2 if shifted else 0)
        return cls(*grid_of((height, width), (side, side)), side, shift)

    @property
    def shifts(self) -> bool:
        """Whether maps are or may be shifted; in a graph with dynamic size the shift is unknown."""
        return isinstance(self.shift, torch.SymInt) or self.shift > 0

    def lay(self, x: Tensor, fill: int = 0) -> Tensor:
        """Pads and rolls the map: (B, h, w, D) to (B, rows s, columns s, D)."""
        below, right = self.rows * self.side - x.shape[1], self.columns * self.side - x.shape[2]
        if torch.compiler.is_compiling() or below or right:
            x = F.pad(x, (0, 0, 0, right, 0, below), value=fill)
        if not self.shifts:
            return x
        if torch.compiler.is_exporting():
            return self._roll(x, self.rows * self.side, self.columns * self.side, self.shift)
        return x.roll((-self.shift, -self.shift), (1, 2))

    def _roll(self, x: Tensor, height: int, width: int, by: int) -> Tensor:
        """Rolls the map (B, h, w, D) upwards and to the left and crops it to the first rows and columns, by indices."""
        for axis, length in ((1, height), (2, width)):
            places = _modulo(torch.arange(length, device=x.device) + by, x.shape[axis])
            x = x.index_select(axis, places)
        return x

    def lift(self, x: Tensor, height: int, width: int) -> Tensor:
        """The inverse of `lay`: (B, rows s, columns s, D) to (B, h, w, D)."""
        if torch.compiler.is_compiling():
            # a view would branch on whether anything was cropped, which needs two graphs
            return self._roll(x, height, width, -self.shift)
        return (x.roll((self.shift, self.shift), (1, 2)) if self.shift else x)[:, :height, :width]

    def cut(self, places: Tensor) -> Tensor:
        """Partitions a result of `lay` into windows: (rows s, columns s) to (n, S)."""
        cut = places.reshape(self.rows, self.side, self.columns, self.side).transpose(1, 2)
        return cut.flatten(2).flatten(0, 1)

    def grid(self, height: int, width: int, cell: tuple[int, int]) -> AttentionGrid:
        """Returns the attention grid of a map of (height, width) with cells of ``cell`` pixels, window by window."""
        places = torch.arange(height * width).reshape(1, height, width, 1)
        held = self.cut(self.lay(places, fill=-1).flatten(0, 1)[..., 0])  # (n, S)
        columns = held[:, None].expand(-1, self.side**2, -1)  # (n, S, S)
        if self.shift:
            columns = columns.masked_fill(self.strangers(held.device), -1)
        return AttentionGrid(0, (height, width), (height, width), cell, held.flatten(), columns.flatten(0, 1))

    def offsets(self, window: int, device: torch.device) -> Tensor:
        """Returns the row of a bias table for ``window`` for each pair of cells in a window: (S, S)."""
        places = torch.arange(self.side**2, device=device)
        down, right = (axis[:, None] - axis + window - 1 for axis in (places // self.side, _modulo(places, self.side)))
        return down * (2 * window - 1) + right

    def strangers(self, device: torch.device) -> Tensor:
        """Returns a mask of pairs that are in the same window only because of the roll: (n, S, S)."""
        below, right = (
            torch.arange(count * self.side, device=device) >= count * self.side - self.shift
            for count in (self.rows, self.columns)
        )
        region = self.cut(2 * below[:, None] + right.int())  # (n, S)
        return region[:, :, None] != region[:, None]


def _modulo(numbers: Tensor, length: int) -> Tensor:
    """Returns ``numbers % length`` of integers, which the ONNX exporter does not support for a dynamic length."""
    return numbers - numbers // length * length
