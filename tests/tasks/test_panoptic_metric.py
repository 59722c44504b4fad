"""Panoptic quality: the rules of panopticapi, written again pixel by pixel."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import UNCOUNTED, OutlinedObjects
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.images.rle import Rle
from vitrail.tasks.panoptic.answer import Panoptic, Segment
from vitrail.tasks.panoptic.metric import PanopticMetric, match_segments

K = 6
CLASSES, THINGS = tuple("abcdef"), (True, True, True, False, False, False)


def draw_map(generator, size, segments):
    """Ids of random rectangles over one another, without gaps in the numbers."""
    ids = np.zeros(size, np.int32)
    for number in range(1, segments + 1):
        top, left = generator.integers(0, size[0] - 3), generator.integers(0, size[1] - 3)
        ids[top : top + generator.integers(2, 12), left : left + generator.integers(2, 12)] = number
    return np.unique(ids, return_inverse=True)[1].reshape(size) if (ids == 0).any() else ids * 0


def draw_image(generator, size=(24, 30)):
    """What is answered and what is true: some of it equal, some shifted, of another class, joined or cut; void and crowds."""
    true = draw_map(generator, size, generator.integers(0, 14))
    labels = generator.integers(0, K, true.max())
    crowd = generator.uniform(size=len(labels)) < 0.3
    found = np.roll(true, generator.integers(-1, 2, 2), (0, 1))
    found[generator.uniform(size=size) < 0.1] = 0
    extra = draw_map(generator, size, 4)
    found = np.where((found == 0) & (extra > 0), extra + true.max(), found)
    found[:, : generator.integers(0, 8)] = 0
    kept = np.unique(found[found > 0])
    found = np.searchsorted(np.append(0, kept), found)
    found_labels = np.append(labels, generator.integers(0, K, 99))[kept - 1]
    wrong = generator.uniform(size=len(kept)) < 0.15
    found_labels[wrong] = generator.integers(0, K, wrong.sum())
    return found, found_labels, true, labels, crowd


def count_plainly(found, found_labels, true, labels, crowd):
    """IoU, TP, FP and FN of each class as the published rules say, pixel by pixel."""
    found_info = {k + 1: label for k, label in enumerate(found_labels.tolist())}
    true_info = {k + 1: (label, group) for k, (label, group) in enumerate(zip(labels.tolist(), crowd.tolist()))}
    both, found_area, true_area = Counter(), Counter(), Counter()
    for one, other in zip(true.ravel().tolist(), found.ravel().tolist()):
        both[one, other] += 1
        true_area[one] += 1
        found_area[other] += 1
    iou, tp, fp, fn = ([0.0] * K for _ in range(4))
    true_matched, found_matched = set(), set()
    for (one, other), pixels in sorted(both.items()):
        if one == 0 or other == 0 or true_info[one][1] or true_info[one][0] != found_info[other]:
            continue
        union = found_area[other] + true_area[one] - pixels - both[0, other]
        if pixels / union > 0.5:
            iou[found_info[other]] += pixels / union
            tp[found_info[other]] += 1
            true_matched.add(one)
            found_matched.add(other)
    crowds = {}
    for one, (label, group) in true_info.items():
        if group:
            crowds[label] = one  # a later one takes the place of an earlier one
        elif one not in true_matched:
            fn[label] += 1
    for other, label in found_info.items():
        if other not in found_matched:
            pixels = both[0, other] + (both[crowds[label], other] if label in crowds else 0)
            if not pixels / found_area[other] > 0.5:
                fp[label] += 1
    return [iou, tp, fp, fn]


def average_plainly(counts, labels):
    """PQ, SQ and RQ, the means over the classes that occur; None without one."""
    rows = []
    for label in labels:
        iou, tp, fp, fn = (column[label] for column in counts)
        if tp + fp + fn:
            count = tp + 0.5 * fp + 0.5 * fn
            rows.append((iou / count, iou / tp if tp else 0.0, tp / count))
    return [sum(column) / len(rows) for column in zip(*rows)] if rows else None


def annotate(images, size=(24, 30)):
    """The true segments of images as they stand in data."""
    parts = []
    for _, _, true, labels, crowd in images:
        masks = [Rle.of_patch(true == k, (0, 0), size) for k in range(1, len(labels) + 1)]
        boxes, areas = [mask.box for mask in masks], [mask.area for mask in masks]
        outlines = [mask.to_text().encode() for mask in masks]
        parts.append(OutlinedObjects.of_image(boxes, labels, crowd=crowd, areas=areas, size=size, outlines=outlines))
    return OutlinedObjects.join(parts)


def answer(ids, labels, things=THINGS):
    counts = np.bincount(ids.ravel(), minlength=len(labels) + 1)
    boxes = [Rle.of_patch(ids == k, (0, 0), ids.shape).box for k in range(1, len(labels) + 1)]
    rows = zip(labels, counts[1:].tolist(), boxes)
    segments = tuple(Segment(CLASSES[label], things[label], 0.9, area, box) for label, area, box in rows)
    return Panoptic(ids.astype(np.int32), segments, CLASSES, things)


def measure(images, answers=None, things=THINGS, size=(24, 30), with_source=True) -> PanopticMetric:
    """The metric of images, added in two parts as two processes do."""
    if answers is None:
        answers = [answer(found, labels, things) for found, labels, *_ in images]
    targets, keys = annotate(images, size), [f"{row}.png" for row in range(len(images))]
    pictures = np.zeros((len(images), *size, 3), np.uint8)
    source = Source(contents=Arrays(pictures, Strings(keys)), targets=targets, classes=CLASSES)
    parts = []
    for rows in np.array_split(np.arange(len(images)), 2):
        given = iter([answers[row] for row in rows])
        metric = PanopticMetric(
            CLASSES, things, lambda outputs, frames, given=given: [next(given)], source if with_source else None
        )
        maps = [targets.read_map(row, size) for row in rows] or [np.zeros(size, np.int32)]
        frames = Frames.whole(len(rows), size)
        metric.update(torch.zeros(len(rows), 1), torch.from_numpy(np.stack(maps)), [keys[row] for row in rows], frames)
        parts.append(metric)
    sent = pickle.loads(pickle.dumps(parts[1]))
    assert sent.decode is sent.source is None
    parts[0].merge(sent)
    return parts[0]


@pytest.mark.parametrize("seed", range(20))
def test_counts_and_figures_are_exactly_those_of_the_published_rules(seed):
    generator = np.random.default_rng(seed)
    images = [draw_image(generator) for _ in range(5)]
    plain = [count_plainly(*image) for image in images]
    for image, counts in zip(images, plain):
        matched = match_segments(*image, K)
        assert matched.counts.tolist() == counts
        assert matched.confusion.diagonal()[:K].tolist() == counts[1] and matched.confusion[K, K] == 0
    total = np.sum(plain, 0).tolist()
    figures = measure(images).compute()
    quality, matched, found = average_plainly(total, range(K))
    assert (figures["pq"], figures["sq"], figures["rq"]) == (quality, matched, found)
    assert figures["pq_things"] == average_plainly(total, range(3))[0]
    assert figures["pq_stuff"] == average_plainly(total, range(3, K))[0]


def test_the_random_sets_have_every_case():
    cases = Counter()
    for seed in range(20):
        generator = np.random.default_rng(seed)
        for found, found_labels, true, labels, crowd in (draw_image(generator) for _ in range(5)):
            _, right, false, missed = np.sum(count_plainly(found, found_labels, true, labels, crowd), 1)
            several = Counter(labels[crowd].tolist())
            cases.update(right=right, false=false, missed=missed, ignored=len(found_labels) - right - false)
            cases.update(crowds=int(crowd.sum()), several=sum(count > 1 for count in several.values()))
            cases.update(void=int((true == 0).any()), empty=not len(labels))
    assert min(cases[name] for name in ("right", "false", "missed", "ignored", "crowds", "several", "void")) > 20
    assert cases["empty"]


def rows_of(*counts):
    """A map of one row with so many pixels of each id in turn."""
    return np.concatenate([np.full(pixels, number) for number, pixels in counts])[None]


BY_HAND = {  # true, its labels, its crowds, found, its labels; IoU, TP, FP and FN of class 0
    "half of the union is no match": (rows_of((1, 8), (0, 2)), [0], [0], rows_of((1, 4), (0, 6)), [0], (0, 0, 1, 1)),
    "a pixel more is one": (rows_of((1, 8), (0, 2)), [0], [0], rows_of((1, 5), (0, 5)), [0], (5 / 8, 1, 0, 0)),
    "pixels on void do not count": (rows_of((1, 3), (0, 7)), [0], [0], rows_of((1, 10)), [0], (1, 1, 0, 0)),
    "half on void is false": (rows_of((0, 4), (1, 4)), [1], [0], rows_of((1, 8)), [0], (0, 0, 1, 0)),
    "more than half is ignored": (rows_of((0, 5), (1, 4)), [1], [0], rows_of((1, 9)), [0], (0, 0, 0, 0)),
    "a crowd of the class absorbs": (rows_of((1, 9)), [0], [1], rows_of((1, 9)), [0], (0, 0, 0, 0)),
    "a crowd of another does not": (rows_of((1, 9)), [1], [1], rows_of((1, 9)), [0], (0, 0, 1, 0)),
    "void and crowd together": (rows_of((0, 3), (1, 2), (2, 4)), [0, 1], [1, 0], rows_of((1, 9)), [0], (0, 0, 0, 0)),
    "only the last crowd": (rows_of((1, 6), (2, 3)), [0, 0], [1, 1], rows_of((1, 9)), [0], (0, 0, 1, 0)),
    "two in one": (rows_of((1, 4), (2, 4)), [0, 0], [0, 0], rows_of((1, 8)), [0], (0, 0, 1, 2)),
    "another class": (rows_of((1, 8)), [0], [0], rows_of((1, 8)), [1], (0, 0, 0, 1)),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_rules_by_hand(case):
    true, labels, crowd, found, found_labels, expected = BY_HAND[case]
    given = np.array(found_labels), true, np.array(labels), np.array(crowd, bool)
    counts = match_segments(found, *given, 2).counts
    assert counts[:, 0].tolist() == list(expected)
    assert counts.tolist() == np.array(count_plainly(found, *given))[:, :2].tolist()


def test_a_table_computed_by_hand():
    # class a: one of IoU 0.75, one missed; class b: one false; class d: all right; the others do not occur
    true = rows_of((1, 4), (2, 2), (3, 4))
    found = rows_of((1, 3), (0, 1), (2, 2), (3, 4))
    images = [(found, np.array([0, 1, 3]), true, np.array([0, 0, 3]), np.zeros(3, bool))]
    metric = measure(images, size=(1, 10))
    assert metric.compute() == {
        "pq": (0.75 / 1.5 + 0 + 1) / 3,
        "sq": (0.75 + 0 + 1) / 3,
        "rq": (1 / 1.5 + 0 + 1) / 3,
        "pq_things": 0.25,
        "pq_stuff": 1,
    }
    head, rows = metric.table()
    assert head == ["class", "PQ %", "SQ %", "RQ %", "right", "false", "missed", "kind"]
    assert rows[0] == ("a", "50.0", "75.0", "66.7", "1", "0", "1", "thing")
    assert rows[1] == ("b", "0.0", "0.0", "0.0", "0", "1", "0", "thing")
    assert rows[2] == ("c", "–", "–", "–", "0", "0", "0", "thing")
    assert rows[3] == ("d", "100.0", "100.0", "100.0", "1", "0", "0", "stuff")
    assert metric.confusion[0].tolist() == [1, 1, 0, 0, 0, 0, 0] and metric.confusion.sum() == 3


def test_truth_against_itself_is_1_and_an_empty_answer_0():
    generator = np.random.default_rng(1)
    images = [draw_image(generator) for _ in range(6)]
    truth, empty = [], []
    for row, (_, _, true, _, crowd) in enumerate(images):
        whole = Panoptic.of_objects(annotate(images).of(row), CLASSES, THINGS)
        np.testing.assert_array_equal(whole.ids, true)
        kept = np.flatnonzero(~crowd) + 1  # without crowds
        ids = np.searchsorted(np.append(0, kept), np.where(np.isin(true, kept), true, 0))
        truth.append(Panoptic(ids.astype(np.int32), tuple(whole.segments[k - 1] for k in kept), CLASSES, THINGS))
        empty.append(Panoptic(np.zeros(true.shape, np.int32), (), CLASSES, THINGS))
    assert set(measure(images, truth).compute().values()) == {1.0}
    figures = measure(images, empty).compute()
    assert figures == {"pq": 0, "sq": 0, "rq": 0, "pq_things": 0, "pq_stuff": 0}


@pytest.mark.parametrize("thing", [True, False])
def test_without_things_or_without_stuff_their_figure_is_left_out(thing):
    images = [draw_image(np.random.default_rng(3)) for _ in range(2)]
    figures = EvaluationResult("val", CLASSES, measure(images, things=(thing,) * K), 0).figures
    there, missing = ("pq_things", "pq_stuff") if thing else ("pq_stuff", "pq_things")
    assert figures[there] == figures["pq"] and not any(name.startswith(missing) for name in figures)


def test_without_any_segment_pq_is_not_defined_and_nothing_warns():
    nothing = np.zeros((24, 30), np.int32), np.zeros(0, int), np.zeros((24, 30), np.int32)
    figures = measure([(*nothing, np.zeros(0, int), np.zeros(0, bool))] * 2).compute()
    assert list(figures) == ["pq"] and math.isnan(figures["pq"])


def test_maps_in_place_of_a_source_give_the_same_figures_without_crowds():
    generator = np.random.default_rng(7)
    drawn = [draw_image(generator)[:4] for _ in range(4)]
    images = [(*image, np.zeros(len(image[3]), bool)) for image in drawn]
    assert measure(images, with_source=False).compute() == measure(images).compute()
    crowded = [(*image, np.ones(len(image[3]), bool)) for image in drawn]
    assert (annotate(crowded).read_map(0, (24, 30)) == UNCOUNTED).any()
    assert measure(crowded, with_source=False).counts[:, 3].sum() == 0


def test_intervals_are_drawn_over_images_and_the_worst_images_come_first():
    images = [draw_image(np.random.default_rng(seed)) for seed in range(8)]
    metric = measure(images)
    figures = EvaluationResult("val", CLASSES, metric, 0).figures
    assert figures["pq_low"] < figures["pq"] < figures["pq_high"] and figures["images"] == 8
    once = metric.resample(np.ones((1, 8), np.int64))
    assert {name: values[0] for name, values in once.items()} == pytest.approx(metric.compute(), abs=1e-12)
    quality = [measure([image]).counts.sum((0, 2)) for image in images]
    quality = [iou / (right + (false + missed) / 2) for iou, right, false, missed in quality]
    assert metric.worst(3).tolist() == np.argsort(quality, kind="stable")[:3].tolist()
