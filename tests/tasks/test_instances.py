"""Instance segmentation: the object of every pixel as a target, the loss of masks, and masks in the picture."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.tasks.dense_models import CLASSES, create, draw_images, draw_targets, micro_batches, whole
from vitrail.data.augment import placement
from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import LABEL_BITS, NOT_SHOWN, UNCOUNTED, OutlinedObjects
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage
from vitrail.images.rle import Rle, mask_ious
from vitrail.tasks.detection.loss import Assignment
from vitrail.tasks.instances.loss import LEARNED, MARGIN, choose_cells, find_uncounted, measure_shares, sum_mask_losses
from vitrail.tasks.instances.task import paste_mask

SIZE = (32, 48)


@pytest.fixture(scope="module")
def segmenter():
    return create("instances", size=SIZE, most=6)


def outlined(masks, labels, crowd=None, areas=None):
    """The objects of one image from their pixels (n, H, W)."""
    outlines = [Rle.of_patch(mask, (0, 0), mask.shape) for mask in masks]
    return OutlinedObjects.of_image(
        [outline.box for outline in outlines],
        labels,
        crowd=crowd,
        areas=[outline.area for outline in outlines] if areas is None else areas,
        size=masks[0].shape,
        outlines=[outline.to_text().encode() for outline in outlines],
    )


def blocks(*boxes, size=SIZE):
    """A mask for each box."""
    masks = np.zeros((len(boxes), *size), bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes):
        mask[top:bottom, left:right] = True
    return masks


def numbered(number, label):
    return number << LABEL_BITS | label


# Targets.


def test_a_map_of_objects_has_the_smaller_one_on_top_and_crowds_below_all():
    masks = blocks((0, 0, 20, 20), (4, 4, 8, 8), (0, 0, 30, 30), (40, 20, 48, 32))
    objects = outlined(masks, [2, 0, 1, 1], crowd=[False, False, True, True], areas=[400, 16, 1, 96])
    values = objects.read_map(0, SIZE)
    assert values.dtype == np.int32 and values.shape == SIZE
    assert values[5, 5] == numbered(2, 0) and values[10, 10] == numbered(1, 2)
    assert values[25, 25] == values[25, 45] == UNCOUNTED and values[0, 40] == 0
    for place, mask in enumerate(masks[:2]):
        hidden = masks[1] if place == 0 else np.zeros_like(mask)
        assert np.array_equal(values >> LABEL_BITS == place + 1, mask & ~hidden)


def test_targets_are_the_boxes_of_the_pixels_that_a_mirrored_crop_shows(segmenter):
    masks = blocks((20, 30, 40, 50), (0, 0, 30, 40), (100, 90, 101, 93), (80, 60, 98, 90), size=(100, 200))
    values = outlined(masks, [0, 1, 2, 2], crowd=[False, False, False, True]).read_map(0, (100, 200))
    crop = torch.from_numpy(values[None, 20:84, 10:106][:, ::2, ::2].copy())  # 96 x 64 pixels shown as 48 x 32
    frames = Frames(np.array([[10.0, 20, 106, 84]]), np.array([[100.0, 200]]))
    mirrored = np.array([[[-1.0, 0, 48], [0, 1, 0], [0, 0, 1]]])
    objects, weight, numbers = segmenter.targets.move(crop, placement.place(frames, SIZE, mirrored, SIZE))
    assert objects.shape == (1, 16, 6) and weight.tolist() == [1 / 2]
    assert objects[0, :2].tolist() == [[0, 0, 33, 5, 43, 15], [1, 0, 38, 0, 48, 10]]
    assert (objects[0, 2:, 0] == -1).all()
    assert numbers.shape == (1, *SIZE) and numbers.dtype == torch.int16
    assert (numbers[0, 5:15, 33:43] == 1).all() and (numbers[0, :5, 38:48] == 2).all()
    assert (numbers[0, 20:32, 4:13] == UNCOUNTED).all()  # the crowd
    assert numbers[0, 31, 31] == 0


def test_the_box_of_a_turned_object_is_that_of_its_pixels(segmenter):
    size, angle = (100, 100), math.radians(30)
    y, x = np.mgrid[:100, :100] + 0.5
    disc = (x - 50) ** 2 / 900 + (y - 50) ** 2 / 100 <= 1  # half axes of 30 and 10
    cosine, sine = math.cos(angle), math.sin(angle)
    turned = np.array(
        [[[cosine, -sine, 50 - 50 * cosine + 50 * sine], [sine, cosine, 50 - 50 * sine - 50 * cosine], [0, 0, 1]]]
    )
    values = torch.from_numpy(outlined(disc[None], [0]).read_map(0, size))[None]
    objects, *_ = segmenter.targets.move(values, placement.place(Frames.whole(1, size), size, turned, size))
    wide, tall = math.hypot(30 * cosine, 10 * sine), math.hypot(30 * sine, 10 * cosine)
    assert objects[0, 0, 2:].tolist() == pytest.approx([50 - wide, 50 - tall, 50 + wide, 50 + tall], abs=1)


def test_pieces_below_4_pixels_are_left_out_and_not_counted(segmenter):
    values = outlined(blocks((0, 0, 3, 1), (10, 10, 14, 11)), [0, 1]).read_map(0, SIZE)
    objects, weight, numbers = segmenter.targets.move(torch.from_numpy(values)[None], whole(1, SIZE))
    assert objects[0, :2, 0].tolist() == [1, -1] and weight.tolist() == [1]
    assert (numbers[0, 0, :3] == UNCOUNTED).all() and (numbers[0, 10, 10:14] == 1).all()


def test_coco_objects_keep_their_mask_in_the_map(real_data):
    source = open_data(real_data / "coco_mini" / "instances.json", task="instances", validation=0).train
    overlaps = []
    for row in range(len(source)):
        one = source.targets.of(row)
        values = one.read_map(0, tuple(one.sizes[0].tolist()))
        for place, mask in enumerate(one.masks()):
            if not one.crowd[place]:
                kept = Rle.of_patch(values >> LABEL_BITS == place + 1, (0, 0), mask.size)
                overlaps.append(mask_ious([kept], [mask], np.array([False]))[0, 0])
    assert len(overlaps) > 80 and np.mean(overlaps) >= 0.98 and min(overlaps) > 0.5


# The loss.


def test_shares_of_objects_in_cells_by_hand():
    numbers = torch.zeros(1, 8, 8, dtype=torch.int16)
    numbers[0, :2, :4], numbers[0, 2:4, :2], numbers[0, 4:, 4:] = 1, 2, UNCOUNTED
    numbers[0, 4:, :2] = NOT_SHOWN
    shares, known = measure_shares(numbers, 2, (2, 2), (4.0, 4.0))
    assert shares[0].tolist() == [[0.5, 0, 0, 0], [0.25, 0, 0, 0]]
    assert known[0].tolist() == [1, 1, 0.5, 0]


def mask_loss_by_hand(coefficients, prototypes, owners, scores, boxes, numbers, side):
    """Of one image in plain numbers, for square cells of ``side`` pixels."""
    total = 0.0
    ranked = sorted((cell for cell in range(len(owners)) if owners[cell] >= 0), key=lambda cell: -scores[cell])
    best = {owners[cell]: cell for cell in ranked[::-1] if scores[cell]}.values()
    for cell in [*best, *(cell for cell in ranked if cell not in best)][:LEARNED]:
        owner, score = owners[cell], scores[cell]
        left, top, right, bottom = boxes[owner]
        entropy = area = both = found = true = 0.0
        for row in range(prototypes.shape[1]):
            for column in range(prototypes.shape[2]):
                x, y = (column + 0.5) * side, (row + 0.5) * side
                patch = numbers[row * side : (row + 1) * side, column * side : (column + 1) * side]
                inside = left - MARGIN < x < right + MARGIN and top - MARGIN < y < bottom + MARGIN
                weight = inside * (patch >= 0).mean()
                if not weight:
                    continue
                wanted = (patch == owner + 1).sum() / (patch >= 0).sum()
                logit = float(coefficients[cell] @ prototypes[:, row, column])
                p = 1 / (1 + math.exp(-logit))
                entropy -= weight * (wanted * math.log(p) + (1 - wanted) * math.log(1 - p))
                area, both = area + weight, both + weight * p * wanted
                found, true = found + weight * p, true + weight * wanted
        total += score * (entropy / max(area, 1) + 1 - (2 * both + 1) / (found + true + 1))
    return total


def test_the_loss_of_masks_is_that_by_hand():
    generator = np.random.default_rng(0)
    coefficients, prototypes = generator.normal(size=(2, 60, 3)), generator.normal(size=(2, 3, 8, 12))
    owners, scores = generator.integers(-1, 3, (2, 60)), generator.uniform(size=(2, 60))
    scores[0, :50] = 0  # of the first image only ten cells learn
    boxes = np.array([[[0, 0, 20, 20], [10, 5, 40, 30], [44, 0, 48, 4]]] * 2, float)
    numbers = generator.integers(-2, 4, (2, *SIZE)).astype(np.int16)
    tensors = [torch.from_numpy(each) for each in (coefficients, prototypes, boxes, numbers)]
    assigned = Assignment(torch.from_numpy(owners), torch.from_numpy(scores))
    found = sum_mask_losses(tensors[0], tensors[1], assigned, tensors[2], tensors[3], (4.0, 4.0))
    parts = zip(coefficients, prototypes, owners, scores, boxes, numbers)
    expected = [mask_loss_by_hand(*each, side=4) for each in parts]
    # shares of pixels are in single precision, here multiples of a sixteenth and their quotients
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_every_object_has_a_cell_that_learns_its_mask_before_others_have_two():
    scores = torch.tensor([[0.9, 0.8, 0.7] * 16 + [0.1, 0.2, 0.3]])  # 51 cells: 48 of one object, and one of each other
    owners = torch.tensor([[0] * 48 + [1, 2, -1]])
    chosen = choose_cells(Assignment(owners, scores), 3)[0].tolist()
    assert len(chosen) == LEARNED and {48, 49} <= set(chosen) and 50 not in chosen


def test_masks_are_learned_in_full_precision_under_autocast(segmenter):
    targets = draw_targets(segmenter, [3, 2], SIZE)
    with torch.no_grad():
        outputs = segmenter(draw_images(segmenter))
        exact = segmenter.loss(outputs, targets)
        with torch.autocast("cpu", torch.bfloat16):
            assert segmenter.loss(outputs, targets).item() == pytest.approx(exact.item(), rel=1e-6)


def test_more_objects_than_a_map_can_tell_apart_are_a_bad_image():
    one = outlined(blocks((0, 0, 1, 1)), [0])
    rows = 2**15
    flat = {name: np.repeat(getattr(one, name), rows, 0) for name in ("boxes", "labels", "crowd", "areas")}
    many = replace(one, **flat, ends=np.array([rows]), outlines=one.outlines * rows)
    with pytest.raises(BadImage, match="32,768 objects, at most 32,767 can be told apart"):
        many.read_map(0, SIZE)


def test_crowds_have_no_gradient(segmenter):
    masks = blocks((4, 4, 20, 20), (24, 0, 48, 32))
    values = outlined(masks, [0, 1], crowd=[False, True]).read_map(0, SIZE)
    targets = segmenter.targets.move(torch.from_numpy(values)[None], whole(1, SIZE))
    with torch.no_grad():
        outputs = segmenter(draw_images(segmenter, 1)).double()
    is_crowd = find_uncounted(segmenter.split(outputs)[0][..., 4:6], targets[2])
    assert is_crowd.any() and not is_crowd.all()
    outputs.requires_grad_()
    (slopes,) = torch.autograd.grad(segmenter.loss(outputs, targets), outputs)
    of_cells, _, of_prototypes = segmenter.split(slopes, (8, 12))
    assert of_prototypes[0].abs().sum(0)[:, 6:].abs().max() == 0  # cells of 4 pixels
    assert of_prototypes[0].abs().sum(0)[:6, :6].max() > 0
    free = is_crowd & (of_cells[..., :4] == 0).all(-1)  # those that have taken no object
    assert free.any() and (of_cells[free] == 0).all()
    assert (of_cells[~is_crowd][:, 7:] != 0).all()


def test_micro_batches_add_up_to_the_batch(segmenter):
    targets = draw_targets(segmenter, [3, 0, 5, 1], SIZE)
    with torch.no_grad():
        outputs = segmenter(draw_images(segmenter, 4)).double()
    whole_loss = float(segmenter.loss(outputs, targets))
    assert float(micro_batches(segmenter, outputs, targets, 1)) == pytest.approx(whole_loss, rel=1e-6)
    assert float(micro_batches(segmenter, outputs, targets, 2)) == pytest.approx(whole_loss, rel=1e-6)


def test_an_image_without_objects_has_a_finite_loss_and_gradient(segmenter):
    targets = draw_targets(segmenter, [0, 0], SIZE)
    outputs = segmenter(draw_images(segmenter)).detach().requires_grad_()
    loss = segmenter.loss(outputs, targets)
    (slopes,) = torch.autograd.grad(loss, outputs)
    assert torch.isfinite(loss) and torch.isfinite(slopes).all()


# Answers.


def test_prototypes_lie_behind_the_cells_of_the_outputs(segmenter):
    images = draw_images(segmenter)
    with torch.no_grad():
        cells, prototypes = segmenter.find_cells(segmenter.backbone.dense_maps(images, segmenter.dense_layers))
        found, coefficients, maps = segmenter.split(segmenter(images))
    assert torch.equal(maps, prototypes) and prototypes.shape == (2, segmenter.prototypes, 8, 12)
    assert torch.equal(torch.cat([found, coefficients], 2), cells)


@pytest.mark.parametrize("size", [(48, 32), (97, 61), (211, 333)])
def test_a_disc_is_pasted_where_it_was(size):
    height, width = size
    y, x = np.mgrid[:height, :width] + 0.5
    disc = ((x - 0.4 * width) ** 2 + (y - 0.6 * height) ** 2) <= (0.25 * min(size)) ** 2
    rows, columns = 40, 56
    shares = F.interpolate(torch.from_numpy(disc)[None, None].double(), (rows, columns), mode="area")[0, 0].numpy()
    mask = paste_mask(shares, np.array([0.0, 0, width, height]), np.array([0.0, 0, width, height]), size)
    found = mask.to_mask()
    assert abs((x * found).sum() / found.sum() - 0.4 * width) < 0.5
    assert abs((y * found).sum() / found.sum() - 0.6 * height) < 0.5
    assert (found & disc).sum() / (found | disc).sum() > 0.93


def test_a_mask_ends_at_its_box():
    mask = paste_mask(np.ones((4, 4)), np.array([-4.0, -4, 28, 28]), np.array([2.4, 3.0, 9.5, 10.6]), (20, 24))
    assert mask.box == (2, 3, 9, 11)


def test_masks_of_a_letterboxed_picture_lie_in_the_picture(segmenter):
    """A picture of 100 x 50 pixels, of which the input of 48 x 32 shows 12 rows above and 12 below that are not in it."""
    frames = Frames(np.array([[0.0, -25 / 3, 100, 50 + 25 / 3]]), np.array([[50.0, 100]]))
    found = torch.zeros(1, 1, 12 + 8 * 12, dtype=torch.float64)
    found[0, 0, :12] = torch.tensor([12.0, 8, 36, 24, 0.9, 1, 0, 0, 48, 32, 8, 12])
    found[0, 0, 12:] = 1
    (answer,) = segmenter.decode(found.expand(1, segmenter.most, -1), frames, threshold=0.5)
    left, top, right, bottom = answer.boxes[0].tolist()
    assert [left, right] == pytest.approx([25, 75]) and [top, bottom] == pytest.approx([25 - 50 / 3, 25 + 50 / 3])
    assert answer.masks[0].size == (50, 100)
    assert answer.masks[0].box == (25, 8, 75, 42)


def test_answers_without_a_pixel_are_left_out(segmenter):
    found = torch.zeros(1, segmenter.most, 12 + 8 * 12)
    found[0, :2, :12] = torch.tensor([12.0, 8, 36, 24, 0.9, 1, 0, 0, 48, 32, 8, 12])
    found[0, 1, 12:] = 1
    (answer,) = segmenter.decode(found, threshold=0.5)
    assert len(answer) == 1 and answer.masks[0].area == 24 * 16


def test_objects_of_windows_have_the_mask_of_their_window():
    """A disc that one window shows large is pasted from that window, and once."""
    segmenter = create("instances", size=(32, 32), most=4, classes=CLASSES)
    rows, columns = segmenter.grid((32, 32))
    views = Frames(np.array([[0.0, 0, 128, 128], [32, 32, 96, 96]]), np.array([[128.0, 128]] * 2))
    y, x = np.mgrid[:rows, :columns] + 0.5
    disc = ((x - columns / 2) ** 2 + (y - rows / 2) ** 2 <= (rows / 16) ** 2 * 4).astype(np.float32)
    found = torch.zeros(2, segmenter.most, 12 + rows * columns)
    found[..., 6:12] = torch.tensor([0.0, 0, 32, 32, rows, columns])
    side = 32 / 8
    # in the window the box has 8 pixels, in the picture 16; on the whole picture it would have 4
    found[1, 0, :6] = torch.tensor([16 - side, 16 - side, 16 + side, 16 + side, 0.9, 1])
    found[1, 0, 12:] = torch.from_numpy(disc).flatten()
    found[0, 0, :6] = torch.tensor([16 - side / 2, 16 - side / 2, 16 + side / 2, 16 + side / 2, 0.5, 1])
    found[0, 0, 12:] = 1
    joined = segmenter.join_windows([found[:1], found[1:]], views)
    (answer,) = segmenter.decode(joined, views.take(np.array([0])), threshold=0.3)
    assert len(answer) == 1 and answer.scores[0] == pytest.approx(0.9)
    assert answer.boxes[0].tolist() == pytest.approx([56, 56, 72, 72])
    # the mask of the whole picture would fill the box; the disc has 4 cells of the window's grid, of 8 pixels each
    assert math.pi * 8**2 * 0.9 < answer.masks[0].area < 0.95 * 16**2


def test_a_graph_has_the_masks_of_the_call(segmenter):
    images = draw_images(segmenter)
    with torch.no_grad():
        expected, given = segmenter.name_outputs(segmenter(images)), segmenter.graph(images)
    assert list(given) == list(segmenter.graph_outputs) == list(expected)
    assert given["masks"].dtype == torch.uint8 and given["masks"].shape == (2, 6, 8, 12)
    for name in expected:
        torch.testing.assert_close(given[name], expected[name])
    frames = Frames.whole(2, SIZE)
    pairs = zip(
        segmenter.decode(segmenter.read_graph(given), frames, threshold=0),
        segmenter.decode(segmenter(images).detach(), frames, threshold=0),
    )
    for one, other in pairs:
        assert one.labels == other.labels and len(one) == len(other) > 0
        shared = np.diag(mask_ious(one.masks, other.masks, np.zeros(len(other), bool)))
        assert (shared > 0.99).all()


def test_graphs_agree_where_boxes_and_masks_do(segmenter):
    with torch.no_grad():
        expected = segmenter.graph(draw_images(segmenter))
    expected["scores"] = torch.linspace(0.9, 0.4, 6).expand(2, 6)
    expected["boxes"] = torch.arange(6.0)[:, None] * 4 + torch.tensor([0.0, 0, 8, 8]).expand(2, 6, 4)
    expected["masks"][:] = 200
    assert segmenter.agreement(expected, expected) == 1
    given = {**expected, "masks": expected["masks"].clone()}
    given["masks"][0, 2, 0, :4] = 0  # 4 of 96 cells
    assert segmenter.agreement(expected, given) == 1
    given["masks"][0, 2, 0] = 0
    assert segmenter.agreement(expected, given) == 0.5
    assert (
        segmenter.agreement(expected, {**expected, "boxes": expected["boxes"] + torch.tensor([[[9.0]], [[0]]])}) == 0.5
    )


def test_the_subject_of_an_explanation_is_an_object(segmenter):
    segmenter = create("instances", size=SIZE, most=6, threshold=0.0)
    with torch.no_grad():
        outputs = segmenter(draw_images(segmenter, 1))
    frames = Frames.whole(1, SIZE)
    (answer,) = segmenter.decode(outputs, frames)
    subject = segmenter.find_subject(outputs, frames, box=1)
    assert (subject.label, subject.score) == (answer.labels[1], pytest.approx(float(answer.scores[1])))
    assert subject.probability(outputs).tolist() == pytest.approx([subject.score])
    with pytest.raises(ConfigError, match="an exported detector gives its best boxes only"):
        segmenter.find_subject(segmenter.detect(outputs), frames)


def test_a_number_of_prototypes_below_1_is_refused():
    with pytest.raises(ConfigError, match="prototypes is 0"):
        create("instances", prototypes=0)


def test_data_that_were_opened_for_boxes_are_refused_with_how_to_open_them(real_data, segmenter):
    file = real_data / "coco_mini" / "instances.json"
    boxes, outlines = (open_data(file, task=task, validation=0).train for task in ("detection", "instances"))
    with pytest.raises(
        DataError, match="opened for the task detection, and instances needs objects with outlines"
    ) as found:
        segmenter.targets.check(boxes, "instances")
    assert 'open_data(..., task="instances")' in found.value.remedy
    with pytest.raises(DataError, match="opened for the task instances, and detection needs boxes"):
        create("detection").targets.check(outlines, "detection")


@pytest.mark.slow
def test_the_call_is_one_graph_for_the_compiler(segmenter):
    images = draw_images(segmenter)
    with torch.no_grad():
        found = torch.compile(segmenter, backend="eager", fullgraph=True)(images)
        torch.testing.assert_close(found, segmenter(images), rtol=1e-4, atol=1e-3)


def test_more_classes_have_more_prototypes():
    names = [f"class {number}" for number in range(20)]
    assert create("instances").prototypes == 24 and create("instances", classes=names).prototypes == 32
    assert create("instances", prototypes=5).describe()["prototypes"] == 5


def test_outlines_for_a_picture_over_the_limit_are_a_bad_image():
    one = outlined(blocks((0, 0, 4, 4)), [0])
    many = replace(one, sizes=np.array([[100_000, 100_000]], np.int32))
    with pytest.raises(BadImage, match="over the limit"):
        many.read_map(0, (100_000, 100_000))
    with pytest.raises(BadImage, match="over the limit"):
        many.masks()
