"""Detection: targets that follow their pixels, the loss, and detections in pixels of the picture."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.tasks.dense_models import create, draw_images, draw_targets, fit, micro_batches, objects_of, whole
from tests.tasks.test_assignment import assign_slowly
from tests.tasks.test_boxes import draw_boxes, giou_of, suppress_greedily
from vitrail.data.augment.placement import UNKNOWN, Frames, place
from vitrail.errors import ConfigError
from vitrail.models.dense import BoxHead
from vitrail.tasks.detection.boxes import split_outputs

SIZE = (32, 48)


@pytest.fixture(scope="module")
def detector():
    return create(size=SIZE)


def answer(detector, batch=3, seed=0):
    """Outputs for random images, in double precision."""
    with torch.no_grad():
        return detector(draw_images(detector, batch, seed=seed)).double()


# Targets.


def test_objects_are_collated_to_rows_of_a_multiple_of_16(detector):
    rows = detector.targets.collate(
        objects_of([[0, 0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10]], [2, 0, 1], [1, 1, 3], [0, 1, 0])
    )
    assert rows.shape == (3, 16, 7)
    assert rows[0, 0].tolist() == [2, 0, 0, 0, 1, 2, 2]
    assert rows[2, :2].tolist() == [[0, 1, 3, 4, 5, 6, 4], [1, 0, 7, 8, 9, 10, 4]]
    assert (rows[..., 0] == -1).sum() == 3 * 16 - 3
    assert detector.targets.collate(objects_of([], [], [0, 0])).shape == (2, 16, 7)
    assert detector.targets.collate(objects_of(np.zeros((17, 4)), [0] * 17, [17])).shape == (1, 32, 7)


def test_boxes_follow_a_mirrored_crop_by_hand(detector):
    frames = Frames(np.array([[10.0, 20, 106, 84]]), np.array([[100.0, 200]]))  # 96 x 64 pixels shown as 48 x 32
    mirrored = np.array([[[-1.0, 0, 48], [0, 1, 0], [0, 0, 1]]])
    rows = [[20, 30, 40, 50], [0, 0, 30, 40], [0, 0, 13, 84], [0, 0, 13, 84], [110, 30, 120, 60], [20, 30, 22, 33]]
    targets = detector.targets.collate(objects_of(rows, [0, 1, 2, 2, 1, 1], [6], [0, 0, 0, 1, 0, 0]))
    moved, weight = detector.targets.move(targets, place(frames, SIZE, mirrored, SIZE))
    assert moved[0, :2].tolist() == [
        [0, 0, 33, 5, 43, 15],
        [1, 0, 38, 0, 48, 10],
    ]  # the second cut to a third of its box
    # an eighth is left of an object and of a crowd, nothing of one, and of one 1.5 square pixels
    assert moved[0, 2:6, 0].tolist() == [-1, 2, -1, -1]
    assert moved[0, 3, 1:].tolist() == [1, 46.5, 0, 48, 32]
    assert weight.tolist() == [1 / 2]


def test_the_box_of_a_turned_object_holds_its_corners(detector):
    corner = math.sqrt(0.5)
    turned = np.array(
        [[[corner, -corner, 0], [corner, corner, 0], [0, 0, 1]]]
    )  # pixels of the image to those of the picture
    placement = place(Frames.whole(1, (100, 100)), (100, 100), turned, (100, 100))
    moved, _ = detector.targets.move(detector.targets.collate(objects_of([[20, 30, 30, 40]], [1], [1])), placement)
    assert moved[0, 0, 2:].tolist() == pytest.approx([50 * corner, 0, 70 * corner, 20 * corner])


def test_a_transform_of_the_users_is_refused(detector):
    frames = Frames(np.array([UNKNOWN]), np.array([UNKNOWN[:2]]))
    with pytest.raises(ConfigError, match="cannot follow a transform of your own"):
        detector.targets.move(
            detector.targets.collate(objects_of([], [], [0])), place(frames, SIZE, np.eye(3)[None], SIZE)
        )


# The loss.


def loss_by_hand(outputs, objects, wanted, divisor):
    """Of one image in plain numbers: binary cross-entropy, and 1 - GIoU four times, for a given assignment."""
    total = 0.0
    for row, (owner, score) in zip(outputs, wanted):
        is_crowd = any(
            label >= 0 and crowd and box[0] < row[4] < box[2] and box[1] < row[5] < box[3]
            for label, crowd, *box in objects
        )
        for label, logit in enumerate(row[7:]):
            target = score if owner is not None and label == objects[owner][0] else 0.0
            if owner is not None or not is_crowd:
                total += max(logit, 0) - logit * target + math.log1p(math.exp(-abs(logit)))
        if owner is not None:
            total += 4 * score * (1 - giou_of(row[:4], objects[owner][2:])[1])
    return total / divisor


def test_the_loss_and_its_gradient_are_those_by_hand(detector):
    outputs = answer(detector).requires_grad_()
    rows = [[0, 0, 20, 20], [30, 5, 47, 30], [1, 1, 3, 3], [10, 0, 48, 32], [5, 5, 30, 30]]  # a crowd over two objects
    targets = detector.targets.collate(objects_of(rows, [0, 2, 1, 1, 2], [4, 4, 5], [0, 0, 0, 1, 0]))
    objects, weight = detector.targets.move(targets, whole(3, SIZE))
    loss = detector.loss(outputs, (objects, weight))
    (slopes,) = torch.autograd.grad(loss, outputs)
    given, divisor, expected, step = outputs.detach().tolist(), 5 * 4, 0.0, 1e-6
    for image, truth in enumerate(objects.double().tolist()):
        cells = torch.tensor(given[image]).double()
        parts = (cells[:, :4], cells[:, 7:].sigmoid(), cells[:, 4:6])
        valid = [label >= 0 and not crowd for label, crowd, *_ in truth]
        labels = [int(row[0]) for row in truth]
        wanted = list(
            zip(*assign_slowly(*(part.tolist() for part in parts), [row[2:] for row in truth], labels, valid))
        )
        expected += loss_by_hand(given[image], truth, wanted, divisor)
        for cell, column in np.random.default_rng(image).integers(0, [len(cells), 10], (40, 2)).tolist():
            if 4 <= column < 7:
                continue
            value, sides = given[image][cell][column], []
            for way in (1, -1):
                given[image][cell][column] = value + way * step
                sides.append(loss_by_hand(given[image], truth, wanted, divisor))
            given[image][cell][column] = value
            assert slopes[image, cell, column].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-6)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_micro_batches_add_up_to_the_loss_of_the_batch(detector):
    outputs = answer(detector, 6)
    targets = draw_targets(detector, [0, 5, 40, 1, 0, 2], SIZE)
    whole_loss = detector.loss(outputs, targets)
    for parts in (1, 2, 4):
        torch.testing.assert_close(micro_batches(detector, outputs, targets, parts), whole_loss)


def test_images_without_objects_teach_that_there_are_none(detector):
    outputs = answer(detector).requires_grad_()
    objects, weight = draw_targets(detector, [0, 0, 0], SIZE)
    assert weight.tolist() == [3, 3, 3]
    (slopes,) = torch.autograd.grad(detector.loss(outputs, (objects, weight)), outputs)
    assert (slopes[..., 7:] > 0).all() and not slopes[..., :7].any()


# Answers.


def detect_slowly(detector, outputs):
    """The best pairs of cell and class of one image, without those that a better one of the class removes; by loops."""
    scores = outputs[:, 7:].sigmoid()
    pairs = [(scores[cell, label].item(), cell, label) for cell, label in np.ndindex(*scores.shape)]
    pairs = sorted(pairs, reverse=True)[: 4 * detector.most]
    kept = []
    for rank, (score, cell, label) in enumerate(pairs):
        box = outputs[cell, :4].tolist()
        better = [outputs[other, :4].tolist() for _, other, its in pairs[:rank] if its == label]
        if all(giou_of(box, each)[0] <= 0.6 for each in better):
            kept.append([*box, score, label])
    return kept[: detector.most]


@pytest.mark.parametrize("most", [5, 100])
def test_detections_are_the_best_without_duplicates(most):
    detector = create(size=SIZE, most=most)
    outputs = answer(detector)
    found = detector.detect(outputs)
    assert found.shape == (3, most, 6)
    for image, expected in enumerate(detect_slowly(detector, each) for each in outputs):
        np.testing.assert_allclose(found[image, : len(expected)], expected)
        assert not found[image, len(expected) :].any()
    assert most < 100 or not found[:, -1].any()  # 4 x 6 + 2 x 3 + 2 cells of 3 classes are fewer than 400


def test_detections_are_a_subset_of_greedy_non_maximum_suppression(detector):
    boxes, labels = draw_boxes(1, 40, seed=8), torch.randint(3, (1, 40), generator=torch.Generator().manual_seed(1))
    logits = (
        torch.full((1, 40, 3), -1e3)
        .double()
        .scatter_(2, labels[..., None], torch.linspace(3, -3, 40).double().view(1, 40, 1))
    )
    found = detector.detect(torch.cat([boxes, torch.zeros(1, 40, 3), logits], -1))[0]
    greedy = boxes[0][suppress_greedily(boxes[0], labels[0], 0.6)].tolist()
    found = found[found[:, 4] > 0.04, :4].tolist()
    assert 1 < len(found) <= len(greedy) and all(box in greedy for box in found)


def test_answers_lie_in_the_picture_and_reach_the_threshold(detector):
    """The input shows a part of one picture, and of another more than there is."""
    found = torch.zeros(2, 4, 6)
    found[:, 0] = torch.tensor([12.0, 8, 24, 40, 0.9, 2])
    found[:, 1] = torch.tensor([0.0, 0, 4, 4, 0.5, 1])
    found[:, 2] = torch.tensor([40.0, 8, 48, 24, 0.2, 0])
    frames = Frames(np.array([[100.0, 50, 196, 114], [-48, -32, 144, 96]]), np.array([[200.0, 300], [60, 90]]))
    placed = detector.place_in_pictures(found, frames)
    assert placed[0, 0].tolist() == pytest.approx([124, 66, 148, 130, 0.9, 2])
    assert placed[1, 0].tolist() == pytest.approx([0, 0, 48, 60, 0.9, 2])
    first, second = detector.decode(found, frames)
    assert first.labels == ("line", "dot") and first.size == (200, 300)
    assert second.labels == ("line",)  # the other lies outside of the picture
    assert second.boxes.tolist() == [[0, 0, 48, 60]]
    assert first.row() == {"objects": 2, "labels": "line 1, dot 1"}
    assert first.to_json()["objects"][0] == {"label": "line", "score": pytest.approx(0.9), "box": [124, 66, 148, 130]}


def test_true_objects_as_answers_are_evaluated_right(detector):
    """What calling the model gives is evaluated in pixels of the pictures, of which the input shows half the size."""
    objects = detector.targets.collate(
        objects_of([[0, 0, 20, 20], [60, 10, 90, 60], [10, 10, 30, 50]], [0, 2, 1], [2, 3])
    )
    boxes = objects[:, :2, 2:6].double() / 2
    logits = torch.full((2, 2, 3), -9.0).double()
    logits[0, 0, 0] = logits[0, 1, 2] = logits[1, 0, 1] = 3
    outputs = torch.cat([boxes, torch.zeros(2, 2, 3), logits], -1)
    metric = detector.metric()
    metric.update(outputs, objects, ["a", "b"], Frames.whole(2, (64, 96)))
    assert metric.compute()["ap"] == pytest.approx(1)


# Graphs.


def test_graphs_agree_on_detections_in_another_order_and_not_on_others(detector):
    found = detector.detect(answer(detector))
    swapped = found.clone()
    swapped[:, [1, 2]] = found[:, [2, 1]]
    swapped[..., 4] += 1e-6 * (found[..., 4] > 0)
    expected, near = split_outputs(found), split_outputs(swapped)
    assert detector.difference(expected, near) == pytest.approx(1e-6, rel=0.1)
    assert detector.agreement(expected, near) == 1
    moved = found.clone()
    moved[0, :, :4] *= 2
    assert detector.difference(expected, split_outputs(moved)) > 0.1
    assert detector.agreement(expected, split_outputs(moved)) == pytest.approx(2 / 3)
    relabelled = found.clone()
    relabelled[1, 0, 5] = 2 - relabelled[1, 0, 5] // 2
    assert detector.agreement(expected, split_outputs(relabelled)) == pytest.approx(2 / 3)


def test_boxes_are_computed_in_single_precision_from_weights_of_less():
    head = BoxHead([(7, 7)], 16, 2).bfloat16()
    found = head([torch.randn(1, 16, 1, 90, dtype=torch.bfloat16)])
    assert found.dtype == torch.float32
    assert found[0, -1, 4] == 626.5  # which bfloat16 rounds to 628


def test_invalid_options_are_refused():
    for arguments, message in (({"head_width": 48}, "head_width is 48"), ({"classes": ()}, "without classes")):
        with pytest.raises(ConfigError, match=message):
            create(**arguments)


# Training.


def draw_squares(count=4, side=32, seed=3):
    """Images with a bright square, light or dark, on grey noise, and where it is."""
    generator = np.random.default_rng(seed)
    images = generator.normal(0, 0.1, (count, 3, side, side))
    boxes, labels = [], generator.integers(0, 2, count)
    for image, label in zip(images, labels):
        size, (x, y) = generator.integers(10, 16), generator.integers(1, side - 17, 2)
        image[:, y : y + size, x : x + size] += 2 if label else -2
        boxes.append([x, y, x + size, y + size])
    return torch.from_numpy(images).float(), objects_of(boxes, labels, range(1, count + 1))


@pytest.mark.slow
def test_a_small_detector_learns_to_find_the_squares_on_four_images():
    detector = create(size=32, shake=False, classes=("dark", "light"), levels=(8,)).train()
    images, objects = draw_squares()
    targets = detector.targets.move(detector.targets.collate(objects), whole(4, (32, 32)))
    losses = fit(detector, images, targets, lr=5e-3)
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        answers = detector.eval().decode(detector(images))
    for found, box, label in zip(answers, objects.boxes.tolist(), objects.labels):
        assert found.labels == (("dark", "light")[label],)
        assert giou_of(found.boxes[0].tolist(), box)[0] > 0.75
