"""Task-aligned assignment against loops, and what must hold of it."""

from __future__ import annotations

import math

import pytest
import torch

from tests.tasks.test_boxes import draw_boxes, giou_of
from vitrail.tasks.detection.loss import CELLS, assign, find_ignored

CLASSES = 3


def draw_case(images=3, objects=8, cells=6, seed=0, empty=()):
    """Cells of two strides on a square of 8 x ``cells`` pixels, boxes around their centres, and objects of all sizes."""
    generator = torch.Generator().manual_seed(seed)
    sides = [(8, cells), (16, cells // 2)]
    centres = torch.cat(
        [
            torch.cartesian_prod(*[torch.arange(count) * stride + stride / 2] * 2).flip(1).double()
            for stride, count in sides
        ]
    )
    reach = 4 + 20 * torch.rand(images, len(centres), 4, generator=generator).double()
    found = torch.cat([centres - reach[..., :2], centres + reach[..., 2:]], -1)
    scores = torch.rand(images, len(centres), CLASSES, generator=generator).double()
    boxes = draw_boxes(images, objects, seed=seed + 1, side=5.0 * cells)
    boxes[:, ::3, 2:] = boxes[:, ::3, :2] + 1.5  # smaller than any stride
    labels = torch.randint(CLASSES, (images, objects), generator=generator)
    valid = torch.rand(images, objects, generator=generator) < 0.8
    for image in empty:
        valid[image] = False
    return found, scores, centres.expand(images, -1, -1), boxes, labels, valid


def assign_slowly(found, scores, centres, boxes, labels, valid):
    """One image, by loops and plain numbers: the object of each cell, None for none, and the score to learn."""
    cells, objects = range(len(found)), [number for number in range(len(boxes)) if valid[number]]
    overlaps = {(o, c): giou_of(found[c], boxes[o])[0] for o in objects for c in cells}
    aligned = {(o, c): math.sqrt(scores[c][labels[o]]) * overlaps[o, c] ** 6 for o, c in overlaps}
    wanted = {cell: [] for cell in cells}
    for number in objects:
        left, top, right, bottom = boxes[number]
        open_to = [c for c in cells if left < centres[c][0] < right and top < centres[c][1] < bottom]
        if not open_to:
            middle = ((left + right) / 2, (top + bottom) / 2)
            open_to = [min(cells, key=lambda c: math.dist(centres[c], middle))]
        for cell in sorted(open_to, key=lambda c: -aligned[number, c])[:CELLS]:
            wanted[cell].append(number)
    owner = {
        cell: max(numbers, key=lambda o: overlaps[o, cell]) if numbers else None for cell, numbers in wanted.items()
    }
    wanted_scores = []
    for cell in cells:
        own = [c for c in cells if owner[c] == owner[cell]]
        if owner[cell] is None:
            wanted_scores.append(0.0)
            continue
        best = max(aligned[owner[cell], c] for c in own)
        most = max(overlaps[owner[cell], c] for c in own)
        wanted_scores.append(aligned[owner[cell], cell] / best * most if best else 0.0)
    return [owner[cell] for cell in cells], wanted_scores


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_it_is_the_assignment_by_loops(seed):
    case = draw_case(seed=seed, objects=6 + 3 * seed, empty=(1,))
    assigned = assign(*case)
    shared = 0
    for image in range(len(case[0])):
        objects, scores = assign_slowly(*(part[image].tolist() for part in case))
        assert [None if number < 0 else number for number in assigned.objects[image].tolist()] == objects
        assert assigned.scores[image].tolist() == pytest.approx(scores, abs=1e-12)
        shared += sum(number is not None for number in objects)
    assert (assigned.objects[1] == -1).all() and not assigned.scores[1].any()
    assert shared > 8


def test_the_order_of_objects_and_of_cells_changes_nothing():
    found, scores, centres, boxes, labels, valid = draw_case(seed=9, objects=12)
    expected = assign(found, scores, centres, boxes, labels, valid)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(12, generator=generator)
    mixed = assign(found, scores, centres, boxes[:, order], labels[:, order], valid[:, order])
    assert torch.equal(torch.where(mixed.objects < 0, -1, order[mixed.objects]), expected.objects)
    torch.testing.assert_close(mixed.scores, expected.scores)
    order = torch.randperm(found.shape[1], generator=generator)
    mixed = assign(found[:, order], scores[:, order], centres[:, order], boxes, labels, valid)
    assert torch.equal(mixed.objects, expected.objects[:, order])
    torch.testing.assert_close(mixed.scores, expected.scores[:, order])


def test_an_object_that_covers_no_centre_has_the_nearest_cell_and_one_that_covers_many_no_more_than_ten():
    centres = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).flip(1)[None] * 8 + 4
    found = torch.cat([centres - 12, centres + 12], -1)
    scores = torch.full((1, 36, 1), 0.01)
    boxes = torch.tensor([[[21.0, 14, 23, 15], [0, 0, 48, 48]]])
    small, large = (
        assign(found, scores, centres, boxes, torch.zeros(1, 2), torch.tensor([valid]))
        for valid in ([True, False], [False, True])
    )
    assert (small.objects[0] == 0).nonzero()[:, 0].tolist() == [8]
    assert centres[0, 8].tolist() == [20, 12]
    assert small.scores[0, 8] == pytest.approx(2 / 576)  # all of its overlap, however little
    assert (large.objects[0] == 1).sum() == CELLS


def test_it_takes_no_gradient_and_hundreds_of_objects():
    found, scores, centres, boxes, labels, valid = draw_case(images=2, objects=300, cells=8)
    assigned = assign(found.requires_grad_(), scores.requires_grad_(), centres, boxes, labels, valid)
    assert not assigned.scores.requires_grad
    assert ((assigned.scores >= 0) & (assigned.scores <= 1)).all()
    assert valid.gather(1, assigned.objects.clamp(min=0))[assigned.objects >= 0].all()


def test_cells_whose_centre_lies_in_a_crowd_are_ignored():
    centres = torch.tensor([[[4.0, 4], [12, 4], [4, 12], [12, 12]]])
    boxes = torch.tensor([[[0.0, 0, 16, 8], [0, 8, 8, 16]]])
    assert find_ignored(centres, boxes, torch.tensor([[True, False]])).tolist() == [[True, True, False, False]]
    assert not find_ignored(centres, boxes, torch.tensor([[False, False]])).any()
