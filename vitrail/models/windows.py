"""Windows over a map, shifted or not: how it is cut, which pairs may see each other, and where each place lies.

B images, h x w places of a map, D width, n windows of s x s = S places.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.backbone import AttentionGrid


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
        least = min(height, width)
        side, shift = (least, 0) if least <= window else (window, window // 2 if shifted else 0)
        return cls(-(-height // side), -(-width // side), side, shift)

    def lay(self, x: Tensor, fill: int = 0) -> Tensor:
        """The map filled up and rolled: (B, h, w, D) to (B, rows s, columns s, D)."""
        below, right = self.rows * self.side - x.shape[1], self.columns * self.side - x.shape[2]
        if torch.compiler.is_compiling() or below or right:
            x = F.pad(x, (0, 0, 0, right, 0, below), value=fill)
        return x.roll((-self.shift, -self.shift), (1, 2)) if self.shift else x

    def lift(self, x: Tensor, height: int, width: int) -> Tensor:
        """Back from `lay`: (B, rows s, columns s, D) to (B, h, w, D)."""
        if torch.compiler.is_compiling():
            # of a view it would ask whether anything was cut off, and need a graph for either answer
            for axis, length in ((1, height), (2, width)):
                x = x.index_select(axis, (torch.arange(length, device=x.device) - self.shift) % x.shape[axis])
            return x
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

    def strangers(self, device: torch.device) -> Tensor:
        """Pairs that only rolling brought into one window: (n, S, S)."""
        below, right = (
            torch.arange(count * self.side, device=device) >= count * self.side - self.shift
            for count in (self.rows, self.columns)
        )
        region = self.cut(2 * below[:, None] + right.int())  # (n, S)
        return region[:, :, None] != region[:, None]
