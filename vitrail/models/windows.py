"""Windows over a map, shifted or not: how it is cut, which pairs may see each other, and where each place lies.

B images, h x w places of a map, D width, n windows of s x s = S places.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.attention import AttentionGrid
from vitrail.models.config import grid_of
from vitrail.torch_private import check


class Windows(NamedTuple):
    """``rows`` x ``columns`` windows of ``side`` x ``side`` places over a map, which is filled up with zeros at the bottom
    and on the right, then rolled by ``shift`` places upwards and to the left (paper, section 3.2).
    """

    rows: int
    columns: int
    side: int
    shift: int

    @classmethod
    def over(cls, height: int, width: int, window: int, *, shifted: bool) -> Windows:
        """The windows of a map of (height, width) places. One whose smaller side is no larger than ``window`` is cut
        into windows of that side and never shifted, as the authors' code has it.
        """
        if torch.compiler.is_exporting():  # the same without asking, so that there is one graph for all sizes
            least = torch.sym_min(height, width)
            side = _opaque(torch.sym_min(least, window), 1)
            shift = _opaque(torch.sym_ite(least > window, window // 2, 0), 0) if shifted else 0
            rows, columns = (_opaque(count, 1) for count in grid_of((height, width), (side, side)))
            return cls(rows, columns, side, shift)
        least = min(height, width)
        side, shift = (least, 0) if least <= window else (window, window // 2 if shifted else 0)
        return cls(*grid_of((height, width), (side, side)), side, shift)

    @property
    def shifts(self) -> bool:
        """Whether maps are shifted, or may be: a graph for all sizes does not know by how much."""
        return isinstance(self.shift, torch.SymInt) or self.shift > 0

    def lay(self, x: Tensor, fill: int = 0) -> Tensor:
        """The map filled up and rolled: (B, h, w, D) to (B, rows s, columns s, D)."""
        below, right = self.rows * self.side - x.shape[1], self.columns * self.side - x.shape[2]
        if torch.compiler.is_compiling() or below or right:
            x = F.pad(x, (0, 0, 0, right, 0, below), value=fill)
        if not self.shifts:
            return x
        if torch.compiler.is_exporting():
            return self._roll(x, self.rows * self.side, self.columns * self.side, self.shift)
        return x.roll((-self.shift, -self.shift), (1, 2))

    def _roll(self, x: Tensor, height: int, width: int, by: int) -> Tensor:
        """The map, (B, h, w, D), rolled upwards and to the left, and of it the first rows and columns: by indices."""
        for axis, length in ((1, height), (2, width)):
            places = _modulo(torch.arange(length, device=x.device) + by, x.shape[axis])
            x = x.index_select(axis, places)
        return x

    def lift(self, x: Tensor, height: int, width: int) -> Tensor:
        """Back from `lay`: (B, rows s, columns s, D) to (B, h, w, D)."""
        if torch.compiler.is_compiling():
            # of a view it would ask whether anything was cut off, and need a graph for either answer
            return self._roll(x, height, width, -self.shift)
        return (x.roll((self.shift, self.shift), (1, 2)) if self.shift else x)[:, :height, :width]

    def cut(self, places: Tensor) -> Tensor:
        """What each window holds of a map that was laid: (rows s, columns s) to (n, S)."""
        cut = places.reshape(self.rows, self.side, self.columns, self.side).transpose(1, 2)
        return cut.flatten(2).flatten(0, 1)

    def grid(self, height: int, width: int, cell: tuple[int, int]) -> AttentionGrid:
        """Which places, of ``cell`` pixels, of a map of (height, width) are the queries and keys, window by window."""
        places = torch.arange(height * width).reshape(1, height, width, 1)
        held = self.cut(self.lay(places, fill=-1).flatten(0, 1)[..., 0])  # (n, S)
        columns = held[:, None].expand(-1, self.side**2, -1)  # (n, S, S)
        if self.shift:
            columns = columns.masked_fill(self.strangers(held.device), -1)
        return AttentionGrid(0, (height, width), (height, width), cell, held.flatten(), columns.flatten(0, 1))

    def offsets(self, window: int, device: torch.device) -> Tensor:
        """The row of a bias table for ``window`` that each pair of places in a window reads: (S, S)."""
        places = torch.arange(self.side**2, device=device)
        down, right = (axis[:, None] - axis + window - 1 for axis in (places // self.side, _modulo(places, self.side)))
        return down * (2 * window - 1) + right

    def strangers(self, device: torch.device) -> Tensor:
        """Pairs that only rolling brought into one window: (n, S, S)."""
        below, right = (
            torch.arange(count * self.side, device=device) >= count * self.side - self.shift
            for count in (self.rows, self.columns)
        )
        region = self.cut(2 * below[:, None] + right.int())  # (n, S)
        return region[:, :, None] != region[:, None]


def _modulo(numbers: Tensor, length: int) -> Tensor:
    """``numbers % length`` of whole numbers, which the ONNX exporter cannot write where a graph leaves the length open."""
    return numbers - numbers // length * length


def _opaque(length: Any, least: int) -> Any:
    """A length as a graph for all sizes knows it: a number of its own, from ``least`` on. Written as expressions of the
    image's size the lengths of windows grow with each stage, and tracing takes several times as long.
    """
    if isinstance(length, int):
        return length
    number = torch.scalar_tensor(length, dtype=torch.int64).item()
    check(number >= least)
    return number
