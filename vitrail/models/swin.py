"""The Swin Transformer (Liu et al. 2021, "Hierarchical Vision Transformer using Shifted Windows").

B images, C channels, h x w cells of a map, D width of a stage, H heads, E = D / H, n windows of s x s = S cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.attention import AttentionGrid, GroupedAttentionRecord, OnAttention, attend, opaque
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import GELUS, Pair, Positive, Share, StagedConfig, Stages, grid_of
from vitrail.models.initialise import fill_truncated
from vitrail.models.layers import (
    Dense,
    LayerNorm,
    Mlp,
    PatchEmbed,
    Patches,
    PreNormBlock,
    Tokens,
    residual_stream,
    stage_drop_rates,
)
from vitrail.models.positions import resize

BIAS_TABLE = "relative_position_bias_table"


@dataclass(frozen=True, kw_only=True)
class SwinConfig(StagedConfig):
    """The fields of a Swin Transformer; the defaults are Swin-T as in the paper. Images may have any size.

    Args:
        patch_size: (height, width) in pixels, or one number for a square.
        width: width of the first stage; each stage doubles it and halves the map.
        depths: number of blocks per stage; every second block shifts its windows.
        heads: number of heads per stage.
        window: side of a window in cells, the size of the bias tables. A map whose smaller side is not larger is split into
            windows of that side without shift, and uses the centre of the tables.
        mlp_ratio: ratio of the MLP's width to that of its stage.
        gelu: "exact", as in the authors' code, or "tanh".
        dropout: rate after every dense layer except q, k, v, and after the patch embedding; ``attention_dropout`` is that of
            the attention matrices.
    """

    architecture: ClassVar[str] = "swin"
    about: ClassVar[str] = "a Swin Transformer"
    pad: ClassVar[bool] = True
    attention: ClassVar[str] = "N"
    CHOICES: ClassVar = {"gelu": GELUS}

    patch_size: Pair = (4, 4)
    width: int = 96
    depths: Stages = (2, 2, 6, 2)
    heads: Stages = (3, 6, 12, 24)
    window: int = 7
    mlp_ratio: Positive = 4.0
    qkv_bias: bool = True
    gelu: str = "exact"
    norm_eps: Positive = 1e-5
    dropout: Share = 0.0
    attention_dropout: Share = 0.0

    def _check_together(self) -> None:
        self._check_heads(self.heads)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the stages."""
        return tuple(self.width * 2**stage for stage in range(len(self.depths)))


def _swin(width: int, third: int, heads: int, size: int = 224, window: int = 7) -> SwinConfig:
    by_stage = (heads, 2 * heads, 4 * heads, 8 * heads)
    return SwinConfig(width=width, depths=(2, 2, third, 2), heads=by_stage, image_size=(size, size), window=window)


