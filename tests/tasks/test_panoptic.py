"""The panoptic task: which query gets a pixel, and what void and crowds teach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tasks.dense_models import create, draw_objects, outline_boxes, whole
from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import LABEL_BITS, UNCOUNTED, PanopticObjects
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.panoptic.answer import Panoptic
from vitrail.tasks.queries.task import pack_logits

CLASSES, THINGS = ("cat", "dog", "sky"), (True, True, False)
NONE, SIZE = 3, (32, 64)


@pytest.fixture(scope="module")
def segmenter():
    return create("panoptic", head="queries", classes=CLASSES, things=THINGS, size=SIZE, queries=5)


def answer(segmenter, *queries, threshold=None, frames=None):
    """The answer of queries, each with its class, its probability, and the columns and the probability of its mask."""
    rows, columns = segmenter.grid(SIZE)
    classes = torch.full((1, 1, 5, len(CLASSES) + 1), -20.0)
    classes[..., NONE] = 20.0
    masks = torch.full((1, 1, 5, rows, columns), -20.0)
    for number, (label, score, first, last, share) in enumerate(queries):
        classes[0, 0, number] = (torch.full((4,), (1 - score) / 3) + 1e-9).log()
        classes[0, 0, number, label] = torch.tensor(score).log()
        logit = torch.tensor(share).logit()
        masks[0, 0, number] = -logit.abs()
        masks[0, 0, number, :, first:last] = logit
    (found,) = segmenter.decode(pack_logits(classes, masks), frames, threshold=threshold)
    return found


def name_cells(found: Panoptic):
    """The label and number of the segment in the middle of each of the 16 columns of cells, as in "cat 1"."""
    names = ["", *(f"{each.label} {number}" for number, each in enumerate(found.segments, 1))]
    return [names[number] for number in found.ids[16, 2::4]]


def test_a_pixel_belongs_to_the_query_with_the_largest_product(segmenter):
    assert segmenter.grid(SIZE) == (8, 16)
    # both want the last of ten columns: 0.95 x 0.8 < 0.9 x 0.99
    found = answer(segmenter, (1, 0.9, 9, 16, 0.99), (0, 0.95, 0, 10, 0.8))
    assert name_cells(found) == ["cat 1"] * 9 + ["dog 2"] * 7
    assert [each.score for each in found.segments] == pytest.approx([0.95, 0.9])
    assert sum(each.area for each in found.segments) == 32 * 64


def test_a_query_that_loses_more_than_a_fifth_of_its_mask_does_not_answer(segmenter):
    found = answer(segmenter, (0, 0.95, 0, 10, 0.8), (1, 0.9, 6, 16, 0.99))
    assert name_cells(found) == [""] * 6 + ["dog 1"] * 10


def test_uncertain_classes_none_and_unlikely_pixels_leave_void(segmenter):
    queries = (0, 0.7, 0, 4, 0.99), (NONE, 0.99, 4, 8, 0.99), (1, 0.9, 8, 12, 0.45)
    assert set(name_cells(answer(segmenter, *queries))) == {""}
    assert name_cells(answer(segmenter, *queries, threshold=0.6)) == ["cat 1"] * 4 + [""] * 12


def test_stuff_of_a_class_is_one_segment_and_things_are_not(segmenter):
    found = answer(segmenter, (2, 0.9, 0, 4, 0.9), (2, 0.95, 12, 16, 0.9), (0, 0.9, 4, 8, 0.9), (0, 0.9, 8, 12, 0.9))
    assert name_cells(found) == ["sky 1"] * 4 + ["cat 2"] * 4 + ["cat 3"] * 4 + ["sky 1"] * 4
    assert [each.thing for each in found.segments] == [False, True, True]
    assert found.segments[0].score == pytest.approx(0.95) and found.segments[0].box == (0, 0, 64, 32)


def test_segments_lie_in_the_picture_whatever_the_input_shows_of_it(segmenter):
    # the right half of the input is a border
    frames = Frames(np.array([[0.0, 0.0, 200.0, 100.0]]), np.array([[100.0, 100.0]]))
    (segment,) = answer(segmenter, (0, 0.9, 0, 4, 0.9), frames=frames).segments
    assert segment.box == (0, 0, 50, 100)


def test_void_and_crowds_give_no_gradient(segmenter):
    values = np.full((1, *SIZE), UNCOUNTED, np.int32)
    values[0, :, :24] = 1 << LABEL_BITS | 2
    values[0, :16, 24:32] = 2 << LABEL_BITS
    targets = segmenter.targets.move(torch.from_numpy(values), whole(1, SIZE))
    outputs = torch.randn(1, 5, 9, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    segmenter.loss(outputs, targets).backward()
    (masks,) = segmenter.unpack(outputs.grad)[1][0]
    assert masks[:, :, 8:].abs().max() == 0 and masks[:, 4:, 6:].abs().max() == 0
    assert masks[:, :, :6].abs().amax((1, 2)).count_nonzero() == 2  # the queries that were matched
    assert masks[:, :4, 6:8].any()


def test_real_annotations_answered_as_they_are_have_a_quality_of_one(segmenter, real_data):
    train = open_data(real_data / "coco_mini" / "panoptic.json", task="panoptic", validation=0).train
    things = train.targets.things
    assert (len(train.classes), sum(things)) == (133, 80)
    model = create("panoptic", head="queries", classes=train.classes, things=things)
    metric = model.metric(train)
    rows = {str(key): row for row, key in enumerate(train.keys)}
    for key in rows:
        objects = train.targets.of(rows[key])
        answered = Panoptic.of_objects(objects, train.classes, things)
        metric.decode = lambda outputs, frames, answered=answered: [answered]
        size = objects.sizes[0].tolist()
        metric.update(torch.zeros(1), torch.zeros(1, *size, dtype=torch.int32), [key], Frames.whole(1, size))
    figures = metric.compute()
    assert figures["pq"] == figures["pq_stuff"] == figures["pq_things"] == 1


def test_a_class_of_things_in_the_data_and_of_stuff_for_the_model_is_refused(segmenter):
    objects = outline_boxes(draw_objects([4], SIZE), SIZE, PanopticObjects)
    objects = replace(objects, labels=np.array([0, 2, 2, 0], np.int32))
    images = Arrays(np.zeros((1, *SIZE, 3), np.uint8), Strings(["a.png"]))
    source = Source(contents=images, targets=objects, classes=CLASSES)
    for things, found in (
        ((True, True, True), "'sky' is a class of stuff"),
        ((False, True, False), "'cat' is a class of things"),
    ):
        with pytest.raises(DataError, match=f"{found} for the model, and of \\w+ in the data"):
            segmenter.metric(replace(source, targets=replace(objects, things=things)))
    segmenter.metric(replace(source, targets=replace(objects, things=(True, False, False))))  # no dog in the data


def test_windows_and_things_of_another_number_are_refused(segmenter):
    with pytest.raises(ConfigError, match=r"2 things for 3 classes"):
        create("panoptic", head="queries", classes=CLASSES, things=(True, False))
    with pytest.raises(ConfigError, match=r"windows.*\n.*hint: leave zoom out"):
        segmenter.join_windows([], Frames.whole(1, SIZE))
