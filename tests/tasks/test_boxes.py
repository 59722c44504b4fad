"""Overlaps against a twin in plain numbers, and the removal of duplicates."""

from __future__ import annotations

import pytest
import torch

from vitrail.tasks.detection.boxes import box_gious, box_ious, suppress_duplicates


def draw_boxes(*shape, seed=0, side=20.0):
    generator = torch.Generator().manual_seed(seed)
    corners, sizes = (torch.rand(*shape, 2, generator=generator).double() for _ in range(2))
    return torch.cat([corners * side, corners * side + sizes * side / 2 + 0.1], -1)


def suppress_greedily(boxes, labels, threshold):
    """The usual non-maximum suppression of one image, (P, 4) and (P,) to (P,) bool: a box that is removed removes no other."""
    overlaps, kept = box_ious(boxes[:, None], boxes[None]), torch.ones(len(boxes), dtype=torch.bool)
    for place in range(len(boxes)):
        better = kept[:place] & (labels[:place] == labels[place])
        kept[place] = not (overlaps[:place, place][better] > threshold).any()
    return kept


def giou_of(one, other):
    """From the definition, on two lists of four numbers: intersection over union and its generalisation."""
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[2], other[2]), min(one[3], other[3])
    shared = max(right - left, 0) * max(bottom - top, 0)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - shared
    hull = (max(one[2], other[2]) - min(one[0], other[0])) * (max(one[3], other[3]) - min(one[1], other[1]))
    return shared / union, shared / union - (hull - union) / hull


def test_overlaps_are_those_of_the_definition_and_have_its_gradient():
    one, other = draw_boxes(40, seed=1).requires_grad_(), draw_boxes(40, seed=2)
    ious, gious = box_ious(one, other), box_gious(one, other)
    (slopes,) = torch.autograd.grad(gious.sum(), one)
    assert (ious == 0).any() and (ious > 0.2).any()
    step = 1e-6
    for place, (box, truth) in enumerate(zip(one.tolist(), other.tolist())):
        assert (ious[place].item(), gious[place].item()) == pytest.approx(giou_of(box, truth), abs=1e-12)
        for side in range(4):
            moved = [[*box[:side], box[side] + way * step, *box[side + 1 :]] for way in (1, -1)]
            slope = (giou_of(moved[0], truth)[1] - giou_of(moved[1], truth)[1]) / (2 * step)
            assert slopes[place, side].item() == pytest.approx(slope, abs=1e-7)


def test_every_box_is_compared_with_every_other():
    one, other = draw_boxes(3, 5, seed=3), draw_boxes(3, 7, seed=4)
    pairs = box_ious(one[:, :, None], other[:, None])
    assert pairs.shape == (3, 5, 7)
    assert pairs[2, 4, 1].item() == pytest.approx(giou_of(one[2, 4].tolist(), other[2, 1].tolist())[0])


def test_boxes_without_area_overlap_nothing_and_give_numbers():
    empty = torch.tensor([3.0, 3, 3, 3])
    assert box_ious(empty, empty) == 0
    assert box_gious(empty, empty).isfinite()


def test_fast_suppression_keeps_a_subset_of_greedy_and_the_best_of_each_class():
    boxes = draw_boxes(30, 60, seed=5, side=12)
    labels = torch.randint(3, (30, 60), generator=torch.Generator().manual_seed(6))
    kept = suppress_duplicates(boxes, labels, 0.4)
    greedy = torch.stack([suppress_greedily(*pair, 0.4) for pair in zip(boxes, labels)])
    assert (kept <= greedy).all()
    assert kept.sum() < greedy.sum() < greedy.numel()
    for image in range(30):
        for label in range(3):
            assert kept[image][labels[image] == label][0]


def test_a_removed_box_removes_others_by_hand():
    """Each box overlaps the next by a half: of three of one class greedy suppression keeps the first and the last."""
    boxes = torch.tensor([[[0.0, 0, 6, 4], [2, 0, 8, 4], [4, 0, 10, 4]]])
    assert suppress_duplicates(boxes, torch.tensor([[1, 1, 1]]), 0.45).tolist() == [[True, False, False]]
    assert suppress_greedily(boxes[0], torch.tensor([1, 1, 1]), 0.45).tolist() == [True, False, True]
    assert suppress_duplicates(boxes, torch.tensor([[1, 2, 1]]), 0.45).tolist() == [[True, True, True]]
    assert suppress_duplicates(boxes, torch.tensor([[1, 1, 1]]), 0.5).tolist() == [[True, True, True]]
