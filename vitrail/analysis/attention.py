"""Attention maps of any layer, head and query. Memory grows linearly with the number of tokens.

B images, H heads, P prefix tokens, N = h w positions of a layer's map, T = P + N tokens, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from vitrail.analysis.attention_geometry import Lift
from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, AttentionRecord
from vitrail.models.backbone import at_rest

Place = tuple[int, int]  # row, column


def attention_map(
    model: Any, images: Tensor, layer: int = -1, head: int | None = None, query: Place | None = None
) -> Tensor:
    """Returns the attention of a query in one layer, on the map of that layer: (B, h, w) in fp32.

    Attention to prefix tokens (class token, registers) is omitted; the rest is not renormalised. Without ``query``, the
    queries are the tokens that the model pools: the class token, or else all patches, whose attention is averaged.

    Args:
        images: normalised, (B, C, H, W).
        layer: index into `attention_grids`; negative indices count from the end.
        head: index of the head; None averages over heads.
        query: row and column of the query.

    Raises:
        ConfigError: layer, head or query out of range, or a model without attention.
    """
    return select_head(compute_head_maps(model, images, layer, query), head)


def select_head(maps: Tensor, head: int | None) -> Tensor:
    """Selects one head of `compute_head_maps`, (B, H, h, w) to (B, h, w); None averages over heads. Raises `ConfigError`."""
    return maps.mean(1) if head is None else maps[:, check_index("head", head, maps.shape[1])]


def compute_head_maps(model: Any, images: Tensor, layer: int = -1, query: Place | None = None) -> Tensor:
    """Returns the `attention_map` of every head: (B, H, h, w)."""
    layers = len(model.attention_grids(tuple(images.shape[2:])))
    wanted = check_index("layer", layer, layers) if layers else 0  # a model without attention raises its own error
    return compute_layer_maps(model, images, [wanted], query)[wanted]


def compute_layer_maps(
    model: Any, images: Tensor, layers: Collection[int], query: Place | None = None
) -> dict[int, Tensor]:
    """Returns `compute_head_maps` of several layers, counted from 0, from one forward pass: (B, H, h, w) per layer."""
    grids = model.attention_grids(tuple(images.shape[2:]))
    maps: dict[int, Tensor] = {}
    numbers = count()

    def on_attention(record: AttentionRecord) -> None:
        if (layer := next(numbers)) in layers:
            shares = compute_query_shares(model, grids[layer], query, images.device)
            maps[layer] = _sum_received(record, Lift(grids[layer], images.device), shares)

    with at_rest(model):
        model.forward_recording(images, on_attention)
    return maps


def compute_query_shares(model: Any, grid: AttentionGrid, query: Place | None, device: torch.device) -> Tensor:
    """Returns the weight of each token of a layer as a query of `attention_map`: (T,), summing to one."""
    lift = Lift(grid, device)
    shares = torch.zeros(lift.tokens, device=device)
    if query is not None:
        if not lift.all_ask:
            raise ConfigError(
                "the class token is the only query of this layer", "omit the query, or choose another layer"
            )
        row, column = (check_index(name, at, length) for name, at, length in zip(("row", "column"), query, lift.map))
        shares[lift.prefix + row * lift.map[1] + column] = 1
    elif not lift.prefix:
        shares[:] = 1 / lift.tokens
    elif not lift.all_ask:
        shares[: lift.prefix] = 1 / lift.prefix
    else:
        shares = model.pooling_shares(lift.tokens).to(device)
    return shares


def _sum_received(record: AttentionRecord, lift: Lift, shares: Tensor) -> Tensor:
    """Returns the attention that spatial tokens receive from queries weighted by ``shares`` (T,): (B, H, h, w)."""
    batch, heads, *_ = record.shape
    shares = shares.expand(batch * heads, -1)
    received = torch.zeros(batch * heads, lift.tokens, device=shares.device)
    for rows in record.slices():
        queries = lift.rows[rows]
        is_needed = (queries < lift.tokens) & (shares[0, queries.clamp(max=lift.tokens - 1)] > 0)
        if not is_needed.any():
            continue
        # compute only the rows with nonzero weight, usually the class token alone
        first, last = is_needed.nonzero()[[0, -1], 0].tolist()
        rows = slice(rows.start + first, rows.start + last + 1)
        received += lift.carry(shares, lift.mask_outside(record.weights(rows), rows).flatten(0, 1), rows)
    return received[:, lift.prefix :].unflatten(1, lift.map).unflatten(0, (batch, heads))


def compute_reach(cells: Sequence[int], cell: Place, size: Place) -> tuple[float, float]:
    """Returns the height and width of a map of ``cells``, of ``cell`` pixels each, relative to the image ``size``: above 1 if
    the image or the map was padded.
    """
    down, across = (count * side / length for count, side, length in zip(cells, cell, size))
    return down, across


def check_index(name: str, index: int, length: int) -> int:
    """Returns ``index`` as a non-negative index. Raises `ConfigError` if it is out of range."""
    if not -length <= index < length:
        raise ConfigError(
            f"there is no {name} {index}: the model has {length}", f"give 0 to {length - 1}, or -1 for the last"
        )
    return index % length
