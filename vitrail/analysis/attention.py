"""Attention maps of any layer, head and query, and how the attention of windows, lines and reduced maps is mapped to the tokens
of a layer and to positions in the image. Memory grows linearly with the number of tokens.

B images, H heads, P prefix tokens, N = h w positions of a layer's map, T = P + N tokens, Q queries, K keys, R of the queries.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, AttentionRecord
from vitrail.models.backbone import eval_mode
from vitrail.models.layers import by_hand

Place = tuple[int, int]  # row, column


class Lift:
    """Maps rows and columns of the matrix of a layer to its tokens, in fp32: the prefix, then the positions of its map."""

    def __init__(self, grid: AttentionGrid, device: torch.device) -> None:
        self.prefix = grid.prefix
        self.all_ask = grid.queries != (0, 0)  # otherwise the prefix tokens are the only queries
        self.map = grid.queries if self.all_ask else grid.keys
        self.tokens = self.prefix + math.prod(self.map)
        self.grid = grid
        self.device = device

    @cached_property
    def rows(self) -> Tensor:
        """(Q,) token index of each query, T for queries outside the image."""
        prefix = torch.arange(self.prefix, device=self.device)
        if not self.all_ask:
            return prefix
        if self.grid.rows is None:
            return torch.arange(self.tokens, device=self.device)
        return torch.cat([prefix, self._to_tokens(self.grid.rows)])

    @cached_property
    def columns(self) -> Tensor | None:
        """(Q, K) token index of each key of each query, T outside the image; None if all queries have the same keys."""
        return None if self.grid.columns is None else self._to_tokens(self.grid.columns)

    def _to_tokens(self, places: Tensor) -> Tensor:
        places = places.to(self.device)
        return torch.where(places < 0, self.tokens, places + self.prefix)

    @cached_property
    def asks(self) -> Tensor:
        """(T,) one for tokens that are queries, else zero."""
        asks = torch.zeros(self.tokens + 1, device=self.device)
        asks[self.rows] = 1
        return asks[:-1]

    def mask_outside(self, weights: Tensor, rows: slice) -> Tensor:
        """Returns ``weights`` (B, H, R, K) of the queries ``rows``, set to zero for keys outside the image."""
        return weights if self.columns is None else weights * (self.columns[rows] < self.tokens)

    def carry(self, shares: Tensor, weights: Tensor, rows: slice) -> Tensor:
        """Distributes the shares of the queries ``rows`` over their keys by ``weights`` (B, R, K), zero outside the image: (B, T)
        to (B, T).
        """
        padded = torch.cat([shares, shares.new_zeros(len(shares), 1)], 1)
        query_shares = padded[:, self.rows[rows]]  # (B, R), zero outside the image
        if self.columns is None:
            with by_hand(weights):
                return self.spread((query_shares[:, None] @ weights)[:, 0])
        carried = torch.zeros_like(padded)
        carried.index_add_(1, self.columns[rows].flatten(), (query_shares[..., None] * weights).flatten(1))
        return carried[:, :-1]

    def spread(self, keys: Tensor) -> Tensor:
        """Maps values of prefix and keys (..., P + K) to tokens (..., T), dividing the value of a key among its positions."""
        if self.columns is not None or self.grid.keys == self.map:
            return keys
        before, places = keys[..., : self.prefix], keys[..., self.prefix :].unflatten(-1, self.grid.keys)
        of_rows, of_columns = self.covers
        with by_hand(places):
            return torch.cat([before, (of_rows.mT @ places @ of_columns).flatten(-2)], -1)

    @cached_property
    def covers(self) -> tuple[Tensor, Tensor]:
        """The positions of the map that a key covers along each axis: (h', h) and (w', w), rows sum to one."""
        return _compute_covers(self.grid.keys, self.grid.covered or self.map, self.map, self.device)

    @cached_property
    def centres(self) -> tuple[Tensor, Tensor]:
        """Centres of positions (N, 2) and keys (K, 2) as (y, x) in pixels, for keys that are the same for all queries."""
        cell = torch.tensor(self.grid.cell, dtype=torch.float32, device=self.device)
        axes = [torch.arange(length, device=self.device) + 0.5 for length in self.map]
        places = torch.cartesian_prod(*axes).reshape(-1, 2) * cell
        if self.columns is not None or self.grid.keys == self.map:
            return places, places
        with by_hand(places):
            keys = [cover @ axis for cover, axis in zip(self.covers, axes)]
        return places, torch.cartesian_prod(*keys).reshape(-1, 2) * cell

    def distances(self, rows: slice) -> Tensor:
        """Returns the distance in pixels between the queries ``rows`` and their keys, without prefix tokens: (R, K)."""
        places, keys = self.centres
        outside = places.new_zeros(1, 2)
        queries = torch.cat([places, outside])[self.rows[rows] - self.prefix]  # (R, 2)
        if self.columns is None:
            # not with a matrix product, whose rounding error is a quarter of a pixel on a large image
            return torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")
        return (queries[:, None] - torch.cat([keys, outside])[self.columns[rows] - self.prefix]).norm(dim=-1)


def _compute_covers(keys: Place, covered: Place, places: Place, device: torch.device) -> tuple[Tensor, Tensor]:
    """Along each axis, key i of k covers the positions from floor(i n / k) to ceil((i + 1) n / k) - 1 of n covered ones."""

    def cover(keys: int, covered: int, places: int) -> Tensor:
        key, place = torch.arange(keys, device=device)[:, None], torch.arange(places, device=device)
        inside = (place >= key * covered // keys) & (place < -(-(key + 1) * covered // keys)) & (place < covered)
        return inside / inside.sum(1, keepdim=True)

    return cover(keys[0], covered[0], places[0]), cover(keys[1], covered[1], places[1])


def spread_to_finer(places: Tensor, coarse: Place, fine: Place) -> Tensor:
    """Distributes shares of a merged map (B, h w) over the finer map it was merged from, (B, h' w').

    Each share is divided equally among the square of positions that were merged. Squares are cropped at the border.
    """
    if coarse == fine:
        return places
    rows, columns = (few * -(-many // few) for few, many in zip(coarse, fine))  # of whole squares
    of_rows, of_columns = _compute_covers(coarse, (rows, columns), fine, places.device)
    with by_hand(places):
        return (of_rows.mT @ places.unflatten(1, coarse) @ of_columns).flatten(1)


def attention_map(
    model: Any, images: Tensor, layer: int = -1, head: int | None = None, query: Place | None = None
) -> Tensor:
    """Returns the attention of a query in one layer, on the map of that layer: (B, h, w) in fp32.

    Attention to prefix tokens (class token, registers) is omitted; the rest is not renormalised. Without ``query``, the
    queries are the tokens that the model pools: the class token, or else all patches, whose attention is averaged.

    Args:
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

    with eval_mode(model):
        model.forward_recording(images, on_attention)
    return maps