# T, S, B, L of section 3.3 of the paper; 384 pixels with larger windows: section 4.1.
SWINS: dict[str, SwinConfig] = {
    "swin-t": _swin(96, 6, 3),
    "swin-s": _swin(96, 18, 3),
    "swin-b": _swin(128, 18, 4),
    "swin-l": _swin(192, 18, 6),
    "swin-b-384": _swin(128, 18, 4, 384, 12),
    "swin-l-384": _swin(192, 18, 6, 384, 12),
}


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
            columns = columns.masked_fill(self.different_regions(held.device), -1)
        return AttentionGrid(0, (height, width), (height, width), cell, held.flatten(), columns.flatten(0, 1))

    def offsets(self, window: int, device: torch.device) -> Tensor:
        """Returns the row of a bias table for ``window`` for each pair of cells in a window: (S, S)."""
        places = torch.arange(self.side**2, device=device)
        down, right = (axis[:, None] - axis + window - 1 for axis in (places // self.side, _modulo(places, self.side)))
        return down * (2 * window - 1) + right

    def different_regions(self, device: torch.device) -> Tensor:
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


class WindowAttention(nn.Module):
    """W-MSA and SW-MSA: attention inside windows, softmax(q k^T / sqrt(E) + B) v (paper, equation 4)."""

    def __init__(self, config: SwinConfig, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.window = config.window
        self.dropout = config.attention_dropout
        self.qkv = Dense(width, 3 * width, bias=config.qkv_bias)
        self.proj = Dense(width, width)
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * config.window - 1) ** 2, heads))

    def split(self, x: Tensor, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, h, w, D) to q, k and v of every window: (B, n, H, S, E) each."""
        (batch, _, _, width), (rows, columns, side, _) = x.shape, windows
        qkv = self.qkv(windows.lay(x))  # (B, rows s, columns s, 3 D)
        qkv = qkv.reshape(batch, rows, side, columns, side, 3, self.heads, width // self.heads)
        qkv = qkv.permute(5, 0, 1, 3, 6, 2, 4, 7)  # (3, B, rows, columns, H, s, s, E)
        q, k, v = qkv.reshape(3, batch, rows * columns, self.heads, side**2, width // self.heads).unbind(0)
        return q, k, v

    def bias(self, windows: Windows) -> Tensor:
        """Returns the bias B, with pairs of different regions masked in shifted windows: (1 or n, H, S, S)."""
        side, table = windows.side, self.relative_position_bias_table
        if torch.compiler.is_exporting():
            bias = table[windows.offsets(self.window, table.device)].permute(2, 0, 1)[None]
        else:
            reach = slice(self.window - side, self.window + side - 1)
            offsets = table.unflatten(0, (2 * self.window - 1, -1))[reach, reach]  # (2 s - 1, 2 s - 1, H)
            # the offset of query (y, x) and key (s - 1 - y', s - 1 - x') is (y + y', x + x'), counted from the smallest
            pairs = offsets.unfold(0, side, 1).unfold(1, side, 1).flip(-2, -1)  # (s, s, H, s, s)
            bias = pairs.permute(2, 0, 1, 3, 4).reshape(1, self.heads, side**2, side**2)
        return bias.masked_fill(windows.different_regions(table.device)[:, None], -math.inf) if windows.shifts else bias

    def forward(self, x: Tensor, windows: Windows, on_attention: OnAttention | None = None) -> Tensor:
        """(B, h, w, D) to (B, h, w, D)."""
        (batch, height, width, channels), (rows, columns, side, _) = x.shape, windows
        q, k, v = self.split(x, windows)
        bias = self.bias(windows).to(q.dtype).flatten(0, 1)  # (H or n H, S, S)
        # windows are merged with the batch if they share their bias, otherwise with the heads
        merged = (1, 2) if windows.shifts else (0, 1)
        q, k, v = (part.flatten(*merged) for part in (q, k, v))
        # With 7 x 7 cells and a bias, plain attention is 1.1 times faster in bf16 on a CPU without AMX.
        path = "plain" if x.device.type == "cpu" and q.dtype == torch.bfloat16 else None
        output = attend(q, k, v, bias=bias[None], dropout=self.dropout if self.training else 0.0, path=path)
        if on_attention is not None:

            def bias_of(q: Tensor, groups: slice) -> Tensor:
                return self.bias(windows)[groups if windows.shifts else slice(None)]

            on_attention(GroupedAttentionRecord(partial(self.split, x, windows), output, bias_of))
        x = output.reshape(batch, rows, columns, self.heads, side, side, channels // self.heads)
        x = x.permute(0, 1, 4, 2, 5, 3, 6).reshape(batch, rows * side, columns * side, channels)
        return windows.lift(self.proj(x), height, width)


class Block(PreNormBlock):
    """z' = W-MSA(LN(z)) + z, z = MLP(LN(z')) + z', with shifted windows in every second block (paper, equation 3)."""

    def __init__(self, config: SwinConfig, width: int, heads: int, drop_path: float, *, shifted: bool) -> None:
        mlp = Mlp(width, int(width * config.mlp_ratio), gelu=config.gelu, dropout=config.dropout)
        super().__init__(config, width, WindowAttention(config, width, heads), mlp, drop_path)
        self.shifted = shifted

    def windows(self, height: int, width: int) -> Windows:
        """Returns the windows of a map of (height, width) cells."""
        return Windows.over(height, width, self.attn.window, shifted=self.shifted)

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, h, w, D) to (B, h, w, D)."""
        windows = self.windows(*x.shape[1:3])
        return self.run_branches(x, lambda x: self.attn(x, windows, on_attention), whole=on_attention is not None)


class PatchMerging(nn.Module):
    """Patch merging: four neighbouring cells are concatenated, normalised and projected from 4 D to 2 D (section 3.1)."""

    def __init__(self, config: SwinConfig, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * width, eps=config.norm_eps)
        self.reduction = Dense(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) to (B, h / 2, w / 2, 2 D); odd maps are padded with zeros at the bottom and on the right."""
        height, width = grid_of(x.shape[1:3], (2, 2))
        below, right = 2 * height - x.shape[1], 2 * width - x.shape[2]
        if torch.compiler.is_compiling() or below or right:
            x = F.pad(x, (0, 0, 0, right, 0, below))
        # in the order upper left, lower left, upper right, lower right
        x = x.reshape(x.shape[0], height, 2, width, 2, x.shape[3])
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # (B, h/2, w/2, 4 D)
        return self.reduction(self.norm(x))


