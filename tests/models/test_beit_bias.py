"""BEiT's tables on another grid: against NumPy's and SciPy's interpolation at the offsets of the authors' progression."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch

from vitrail.models.beit import (
    BIAS_RESIZES,
    count_rows,
    interpolate_cubic,
    interpolate_linearly,
    resize_bias,
    solve_progression,
)

GRIDS = [((4, 4), (6, 9)), ((5, 3), (3, 7)), ((7, 5), (4, 3)), ((14, 14), (24, 32))]


def table_for(grid: tuple[int, int], heads: int = 2) -> torch.Tensor:
    return torch.randn(count_rows(grid), heads, generator=torch.Generator().manual_seed(0))


def offsets(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the stored offsets of a line lie, by the authors' search, and the offsets that are asked for."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if sum(q**power for power in range(old - 1)) > new - 1 else (q, high)
    reach = np.cumsum([0, *(q**power for power in range(old - 1))])
    return np.concatenate([-reach[:0:-1], reach]), np.arange(-(new - 1), new)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_the_progression_is_read_with_a_spline_or_straight_lines(old, new):
    table = table_for(old)
    (y, wanted_y), (x, wanted_x) = (offsets(*lengths) for lengths in zip(old, new))
    image = table[:-3].T.unflatten(1, (len(y), len(x))).double().numpy()
    inside_y, inside_x = wanted_y.clip(y[0], y[-1]), wanted_x.clip(x[0], x[-1])
    for head in range(2):
        expected = scipy.interpolate.RectBivariateSpline(y, x, image[head])(inside_y, inside_x)
        found = resize_bias(table[None], old, new, "geometric-cubic")[0, :-3, head]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=2e-5)
        lines = np.stack([np.interp(inside_x, x, row) for row in image[head]])
        expected = np.stack([np.interp(inside_y, y, column) for column in lines.T], 1)
        found = resize_bias(table[None], old, new, "geometric")[0, :-3, head]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=2e-5)


def test_the_rows_of_the_class_token_stay_and_a_constant_stays_constant():
    table, ones = table_for((4, 4)), torch.ones(1, 52, 2)
    for rule in BIAS_RESIZES:
        resized = resize_bias(table[None], (4, 4), (3, 9), rule)
        assert resized.shape == (1, count_rows((3, 9)), 2), rule
        assert torch.equal(resized[0, -3:], table[-3:]), rule
        torch.testing.assert_close(resize_bias(ones, (4, 4), (3, 9), rule), torch.ones(1, count_rows((3, 9)), 2))


@pytest.mark.parametrize("rule", ["geometric", "geometric-cubic"])
def test_an_axis_that_keeps_its_length_keeps_its_numbers(rule):
    table = table_for((4, 4))
    resized = resize_bias(table[None], (4, 4), (4, 8), rule)[0, :-3].unflatten(0, (7, 15))
    # offset 0 lies on the progression whatever its q
    torch.testing.assert_close(resized[:, 7], table[:-3].unflatten(0, (7, 7))[:, 3])


def test_the_powers_of_the_progression_sum_to_the_last_offset():
    for terms, last in ((13, 23), (13, 31), (3, 4)):
        q = solve_progression(terms, torch.tensor(float(last), dtype=torch.float64))
        assert abs(sum(q**power for power in range(terms)) - last) < 1e-3
    assert (
        solve_progression(13, torch.tensor(6.0, dtype=torch.float64)) < 1.010002
    )  # fewer offsets: nearly a patch apart


@pytest.mark.parametrize("count", [1, 2, 3, 5, 27])
def test_lines_are_numpys_and_splines_scipys(count):
    generator = np.random.default_rng(0)
    places = np.sort(generator.normal(size=count)) * 3
    values = generator.normal(size=count)
    wanted = np.linspace(places[0], places[-1], 31)
    given = torch.from_numpy(places), torch.from_numpy(wanted)
    np.testing.assert_allclose(
        interpolate_linearly(*given) @ torch.from_numpy(values), np.interp(wanted, places, values), atol=1e-12
    )
    if count % 2:  # as the number of offsets on a line is
        expected = scipy.interpolate.make_interp_spline(places, values, k=min(count - 1, 3))(wanted)
        np.testing.assert_allclose(interpolate_cubic(*given) @ torch.from_numpy(values), expected, atol=1e-7, rtol=1e-7)
