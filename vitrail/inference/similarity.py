"""Exact search for similar features, in blocks, so that memory is bounded.

N features and Q queries of D values, each of length 1. A similarity is their cosine, rounded to six digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

BLOCK, ROWS = 32_768, 256  # features, and queries, that are compared at once
SPARE = 16  # neighbours beyond those that are wanted, as sums in fp32 may exchange the last ones
ROUNDING = 1e-5  # more than fp32 is off by


def find_nearest(
    features: Tensor, queries: Tensor, top: int, *, own: Sequence[int] | None = None, block: int = BLOCK
) -> Iterator[tuple[list[int], list[float]]]:
    """Yields for each query (Q, D) the rows of the ``top`` most similar ``features`` (N, D), and their similarities.

    The most similar stands first, and equal ones in the order of the rows.

    Args:
        own: for each query a row that is left out, or -1.
    """
    for start in range(0, len(queries), ROWS):
        part = queries[start : start + ROWS]
        best, rows = part.new_empty(len(part), 0), torch.empty(len(part), 0, dtype=torch.int64)
        for begin in range(0, len(features), block):
            cosines = part @ features[begin : begin + block].T  # (q, b)
            found, places = cosines.topk(min(top + SPARE, cosines.shape[1]))
            best, rows = torch.cat([best, found], 1), torch.cat([rows, places + begin], 1)
            best, places = best.topk(min(top + SPARE, best.shape[1]))
            rows = rows.gather(1, places)  # (q, top + SPARE)
        for number, query in enumerate(part, start):
            skipped = -1 if own is None else own[number]
            near, exact = _choose(features, query, top, rows[number - start].sort().values, skipped)
            # others may be as near, of many equal ones
            if rows.shape[1] < len(features) and best[number - start, -1] + ROUNDING >= exact[-1]:
                near, exact = near[:0], exact[:0]
                for begin in range(0, len(features), block):
                    candidates = torch.cat([near, torch.arange(begin, min(begin + block, len(features)))])
                    near, exact = _choose(features, query, top, candidates, skipped)
            yield near.tolist(), exact.tolist()


def find_pairs(
    least: float, first: Tensor, second: Tensor | None = None, *, block: int = BLOCK
) -> Iterator[tuple[int, int, float]]:
    """Yields the rows of ``first`` (Q, D) and ``second`` (N, D) whose similarity is at least ``least``, with it, block by block.

    Without ``second`` these are pairs of ``first``, each once, the smaller row in front.
    """
    other = first if second is None else second
    for start in range(0, len(first), ROWS):
        part = first[start : start + ROWS]
        for begin in range(start if second is None else 0, len(other), block):
            rows, columns = (part @ other[begin : begin + block].T >= least - ROUNDING).nonzero().unbind(1)
            for row, near in enumerate(columns.split(rows.bincount(minlength=len(part)).tolist()), start):
                near = near + begin
                near = near if second is not None else near[near > row]
                exact = _measure(other[near], first[row])
                yield from ((row, *pair) for pair in zip(near.tolist(), exact.tolist()) if pair[1] >= least)


def _choose(features: Tensor, query: Tensor, top: int, rows: Tensor, skipped: int) -> tuple[Tensor, Tensor]:
    """Returns the ``top`` nearest of these rows (n,), which rise among equal ones, and their similarities."""
    rows = rows[rows != skipped]
    exact = _measure(features[rows], query)
    order = exact.argsort(descending=True, stable=True)[:top]
    return rows[order], exact[order]


def _measure(features: Tensor, query: Tensor) -> Tensor:
    """Returns the similarities (n,) float64 of features (n, D) to a query (D,): the same in any block."""
    return (features.double() @ query.double()).round(decimals=6)