class Stage(nn.Module):
    """Patch merging, except in the first stage, and blocks on maps of one size."""

    def __init__(self, config: SwinConfig, stage: int, drops: list[float]) -> None:
        super().__init__()
        width, heads = config.widths[stage], config.heads[stage]
        self.downsample = PatchMerging(config, width // 2) if stage else nn.Identity()
        blocks = (Block(config, width, heads, drop, shifted=block % 2 == 1) for block, drop in enumerate(drops))
        self.blocks = nn.ModuleList(blocks)


class Swin(Backbone):
    """The paper's backbone. It requires the whole grid, and its only positions are the bias tables of attention.

    Images of any size are padded to whole patches, and maps to whole windows. Maps are padded with zeros after the norm, and
    the padding takes part in attention, as in the authors' code for detection. Maps smaller than a window are handled as in
    the authors' code (`Windows.over`). timm clamps and shifts each axis separately and rolls before padding; transformers does
    not support such maps.
    """

    config: SwinConfig
    stages: Any  # of `Stage`; called "layers" in timm, which is a method here

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        norm = LayerNorm(config.width, eps=config.norm_eps)
        self.patch_embed = PatchEmbed(config.in_channels, config.width, config.patch_size, norm=norm)
        self.dropout = nn.Dropout(config.dropout)
        rates = enumerate(stage_drop_rates(config.drop_path, config.depths))
        self.stages = nn.ModuleList(Stage(config, stage, drops) for stage, drops in rates)
        self.norm = LayerNorm(self.width, eps=config.norm_eps)
        self.head = self._make_head()
        fill_truncated(self, config.head_bias, uniform=("patch_embed.proj",))  # as in the authors' code

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies all stages and the norm: (B, N, D) to (B, N', D'), the cells of the last map."""
        x, grid = last(self._outputs(patches, on_attention))
        return Tokens(self.norm(x), grid)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Pair]]:
        self._check_subset(patches)
        x = self.dropout(residual_stream(patches.x)).unflatten(1, patches.grid)
        for stage in self.stages:
            x = stage.downsample(x)
            for block in stage.blocks:
                x = self._run(block, x, on_attention=on_attention)
            yield x.flatten(1, 2), (x.shape[1], x.shape[2])

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grid of each matrix of `forward_with_attention`, (B, H, n S, S): rows are the cells of all windows, window
        by window and in row-major order; columns are the cells of the same window.
        """
        grids, (places, cell) = [], (grid_of(size, self.config.patch_size), self.config.patch_size)
        for number, stage in enumerate(self.stages):
            if number:
                places, cell = grid_of(places, (2, 2)), (2 * cell[0], 2 * cell[1])
            grids += [block.windows(*places).grid(*places, cell) for block in stage.blocks]
        return grids

    def _layer(self, name: str) -> int:
        # patch merging belongs to the previous stage, as in the authors' code
        return super()._layer(name) - (".downsample." in name)

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: SwinConfig, new: SwinConfig) -> dict[str, Tensor]:
        """Resizes bias tables to another ``window`` by bicubic interpolation, as in the authors' code."""
        before, after = 2 * old.window - 1, 2 * new.window - 1

        def fit(table: Tensor) -> Tensor:
            return resize(table[None], (before, before), (after, after), "bicubic")[0]

        return {name: fit(tensor) if name.endswith(BIAS_TABLE) else tensor for name, tensor in tensors.items()}
