"""BEiT's relative positions: a number for each head and each offset between two tokens, added to attention's logits.

h x w patches, T = 1 + h w tokens with the class token first, L tables, R = (2 h - 1)(2 w - 1) + 3 rows, A heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models.config import RESIZES
from vitrail.models.positions import Grid, is_kept, resample, resize

CLASS_ROWS = 3  # class token to patch, patch to class token, class token to itself

# how a table follows another grid: along a geometric progression of offsets, straight between them (as timm) or with a
# cubic spline through them (as the authors), or evenly, by any rule for positions (transformers: "bilinear")
BIAS_RESIZES = ("geometric", "geometric-cubic", *RESIZES)


def count_rows(grid: Grid) -> int:
    """R, the rows of a table for ``grid``."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + CLASS_ROWS


def bias_index(grid: Grid, ids: Tensor | None, device: torch.device) -> Tensor:
    """Which row of a table each pair of tokens reads: (T, T), or (B, T, T) where patches are kept by ``ids`` (B, K).

    The query at row y, column x reads for the key at y', x' row (y - y' + h - 1)(2 w - 1) + x - x' + w - 1.
    """
    (rows, columns), last = grid, count_rows(grid) - 1
    ids = torch.arange(rows * columns, device=device) if ids is None else ids
    places = F.pad(ids, (1, 0), value=-1)  # (T,) or (B, T), the class token is nowhere
    y = places // columns
    x = places - y * columns  # the remainder, which the ONNX exporter cannot write for an open number of columns
    down, right = (axis.unsqueeze(-1) - axis.unsqueeze(-2) for axis in (y, x))
    index = (down + rows - 1) * (2 * columns - 1) + right + columns - 1
    is_class = places < 0
    index = torch.where(is_class.unsqueeze(-1), last - 2, index)
    index = torch.where(is_class.unsqueeze(-2), last - 1, index)
    return torch.where(is_class.unsqueeze(-1) & is_class.unsqueeze(-2), last, index)


def gather_bias(table: Tensor, index: Tensor) -> Tensor:
    """The extra logits: a table (R, A) and `bias_index` to (1, A, T, T), or (B, A, T, T) where each image has its own."""
    taken = table.mT.contiguous().index_select(1, index.flatten())  # (A, T T) or (A, B T T)
    return taken.unflatten(1, (-1, *index.shape[-2:])).transpose(0, 1)


def resize_bias(tables: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """Tables for another grid: (L, R, A) to (L, R', A), by one of `BIAS_RESIZES`; the rows of the class token stay.

    The progression (BEiT's code) keeps near offsets apart by a patch whatever the size, and lets far ones mean more and
    more patches: 0, 1, 1 + q, 1 + q + q^2, ..., with the q between 1.01 and 1.5 whose last offset is the last of ``new``.
    """
    if is_kept(old, new):
        return tables
    of_patches, of_class = tables[:, :-CLASS_ROWS], tables[:, -CLASS_ROWS:]
    old, new = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (old, new))
    if rule in RESIZES:
        of_patches = resize(of_patches, old, new, rule)
    else:
        draw = interpolate_cubic if rule == "geometric-cubic" else interpolate_linearly
        of_rows, of_columns = (_resample_progression(*lengths, draw, tables.device) for lengths in zip(old, new))
        of_patches = resample(of_patches, old, of_rows, of_columns)
    return torch.cat([of_patches, of_class], 1)


def _resample_progression(old: int, new: int, draw: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> Tensor:
    """The matrix (new, old) that resamples a line of offsets; an axis that keeps its length keeps its numbers."""
    where = torch.device("cpu") if device.type == "mps" else device  # which has no fp64
    length = torch.full((), new, dtype=torch.float64, device=where)
    steps = torch.arange(-(old // 2), old // 2 + 1, dtype=torch.float64, device=where)  # (old,)
    q = solve_progression(old // 2, length // 2)
    places = torch.where(length == old, steps, steps.sign() * _sum(q, steps.abs()))
    wanted = torch.arange(new, dtype=torch.float64, device=where) - new // 2
    matrix = draw(places, wanted.clamp(places[0], places[-1]))
    return matrix.to(device, torch.float32)


def solve_progression(terms: int, last: Tensor) -> Tensor:
    """The q, by halving [1.01, 1.5] to 1e-6, whose first ``terms`` powers sum to ``last``."""
    low, high = torch.full_like(last, 1.01), torch.full_like(last, 1.5)
    q = low
    for _ in range(19):
        q = (low + high) / 2
        is_beyond = _sum(q, terms) > last
        low, high = torch.where(is_beyond, low, q), torch.where(is_beyond, q, high)
    return q


def _sum(q: Tensor, terms: Tensor | int) -> Tensor:
    """1 + q + ... + q^(terms - 1)."""
    return (q**terms - 1) / (q - 1)


def interpolate_linearly(places: Tensor, wanted: Tensor) -> Tensor:
    """The matrix (new, old) that draws straight lines between values at ``places`` (old,), read at ``wanted`` (new,)."""
    gaps = places.diff()
    distance = wanted[:, None] - places
    before, after = F.pad(gaps, (1, 0), value=1.0), F.pad(gaps, (0, 1), value=1.0)
    return (1 - torch.where(distance < 0, -distance / before, distance / after)).clamp(min=0)


def interpolate_cubic(places: Tensor, wanted: Tensor) -> Tensor:
    """The same with a cubic spline: one cubic whose third derivative jumps at all places but the two at each end."""

    def basis(x: Tensor) -> Tensor:  # (X, old)
        x = x[:, None] / places[-1].clamp(min=1)
        knots = places[2:-2] / places[-1].clamp(min=1)
        powers = [x**power for power in range(min(len(places), 4))]
        return torch.cat([*powers, (x - knots).abs() ** 3], 1)

    return torch.linalg.solve(basis(places), basis(wanted), left=False)
