"""Curves and areas are those known by hand; equal heat has no order; all maps are measured alike."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from tests.analysis.weighing import Counting, pictures, shaken, weighing, weights
from tests.models.tiny import QUICK, TINY
from vitrail.analysis.faithfulness import (
    Faithfulness,
    compare,
    compute_area,
    deletion,
    draw_random_heat,
    insertion,
    rank,
    resample,
)
from vitrail.errors import ConfigError

THIS = torch.tensor([1, 1])  # the class whose probability is the weighted sum


def cells_of(weight: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """What each cell of the image weighs, (r, c), its edges rounded down."""
    rows, columns = ([i * length // cells for i in range(cells + 1)] for length, cells in zip(weight.shape[1:], grid))
    sums = [
        weight[:, top:bottom, left:right].sum() for top, bottom in pairwise(rows) for left, right in pairwise(columns)
    ]
    return torch.stack(sums).view(grid)


def blurred(images: torch.Tensor) -> torch.Tensor:
    """By a tenth of the longer side: a convolution that reaches over the whole image, divided by what it makes of ones."""
    height, width = images.shape[2:]
    sigma = max(height, width) / 10
    rows, columns = torch.arange(1 - height, height)[:, None], torch.arange(1 - width, width)
    kernel = (-(rows**2 + columns**2) / (2 * sigma**2)).exp()[None, None]

    def convolved(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.flatten(0, 1)[:, None], kernel, padding=(height - 1, width - 1)).view_as(x)

    return convolved(images) / convolved(torch.ones_like(images))


# the order of cells


def test_the_hottest_cell_is_the_first():
    heat = torch.tensor([[[3.0, 1], [2, 5]], [[-1, -3], [-2, 0]]])
    assert rank(heat, 0).tolist() == [[3, 0, 2, 1], [3, 0, 2, 1]]


def test_equal_cells_come_in_an_order_of_chance_that_the_seed_repeats():
    zeros = torch.zeros(2, 6, 6)
    order = rank(zeros, 5)
    assert order.sort(1).values.tolist() == [list(range(36))] * 2
    assert torch.equal(order, rank(zeros, 5)) and not torch.equal(order, rank(zeros, 6))
    assert order[0].tolist() != order[1].tolist() and list(range(36)) not in order.tolist()


def test_chance_orders_only_the_cells_that_are_equal():
    heat = torch.zeros(1, 4, 4)
    heat[0, 2, 1], heat[0, 0, 0] = 1, -1
    order = rank(heat, 0)[0].tolist()
    assert order[0] == 9 and order[-1] == 0


def test_a_map_of_zeros_covers_no_part_before_another_in_the_mean_over_many_images():
    places = rank(torch.zeros(2000, 3, 3), 1).argsort(1).float().mean(0)
    torch.testing.assert_close(places, torch.full((9,), 4.0), atol=0.25, rtol=0)  # 4 sigma of 2.6 / sqrt(2000)


# curves


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize(("size", "grid"), [((16, 24), (2, 3)), ((13, 22), (3, 5)), ((7, 5), (7, 5))])
def test_deletion_takes_away_what_the_hottest_cells_weigh(channels, size, grid):
    weight = weights(channels, *size)
    worth = cells_of(weight, grid)
    curve = deletion(weighing(weight), torch.ones(2, *weight.shape), worth.expand(2, *grid), THIS, steps=worth.numel())
    taken = worth.flatten().sort(descending=True).values.cumsum(0)
    assert curve.shape == (2, worth.numel() + 1) and curve.dtype == torch.float32
    torch.testing.assert_close(curve, (0.8 - F.pad(taken, (1, 0))).expand(2, -1), atol=1e-6, rtol=1e-5)


def test_where_all_cells_matter_alike_the_curve_is_a_straight_line():
    weight = torch.full((3, 16, 24), 0.8 / (3 * 16 * 24))
    curve = deletion(weighing(weight), torch.ones(2, 3, 16, 24), torch.zeros(2, 4, 6), THIS, steps=8)
    torch.testing.assert_close(curve, torch.linspace(0.8, 0, 9).expand(2, 9), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(compute_area(curve), torch.full((2,), 0.4))


def test_steps_that_do_not_divide_the_cells_are_rounded_down():
    weight = torch.full((3, 16, 24), 0.7 / (3 * 16 * 24))
    curve = deletion(weighing(weight), torch.ones(1, 3, 16, 24), torch.zeros(1, 1, 8), THIS[:1], steps=3)
    torch.testing.assert_close(curve, 0.7 * (1 - torch.tensor([[0, 2, 5, 8]]) / 8), atol=1e-6, rtol=1e-5)


def test_insertion_reveals_the_hottest_cells_of_a_blurred_image():
    weight, images = weights(3, 13, 22), pictures(2, 3, 13, 22)
    heat = pictures(2, 1, 3, 5)[:, 0]
    curve = insertion(weighing(weight), images, heat, THIS, steps=15)
    gain = ((images - blurred(images)) * weight)[:, None]  # of revealing each pixel
    gains = torch.stack([cells_of(each, (3, 5)).flatten() for each in gain[:, 0]])
    start = (blurred(images) * weight).sum((1, 2, 3))
    expected = start[:, None] + F.pad(gains.gather(1, heat.flatten(1).argsort(1, descending=True)).cumsum(1), (1, 0))
    torch.testing.assert_close(curve, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("multi_label", [False, True])
def test_curves_run_between_the_plain_image_and_the_covered_or_blurred_one(multi_label):
    model, images = weighing(weights(), multi_label=multi_label), pictures(2, 3, 16, 24)
    heat = draw_random_heat(2, (4, 3), 1)
    removed, revealed = (curve(model, images, heat, THIS, steps=12) for curve in (deletion, insertion))
    grey = torch.zeros_like(images)
    plain, filled, soft = (model.probabilities(model(each))[:, 1] for each in (images, grey, blurred(images)))
    torch.testing.assert_close(removed[:, [0, -1]], torch.stack([plain, filled], 1))
    torch.testing.assert_close(revealed[:, [0, -1]], torch.stack([soft, plain], 1))
    share = (images * weights()).sum((1, 2, 3))
    torch.testing.assert_close(plain, share / (1 + share) if multi_label else share)


def test_the_right_order_is_better_than_the_reverse_by_both_measures():
    weight, images = weights(), torch.zeros(2, 3, 16, 24)
    images[:, :, 8:, 16:] = 1  # what the answer rests on, which a blur hides
    model, worth = weighing(weight), cells_of(weight * images[0], (4, 6)).expand(2, 4, 6)
    right, wrong = (
        [curve(model, images, heat, THIS, steps=24) for curve in (deletion, insertion)] for heat in (worth, -worth)
    )
    assert (compute_area(right[0]) < compute_area(wrong[0])).all() and (
        compute_area(right[1]) > compute_area(wrong[1])
    ).all()


@pytest.mark.parametrize("curve", [deletion, insertion])
@pytest.mark.parametrize("batch", [1, 5, 1000])
def test_the_model_sees_at_most_a_batch_and_the_curve_is_the_same(curve, batch):
    model, images, heat = weighing(weights()), pictures(3, 3, 16, 24), draw_random_heat(3, (4, 6), 2)
    targets = model(images).argmax(1)
    expected, counting = curve(model, images, heat, targets, steps=24), Counting(model)
    torch.testing.assert_close(curve(model, images, heat, targets, steps=24, batch=batch), expected)
    assert expected.shape == (3, 25) and max(counting.shown) <= batch
    assert expected.numel() == sum(counting.shown)


def test_an_autocast_is_for_the_model_and_not_for_the_blur():
    model, images, heat = weighing(weights()), pictures(1, 3, 16, 24), draw_random_heat(1, (2, 3), 0)
    expected = insertion(model, images, heat, THIS[:1], steps=6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(insertion(model, images, heat, THIS[:1], steps=6), expected)


@pytest.mark.parametrize("name", QUICK)
def test_the_curves_of_every_kind_of_architecture_are_its_probabilities(name):
    model = shaken(TINY[name])
    images = pictures(2, 3, *model.config.image_size)
    model.eval()
    with torch.no_grad():
        every = model.probabilities(model(images))
        targets, half = every.argmax(1), images.shape[3] // 2
        left = {"left": torch.tensor([[[1.0, 0]]]).expand(2, 1, 2)}
        found = compare(model, images, left, targets, steps=2, draws=1)
        images[..., :half] = 0
        covered = model.probabilities(model(images))[torch.arange(2), targets]
    expected = torch.stack([every.amax(1), covered], 1)
    torch.testing.assert_close(found["left"].deletion[:, :2], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found["left"].insertion[:, -1], every.amax(1), atol=1e-5, rtol=1e-4)


# areas, grids, random maps


def test_areas_are_those_of_trapezia():
    torch.testing.assert_close(
        compute_area(torch.tensor([[1.0, 0.5, 0], [1, 1, 1], [0, 0, 1]])), torch.tensor([0.5, 1, 0.25])
    )


def test_a_coarser_cell_is_the_mean_of_the_area_under_it():
    heat = torch.arange(24.0).view(1, 4, 6)
    torch.testing.assert_close(resample(heat, (2, 3)), F.avg_pool2d(heat, 2))
    third = torch.tensor([[[3.0, 6, 9]]])
    torch.testing.assert_close(resample(third, (1, 2)), torch.tensor([[[(3 + 6 / 2) / 1.5, (9 + 6 / 2) / 1.5]]]))


def test_a_finer_cell_is_worth_what_it_lies_in():
    heat = torch.tensor([[[3.0, 7]]])
    assert torch.equal(resample(heat, (2, 4)), torch.tensor([[[3.0, 3, 7, 7], [3, 3, 7, 7]]]))
    torch.testing.assert_close(resample(heat, (1, 3)), torch.tensor([[[3.0, 5, 7]]]))


@pytest.mark.parametrize("grid", [(7, 5), (1, 1), (3, 11), (14, 14)])
def test_a_change_of_grid_keeps_the_mean_and_equal_cells_equal(grid):
    heat = pictures(3, 1, 7, 5)[:, 0]
    torch.testing.assert_close(resample(heat, grid).mean((1, 2)), heat.mean((1, 2)))
    constant = torch.full((1, 7, 5), 0.1)
    assert torch.equal(resample(constant, grid), torch.full((1, *grid), 0.1))
    assert torch.equal(resample(heat, (7, 5)), heat)


def test_random_maps_are_those_of_their_seed_draw_and_image():
    maps = draw_random_heat(3, (4, 5), 7)
    assert maps.shape == (3, 4, 5) and maps.min() >= 0 and maps.max() < 1
    assert torch.equal(draw_random_heat(2, (4, 5), 7), maps[:2])
    others = [maps[1:], draw_random_heat(2, (4, 5), 8), draw_random_heat(2, (4, 5), 7, draw=1)]
    assert not any(torch.equal(maps[:2], other) for other in others)


# several maps


def test_all_maps_are_compared_on_the_coarsest_grid_with_the_same_targets():
    model, images = weighing(weights(total=0.3)), pictures(2, 3, 16, 24)
    heats = {"fine": draw_random_heat(2, (8, 4), 0), "coarse": draw_random_heat(2, (4, 6), 1)}
    targets = model(images).argmax(1)
    found = compare(model, images, heats, targets, steps=4, draws=3, seed=9)
    assert list(found) == ["fine", "coarse", "random"]
    rest = {"targets": targets, "steps": 4, "seed": 9}
    for name, heat in heats.items():
        same = resample(heat, (4, 4))
        assert torch.equal(found[name].deletion, deletion(model, images, same, **rest))
        assert torch.equal(found[name].insertion, insertion(model, images, same, **rest))
    drawn = [deletion(model, images, draw_random_heat(2, (4, 4), 9, draw=draw), **rest) for draw in range(3)]
    torch.testing.assert_close(found["random"].deletion, sum(drawn) / 3)


def test_a_map_of_what_matters_is_better_than_chance():
    weight, images = torch.zeros(3, 16, 24), pictures(4, 3, 16, 24)
    weight[:, 4:8, 8:12] = 0.9 / (3 * 4 * 4)
    worth = (weight * images).sum(1)  # (B, H, W), a map of pixels
    found = compare(weighing(weight), images, {"worth": resample(worth, (4, 6))}, THIS.repeat(2), steps=24, draws=5)
    assert isinstance(found["worth"], Faithfulness)
    assert (found["worth"].deletion_area < found["random"].deletion_area).all()
    assert torch.equal(found["worth"].insertion_area, compute_area(found["worth"].insertion))


def test_no_images_have_curves_of_no_rows():
    found = compare(
        weighing(weights()), torch.empty(0, 3, 16, 24), {"map": torch.empty(0, 2, 3)}, THIS[:0], steps=6, draws=1
    )
    assert found["map"].deletion.shape == found["random"].insertion.shape == (0, 7)


# what is refused


@pytest.mark.parametrize(
    ("heat", "more", "words"),
    [
        (torch.full((2, 2, 3), torch.nan), {}, "heat is NaN in 12 of 12 cells"),
        (torch.zeros(2, 2, 3), {"steps": 0}, "steps is 0"),
        (torch.zeros(2, 2, 3), {"draws": 0}, "draws 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(heat, more, words):
    with pytest.raises(ConfigError, match=words):
        compare(weighing(weights()), pictures(2, 3, 16, 24), {"map": heat}, THIS, **{"steps": 3, "draws": 1, **more})
