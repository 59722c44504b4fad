"""BEiT's relative position bias: one value per head and offset between two tokens, added to the attention logits.

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

# interpolation of a table for another grid: at offsets in a geometric progression, linear (timm) or with a cubic spline
# (the authors), or at uniform offsets by any rule for positions (transformers: "bilinear")
BIAS_RESIZES = ("geometric", "geometric-cubic", *RESIZES)


def count_rows(grid: Grid) -> int:
    """Returns R, the number of rows of a table for ``grid``."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + CLASS_ROWS


def bias_index(grid: Grid, ids: Tensor | None, device: torch.device) -> Tensor:
    """Returns the table row of each pair of tokens: (T, T), or (B, T, T) for a subset of patches with ``ids`` (B, K).

    The row of a query at (y, x) and a key at (y', x') is (y - y' + h - 1)(2 w - 1) + x - x' + w - 1.
    """
    (rows, columns), last = grid, count_rows(grid) - 1
    ids = torch.arange(rows * columns, device=device) if ids is None else ids
    places = F.pad(ids, (1, 0), value=-1)  # (T,) or (B, T), without the class token
    y = places // columns
    x = places - y * columns  # the remainder; the ONNX exporter does not support it for a dynamic number of columns
    down, right = (axis.unsqueeze(-1) - axis.unsqueeze(-2) for axis in (y, x))
    index = (down + rows - 1) * (2 * columns - 1) + right + columns - 1
    is_class = places < 0
    index = torch.where(is_class.unsqueeze(-1), last - 2, index)
    index = torch.where(is_class.unsqueeze(-2), last - 1, index)
    return torch.where(is_class.unsqueeze(-1) & is_class.unsqueeze(-2), last, index)


def gather_bias(table: Tensor, index: Tensor) -> Tensor:
    """Returns the bias of the logits from a table (R, A) and `bias_index`: (1, A, T, T), or (B, A, T, T) per image."""
    taken = table.mT.contiguous().index_select(1, index.flatten())  # (A, T T) or (A, B T T)
    return taken.unflatten(1, (-1, *index.shape[-2:])).transpose(0, 1)


def resize_bias(tables: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """Resizes tables (L, R, A) to another grid, (L, R', A), by one of `BIAS_RESIZES`. Rows of the class token are kept.

    The geometric progression (BEiT's code) keeps the spacing of near offsets at one patch and increases that of far ones: 0,
    1, 1 + q, 1 + q + q^2, ..., with q between 1.01 and 1.5 such that the last offset is the last of ``new``.
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
    """Returns the matrix (new, old) that resamples a line of offsets; the identity if the length is unchanged."""
    where = torch.device("cpu") if device.type == "mps" else device  # which has no fp64
    length = torch.full((), new, dtype=torch.float64, device=where)
    steps = torch.arange(-(old // 2), old // 2 + 1, dtype=torch.float64, device=where)  # (old,)
    q = solve_progression(old // 2, length // 2)
    places = torch.where(length == old, steps, steps.sign() * _sum(q, steps.abs()))
    wanted = torch.arange(new, dtype=torch.float64, device=where) - new // 2
    matrix = draw(places, wanted.clamp(places[0], places[-1]))
    return matrix.to(device, torch.float32)


def solve_progression(terms: int, last: Tensor) -> Tensor:
    """Finds q by bisection of [1.01, 1.5] to 1e-6, such that its first ``terms`` powers sum to ``last``."""
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
    """Returns the matrix (new, old) of linear interpolation from ``places`` (old,) to ``wanted`` (new,)."""
    gaps = places.diff()
    distance = wanted[:, None] - places
    before, after = F.pad(gaps, (1, 0), value=1.0), F.pad(gaps, (0, 1), value=1.0)
    return (1 - torch.where(distance < 0, -distance / before, distance / after)).clamp(min=0)


def interpolate_cubic(places: Tensor, wanted: Tensor) -> Tensor:
    """Returns the matrix of a not-a-knot cubic spline: its third derivative is continuous at the second place from each end."""

    def basis(x: Tensor) -> Tensor:  # (X, old)
        x = x[:, None] / places[-1].clamp(min=1)
        knots = places[2:-2] / places[-1].clamp(min=1)
        powers = [x**power for power in range(min(len(places), 4))]
        return torch.cat([*powers, (x - knots).abs() ** 3], 1)

    return torch.linalg.solve(basis(places), basis(wanted), left=False)
