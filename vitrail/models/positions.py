"""Position embeddings: their parameters, and the values for a grid of any size.

L tables, P prefix tokens with a slot, h x w patches, S = P + h w slots, D width, E width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.config import RESIZES

Grid = tuple[int, int]  # rows, columns


def table_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the position parameters of ``config`` (paper, appendix D.4).

    ``learned`` has one vector per slot; ``learned2d`` half a vector per column and half per row; ``relative`` one vector
    per offset between two slots; ``sincos2d`` and ``none`` have no parameters.
    """
    (rows, columns), prefix, width = config.grid, config.prefix_slots, config.width
    tables = config.depth if config.positions_at == "every" else 1
    if config.positions == "learned":
        return {"pos_embed": (tables, prefix + rows * columns, width)}
    if config.positions == "learned2d":
        before = {"pos_embed_prefix": (tables, prefix, width)} if prefix else {}
        return {"pos_embed_x": (tables, columns, width // 2), "pos_embed_y": (tables, rows, width // 2), **before}
    if config.positions == "relative":
        tables = 1 if config.positions_at == "shared" else config.depth
        return {"pos_embed_relative": (tables, _offsets(prefix, config.grid), config.head_width)}
    return {}


def embeddings(
    config: Any, parameters: Mapping[str, Tensor], table: int, grid: Grid, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns the positions of the prefix tokens, (1, P, D), and of the patches of ``grid``, (1, h w, D), from one of the tables
    of `table_shapes`, or as sines on the ``device``.
    """
    prefix = config.prefix_slots
    nowhere = torch.zeros(1, len(config.prefix), config.width, device=device)
    if config.positions == "sincos2d":
        return nowhere, sincos2d(grid, config.width, device)[None]
    named = {name: parameters[name][table, None] for name in table_shapes(config)}
    named = resize_tables(named, config.grid, grid, prefix=prefix, rule=config.position_resize)
    if config.positions == "learned":
        return named["pos_embed"][:, :prefix] if prefix else nowhere, named["pos_embed"][:, prefix:]
    x, y = named["pos_embed_x"][0], named["pos_embed_y"][0]  # (w, D/2), (h, D/2)
    places = torch.cat([x.expand(grid[0], -1, -1), y[:, None].expand(-1, grid[1], -1)], 2)  # (h, w, D)
    return named["pos_embed_prefix"] if prefix else nowhere, places.flatten(0, 1)[None]


def sincos2d(grid: Grid, width: int, device: torch.device | None = None, *, endpoint: bool = True) -> Tensor:
    """Returns fixed sines and cosines of column and row, (h w, D) in fp32 (Beyer et al. 2022; MoCo v3).

    With x the column, y the row and w_i = 10000^(-i / (D/4 - 1)) for i < D/4: [sin x w, cos x w, sin y w, cos y w]. Without
    ``endpoint`` the divisor is D/4, as in MAE's code.
    """
    kind = torch.float32 if device is not None and device.type == "mps" else torch.float64
    rows, columns = (torch.arange(length, dtype=kind, device=device) for length in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")  # (h, w) each
    if endpoint:
        frequencies = 10000 ** -torch.linspace(0, 1, width // 4, dtype=kind, device=device)  # (D/4,)
    else:
        frequencies = 10000 ** (-4 * torch.arange(width // 4, dtype=kind, device=device) / width)
    x, y = (axis.flatten()[:, None] * frequencies for axis in (x, y))  # (h w, D/4) each
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], 1).float()


def resize(table: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """Resizes a table of patch positions to another grid, (L, h w, D) to (L, h' w', D), by one of `RESIZES`.

    Every rule is two matrix products, one along each axis, so that a compiled model has one graph for all sizes.
    ``F.interpolate`` with aligned corners would be traced again for each size.
    """
    if is_kept(old, new):
        return table
    return resample(table, old, *(make_resampling(*lengths, rule, table.device) for lengths in zip(old, new)))


def is_kept(old: Grid, new: Grid) -> bool:
    """Whether a table needs no resizing. A graph with dynamic size always resizes."""
    if torch.compiler.is_exporting():
        return all(isinstance(length, int) for length in new) and old == new
    return not torch.compiler.is_compiling() and old == new


def resample(table: Tensor, old: Grid, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """Multiplies a table by a matrix along each axis, (h', h) and (w', w): (L, h w, D) to (L, h' w', D)."""
    image = table.unflatten(1, old).float()  # (L, h, w, D)
    image = torch.einsum("yh,lhwd->lywd", of_rows, image)
    image = torch.einsum("xw,lywd->lyxd", of_columns, image)
    return image.flatten(1, 2).to(table.dtype)


def make_resampling(old: int, new: int, rule: str, device: torch.device) -> Tensor:
    """Returns the matrix (new, old) that resamples ``old`` values to ``new`` ones by one of `RESIZES`; rows sum to one."""
    half_width, sharpness, aligned, antialias = RESIZES[rule]
    places = torch.arange(new, device=device, dtype=torch.float32)
    if aligned:
        centres = places * (old - 1) / max(new - 1, 1)
    else:
        centres = (places + 0.5) * old / new - 0.5
    stretch = max(old, new) / new if antialias else 1.0
    border = 0 if antialias else half_width  # beyond the ends, values are replicated or have no weight
    reach = torch.arange(-border, old + border, device=device)
    weights = _kernel((reach - centres[:, None]) / stretch, half_width, sharpness)  # (new, old + 2 border)
    ends = reach.clamp(0, old - 1)[:, None] == torch.arange(old, device=device)  # (old + 2 border, old)
    weights = weights @ ends.to(weights.dtype)
    return weights / weights.sum(1, keepdim=True)


def _kernel(distance: Tensor, half_width: int, sharpness: float) -> Tensor:
    """Evaluates a triangle, or the cubic convolution kernel of Keys 1981."""
    d = distance.abs()
    if half_width == 1:
        return (1 - d).clamp(min=0)
    near = ((sharpness + 2) * d - (sharpness + 3)) * d**2 + 1
    far = ((d - 5) * d + 8) * d * sharpness - 4 * sharpness
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))


def take(places: Tensor, ids: Tensor | None) -> Tensor:
    """Returns (1, N, D) unchanged, or the rows ``ids`` (B, K) for each image: (B, K, D)."""
    return places if ids is None else places[0][ids]


def resize_tables(tables: Mapping[str, Tensor], old: Grid, new: Grid, *, prefix: int, rule: str) -> dict[str, Tensor]:
    """Resizes the parameters of `table_shapes` to another grid by one of `RESIZES`; other parameters are not changed.

    The first ``prefix`` slots are not changed (paper, section 3.2). Tables of relative offsets are resized linearly.
    """

    def fit(name: str, table: Tensor) -> Tensor:
        if name == "pos_embed":
            return torch.cat([table[:, :prefix], resize(table[:, prefix:], old, new, rule)], 1)
        if name == "pos_embed_relative":
            return resize(table, (1, table.shape[1]), (1, _offsets(prefix, new)), "paper")
        length = {"pos_embed_x": new[1], "pos_embed_y": new[0]}.get(name)
        return table if length is None else resize(table, (1, table.shape[1]), (1, length), rule)

    # a compiled ViT has a separate graph for the size of its tables
    kept = is_kept(old, new) if torch.compiler.is_exporting() else old == new
    return dict(tables) if kept else {name: fit(name, table) for name, table in tables.items()}


def relative_tables(config: Any, tables: Tensor, grid: Grid) -> Tensor:
    """Returns the embeddings of offsets on ``grid``, with a last row of zeros for pairs without an offset: (L, 2 S, E)."""
    name, prefix = "pos_embed_relative", config.prefix_slots
    resized = resize_tables({name: tables}, config.grid, grid, prefix=prefix, rule=config.position_resize)[name]
    return F.pad(resized, (0, 0, 0, 1))


def relative_index(config: Any, grid: Grid, ids: Tensor | None, device: torch.device) -> Tensor:
    """Returns the row of `relative_tables` for each pair of tokens: (T, T), or (B, T, T) for a subset with ``ids``.

    The offset of slots p and q is row p - q + S - 1. Pairs with a token without a slot use the last row.
    """
    prefix, slots = config.prefix_slots, config.prefix_slots + grid[0] * grid[1]
    without = len(config.prefix) - prefix + config.registers
    ids = torch.arange(slots - prefix, device=device) if ids is None else ids
    before = torch.arange(prefix, device=device).expand(*ids.shape[:-1], -1)
    nowhere = torch.full((*ids.shape[:-1], without), -1, device=device)
    places = torch.cat([before, nowhere, ids + prefix], -1)  # (T,) or (B, T)
    query, key = places.unsqueeze(-1), places.unsqueeze(-2)
    return torch.where((query < 0) | (key < 0), 2 * slots - 1, query - key + slots - 1)


def _offsets(prefix: int, grid: Grid) -> int:
    """Returns the number of offsets between S = P + h w slots."""
    return 2 * (prefix + grid[0] * grid[1]) - 1
