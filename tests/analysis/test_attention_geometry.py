"""Rows and columns of attention among the tokens of a layer, against whole matrices made by plain loops."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.analysis.dense import asking, dense, dense_distances, is_inside, map_of, pixels, place_of_query, step_down
from tests.models.tiny import TINY
from vitrail.analysis.attention import Lift, spread_to_finer
from vitrail.models import AttentionGrid, create_backbone

CPU = torch.device("cpu")
SIZES = {"swin": (50, 38), "pvt, odd map": (34, 27), "axial": (24, 40)}
# of every kind of layer one: its model and number
LAYERS = {
    "all tokens": ("vit", 0),
    "rows": ("axial", 0),
    "columns": ("axial", 1),
    "windows": ("swin", 2),
    "shifted windows": ("swin", 3),
    "windows beyond the map": ("swin, odd map", 3),
    "class attention": ("cait", 2),
    "reduced, keys left over": ("pvt, odd map", 0),
    "reduced": ("pvt, odd map", 1),
    "a late class token": ("pvt, odd map", 3),
    "more keys than places": ("pvt v2, linear", 1),
}


@cache
def grids_of(name: str) -> list[AttentionGrid]:
    return create_backbone(TINY[name]).attention_grids(SIZES.get(name, (48, 32)))


@pytest.fixture(params=LAYERS)
def grid(request) -> AttentionGrid:
    name, layer = LAYERS[request.param]
    return grids_of(name)[layer]


def random_rows(grid: AttentionGrid, batch: int = 2, heads: int = 3) -> Tensor:
    """(B, H, Q, K) above zero."""
    keys = grid.prefix + np.prod(grid.keys) if grid.columns is None else grid.columns.shape[1]
    places = np.prod(grid.queries) if grid.rows is None else len(grid.rows)
    shape = (batch, heads, int(grid.prefix + places), int(keys))
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.1


def test_shares_are_carried_as_by_the_whole_matrix(grid):
    lift, weights = Lift(grid, CPU), random_rows(grid)[:, 0]
    truth = np.stack([dense(grid, each[None].double().numpy())[0] for each in weights])  # (B, T, T)
    shares = torch.rand(2, lift.tokens, generator=torch.Generator().manual_seed(2)) + 0.1
    carried = np.stack([each @ matrix for each, matrix in zip(shares.double().numpy(), truth)])
    for step in (1, 4, weights.shape[1]):
        found = torch.zeros(2, lift.tokens)
        for start in range(0, weights.shape[1], step):
            rows = slice(start, min(start + step, weights.shape[1]))
            found += lift.carry(shares, lift.mask_outside(weights[:, None, rows], rows)[:, 0], rows)
        np.testing.assert_allclose(found, carried, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(lift.asks, asking(grid))


def test_what_lies_outside_of_the_image_counts_as_nothing(grid):
    weights = random_rows(grid)
    inside = Lift(grid, CPU).mask_outside(weights, slice(None))
    np.testing.assert_array_equal(inside, weights.numpy() * is_inside(grid, tuple(weights.shape[2:])))


def test_distances_are_those_between_the_middles_of_places(grid):
    grid = grid._replace(cell=(5, 3))
    lift, (queries, keys) = Lift(grid, CPU), random_rows(grid).shape[2:]
    truth = dense_distances(grid, queries, keys)
    found = torch.cat([lift.distances(slice(start, start + 5)) for start in range(0, queries, 5)])
    shown = np.isfinite(truth[:, grid.prefix :])
    assert shown.any() == lift.all_ask
    np.testing.assert_allclose(found.numpy()[shown], truth[:, grid.prefix :][shown], atol=1e-5, rtol=1e-5)


def test_rows_say_which_token_asks(grid):
    lift = Lift(grid, CPU)
    places = [place_of_query(grid, row) for row in range(len(lift.rows) - grid.prefix)]
    tokens = [lift.tokens if place < 0 else grid.prefix + place for place in places]
    assert lift.rows.tolist() == [*range(grid.prefix), *tokens]
    assert lift.map == map_of(grid)


def test_distances_on_a_large_map_are_exact():
    grid = AttentionGrid(0, (255, 201), (7, 7), (4, 4))
    row = range(127 * 201, 128 * 201)  # where the middle of the image is, and of a key
    found = Lift(grid, CPU).distances(slice(row.start, row.stop))
    rows, columns = (
        [np.arange(at * length // 7, -(-(at + 1) * length // 7)).mean() * 4 + 2 for at in range(7)]
        for length in (255, 201)
    )
    middles = np.array([(y, x) for y in rows for x in columns])
    truth = [np.hypot(*(middles - pixels(grid, place)).T) for place in row]
    np.testing.assert_allclose(found, truth, atol=1e-3)
    assert found.min() == 0


def test_a_key_is_shared_by_its_places_and_one_that_was_left_over_gets_nothing():
    lift = Lift(AttentionGrid(1, (5, 3), (2, 1), (4, 4), covered=(4, 2)), CPU)
    keys = torch.tensor([0.5, 0.3, 0.2])  # the prefix, the upper key, the lower one
    upper, lower, left_over = [0.075, 0.075, 0.0], [0.05, 0.05, 0.0], [0.0, 0.0, 0.0]
    torch.testing.assert_close(lift.spread(keys), torch.tensor([0.5, *upper, *upper, *lower, *lower, *left_over]))


def test_more_keys_than_places_are_added_where_they_lie():
    lift = Lift(AttentionGrid(0, (1, 2), (3, 4), (4, 4)), CPU)
    torch.testing.assert_close(lift.spread(torch.ones(12)), torch.tensor([6.0, 6.0]))


@pytest.mark.parametrize(("coarse", "fine"), [((5, 4), (9, 7)), ((3, 2), (6, 4)), ((1, 1), (2, 1)), ((4, 3), (4, 3))])
def test_a_merged_place_stands_for_the_places_of_its_square_in_equal_parts(coarse, fine):
    above, below = (AttentionGrid(0, grid, grid, (4, 4)) for grid in (coarse, fine))
    shares = torch.rand(2, coarse[0] * coarse[1], generator=torch.Generator().manual_seed(1))
    found = spread_to_finer(shares, coarse, fine)
    np.testing.assert_allclose(found, shares.double().numpy() @ step_down(above, below), atol=1e-6)
    torch.testing.assert_close(found.sum(1), shares.sum(1))


@pytest.mark.parametrize("name", ["vit", "swin", "pvt v2"])
def test_a_precision_that_is_meant_for_the_model_rounds_nothing_here(name):
    grids = grids_of(name)

    def carried() -> list[Tensor]:
        found = []
        for grid in grids:
            lift, weights = Lift(grid, CPU), random_rows(grid, heads=1)[:, 0]
            shares = torch.rand(2, lift.tokens, generator=torch.Generator().manual_seed(2))
            rows = slice(0, weights.shape[1])
            places = shares[:, lift.prefix :]
            finer = (2 * lift.map[0], 2 * lift.map[1])
            found += [lift.carry(shares, weights, rows), *lift.centres, spread_to_finer(places, lift.map, finer)]
        return found

    truth = carried()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(carried(), truth, atol=0, rtol=0)
