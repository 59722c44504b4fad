"""Attention of every layer as whole matrices of all tokens by all tokens in fp64, made by plain loops from what
`attention_grids` says in words: the slow and obvious way of what vitrail.analysis.attention does.

H heads, P prefix tokens, T tokens, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitrail.models import AttentionGrid

Steps = Callable[[np.ndarray, np.ndarray], np.ndarray]


def map_of(grid: AttentionGrid) -> tuple[int, int]:
    return grid.keys if grid.queries == (0, 0) else grid.queries


def places_of_key(grid: AttentionGrid, query: int, key: int) -> list[int]:
    """The places of the map that a key, counted without the prefix, stands for: none outside of the image."""
    if grid.columns is not None:
        place = int(grid.columns[query, key])
        return [place] if place >= 0 else []
    of_axes = []
    for at, keys, covered in zip(divmod(key, grid.keys[1]), grid.keys, grid.covered or map_of(grid)):
        of_axes.append(range(at * covered // keys, math.ceil((at + 1) * covered / keys)))
    return [row * map_of(grid)[1] + column for row in of_axes[0] for column in of_axes[1]]


def place_of_query(grid: AttentionGrid, query: int) -> int:
    """The place of a query, counted without the prefix; -1 outside of the image."""
    return query if grid.rows is None else int(grid.rows[query])


def is_inside(grid: AttentionGrid, shape: tuple[int, int]) -> np.ndarray:
    """Which keys of each query are prefix tokens or places of the image: (Q, K)."""
    inside = np.ones(shape, bool)
    for row in range(shape[0]):
        for column in range(grid.prefix, shape[1]):
            inside[row, column] = bool(places_of_key(grid, row - grid.prefix, column - grid.prefix))
    return inside


def dense(grid: AttentionGrid, matrix: np.ndarray) -> np.ndarray:
    """(H, Q, K) to (H, T, T): rows of tokens that do not ask are zero."""
    prefix, tokens = grid.prefix, grid.prefix + math.prod(map_of(grid))
    found = np.zeros((len(matrix), tokens, tokens))
    for query in range(matrix.shape[1]):
        token = query if query < prefix else prefix + place_of_query(grid, query - prefix)
        if query >= prefix and token < prefix:
            continue
        for key in range(matrix.shape[2]):
            to = (
                [key]
                if key < prefix
                else [prefix + place for place in places_of_key(grid, query - prefix, key - prefix)]
            )
            for each in to:
                found[:, token, each] += matrix[:, query, key] / len(to)
    return found


def asking(grid: AttentionGrid) -> np.ndarray:
    """One for tokens that ask, zero for those that rest: (T,)."""
    asks = np.ones(grid.prefix + math.prod(map_of(grid)))
    asks[grid.prefix :] = grid.queries != (0, 0)
    return asks


def step_down(above: AttentionGrid, below: AttentionGrid) -> np.ndarray:
    """What tokens of a layer were before it, where 2 x 2 places were merged or tokens joined: (T, T')."""
    (rows, columns), (fine_rows, fine_columns) = map_of(above), map_of(below)
    step = np.zeros((above.prefix + rows * columns, below.prefix + fine_rows * fine_columns))
    step[: below.prefix, : below.prefix] = np.eye(below.prefix)
    times = 1 if map_of(above) == map_of(below) else 2
    for row in range(rows):
        for column in range(columns):
            square = [
                below.prefix + y * fine_columns + x
                for y in range(times * row, min(times * (row + 1), fine_rows))
                for x in range(times * column, min(times * (column + 1), fine_columns))
            ]
            step[above.prefix + row * columns + column, square] = 1 / len(square)
    return step


def through_all(grids: list[AttentionGrid], steps: list[np.ndarray], asked: np.ndarray) -> np.ndarray:
    """Shares ``asked`` (T,) of the last layer's tokens through the matrices of all layers: (h, w) of the first map."""
    product = steps[0]
    for number in range(1, len(grids)):
        product = steps[number] @ step_down(grids[number], grids[number - 1]) @ product
    return (asked @ product)[grids[0].prefix :].reshape(map_of(grids[0]))


def dense_rollout(grids: list[AttentionGrid], matrices: list[Tensor], asked: np.ndarray) -> np.ndarray:
    """Half attention, its heads averaged and its rows made to sum to one, and half identity: (B, h, w)."""
    found = []
    for image in range(len(matrices[0])):
        steps = []
        for grid, matrix in zip(grids, matrices, strict=True):
            mean = matrix[image].double().numpy().mean(0)
            mean = mean * is_inside(grid, mean.shape)
            mean = mean / np.maximum(mean.sum(1, keepdims=True), 1e-30)
            asks = asking(grid)
            steps.append(0.5 * dense(grid, mean[None])[0] + np.diag(1 - 0.5 * asks))
        found.append(through_all(grids, steps, asked))
    return np.stack(found)


def dense_relevance(
    grids: list[AttentionGrid], matrices: list[Tensor], gradients: list[Tensor], asked: np.ndarray
) -> np.ndarray:
    """Attention times its gradient, nothing below zero, heads averaged, and the identity: (B, h, w).

    The last queries of a layer may be left out: nobody needed their answers, so their gradients are zero.
    """
    found = []
    for image in range(len(matrices[0])):
        steps = []
        for grid, matrix, gradient in zip(grids, matrices, gradients, strict=True):
            weighed = (matrix[image] * gradient[image]).double().clamp(min=0).numpy().mean(0)
            steps.append(np.eye(len(asking(grid))) + dense(grid, weighed[None])[0])
        found.append(through_all(grids, steps, asked))
    return np.stack(found)


def pixels(grid: AttentionGrid, place: int) -> np.ndarray:
    """The centre of a place, (y, x) in pixels."""
    return (np.array(divmod(place, map_of(grid)[1])) + 0.5) * np.array(grid.cell)


def dense_distances(grid: AttentionGrid, queries: int, keys: int) -> np.ndarray:
    """Pixels between queries and keys that are places, a key in the middle of what it stands for: (Q, K), NaN elsewhere."""
    found = np.full((queries, keys), np.nan)
    for query in range(grid.prefix, queries):
        place = place_of_query(grid, query - grid.prefix)
        for key in range(grid.prefix, keys):
            stands_for = places_of_key(grid, query - grid.prefix, key - grid.prefix)
            if place >= 0 and stands_for:
                middle = np.mean([pixels(grid, each) for each in stands_for], 0)
                found[query, key] = math.dist(pixels(grid, place), middle)
    return found


def random_images(model, size: tuple[int, int], batch: int = 2) -> Tensor:
    shape = (batch, model.config.in_channels, *size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
