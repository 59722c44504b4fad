"""Choosing a learning rate: against parabolas whose vertex is known, at the edges of a grid, and where trainings diverged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitrail.training.lr_search import MAX_ADDED, RateChoice, choose_rate, grid_around

GRID = (1e-3, 2e-3, 4e-3)


def parabola(vertex, *, curvature=0.3, least=1.2):
    """A loss by rate with its optimum at ``vertex``."""
    return lambda rate: least + curvature * (math.log(rate) - math.log(vertex)) ** 2


@pytest.mark.parametrize("vertex", [1.5e-3, 2e-3, 2.7e-3])
@pytest.mark.parametrize("curvature", [1e-3, 0.3, 40.0])
def test_the_vertex_of_a_parabola_in_the_logarithm_is_found(vertex, curvature):
    losses = {rate: parabola(vertex, curvature=curvature)(rate) for rate in GRID}
    choice = choose_rate(losses, GRID)
    assert choice.best == pytest.approx(vertex, rel=5e-4)  # four digits
    assert (choice.is_at_edge, choice.untried) == (False, ())


def test_a_vertex_by_hand():
    # losses 3, 1, 2 at -1, 0, 1 doublings: 1 - x / 2 + 3 x^2 / 2, whose vertex is at x = 1 / 6
    choice = choose_rate({2e-3: 1.0, 1e-3: 3.0, 4e-3: 2.0}, GRID)
    assert choice.best == 2.245e-3  # 2e-3 x 2^(1 / 6)


def test_the_choice_is_at_most_half_a_step_from_the_best_rate_tried():
    draw = np.random.default_rng(0)
    for _ in range(200):
        values = dict(zip((5e-4, *GRID, 8e-3), draw.uniform(0, 1, 5)))
        choice, best = choose_rate(values, GRID), min(values, key=values.__getitem__)
        assert abs(math.log2(choice.best / best)) <= 0.5 + 1e-3
        assert choice.is_at_edge == (best in (5e-4, 8e-3))


@pytest.mark.parametrize(("vertex", "following"), [(1e-4, [5e-4, 2.5e-4]), (3e-2, [8e-3, 16e-3])])
def test_an_optimum_at_the_edge_extends_the_grid_on_its_side_twice_at_most(vertex, following):
    losses = {rate: parabola(vertex)(rate) for rate in GRID}
    tried = []
    while (choice := choose_rate(losses, GRID)).untried:
        assert choice.is_at_edge
        tried += choice.untried
        losses |= {rate: parabola(vertex)(rate) for rate in choice.untried}
    assert tried == pytest.approx(following)
    assert len(tried) == MAX_ADDED
    assert choice == RateChoice(tried[-1], True)


def test_a_grid_that_was_extended_far_enough_has_its_optimum_inside():
    losses = {rate: parabola(6e-3)(rate) for rate in GRID}
    first = choose_rate(losses, GRID)
    assert (first.best, first.untried) == (4e-3, (8e-3,))
    losses[8e-3] = parabola(6e-3)(8e-3)
    losses[16e-3] = parabola(6e-3)(16e-3)
    assert choose_rate(losses, GRID).best == pytest.approx(6e-3, rel=5e-4)


def test_a_training_that_diverged_is_worse_than_any_other():
    assert choose_rate({1e-3: 2.0, 2e-3: 1.0, 4e-3: math.inf}, GRID) == RateChoice(2e-3, False)
    assert choose_rate({1e-3: 2.0, 2e-3: math.nan, 4e-3: math.nan}, GRID) == RateChoice(1e-3, True, (5e-4,))
    assert choose_rate(dict.fromkeys(GRID, math.inf), GRID) == RateChoice(None, True, (5e-4,))


def test_equal_losses_choose_the_smallest_rate_and_a_flat_middle_itself():
    assert choose_rate(dict.fromkeys(GRID, 1.0), GRID).best == 1e-3
    assert choose_rate({1e-3: 2.0, 2e-3: 1.0, 4e-3: 1.0, 8e-3: 1.0}, GRID).best == 2.828e-3


def test_rates_lie_around_that_of_the_recipe():
    assert grid_around(2e-3) == pytest.approx(GRID)


def test_a_grid_of_another_factor_is_continued_with_it():
    assert choose_rate({1e-3: 1.0, 3e-3: 2.0}, (1e-3, 3e-3)).untried == (3.333e-4,)
    assert choose_rate({1e-3: 2.0, 3e-3: 1.0}, (1e-3, 3e-3)).untried == (9e-3,)


def test_the_grid_is_tried_first():
    assert choose_rate({}, GRID) == RateChoice(None, False, GRID)
    assert choose_rate({1e-3: 1.0, 2e-3: 2.0}, GRID).untried == (4e-3,)