def compute_query_shares(model: Any, grid: AttentionGrid, query: Place | None, device: torch.device) -> Tensor:
    """Returns the weight of each token of a layer as a query of `attention_map`: (T,), summing to one."""
    lift = Lift(grid, device)
    shares = torch.zeros(lift.tokens, device=device)
    if query is not None:
        if not lift.all_ask:
            what = "the class token is the only query of this layer"
            raise ConfigError(what, "omit the query, or choose another layer")
        row, column = (check_index(name, at, length) for name, at, length in zip(("row", "column"), query, lift.map))
        shares[lift.prefix + row * lift.map[1] + column] = 1
    elif lift.prefix and lift.all_ask:
        return model.pooling_shares(lift.tokens).to(device)
    else:
        asking = lift.prefix or lift.tokens
        shares[:asking] = 1 / asking
    return shares


def _sum_received(record: AttentionRecord, lift: Lift, shares: Tensor) -> Tensor:
    """Returns the attention that spatial tokens receive from queries weighted by ``shares`` (T,): (B, H, h, w)."""
    batch, heads, *_ = record.shape
    shares = shares.expand(batch * heads, -1)  # (B H, T)
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
    """Returns the height and width of a map of ``cells`` relative to the image ``size``: above 1 if one of them was padded."""
    down, across = (count * side / length for count, side, length in zip(cells, cell, size))
    return down, across


def check_index(name: str, index: int, length: int) -> int:
    """Returns ``index`` as a non-negative index. Raises `ConfigError` if it is out of range."""
    if not -length <= index < length:
        raise ConfigError(
            f"there is no {name} {index}: the model has {length}", f"give 0 to {length - 1}, or -1 for the last"
        )
    return index % length
