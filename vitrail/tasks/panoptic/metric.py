"""Panoptic quality (Kirillov et al. 2019, Panoptic Segmentation), by the rules of COCO's panopticapi.

A true segment and an answered one of its class match where their IoU is above 0.5, without the answer's pixels on void; no
segment has two partners. With TP, FP and FN segments of a class, PQ is the sum of the IoU of its matches divided by
TP + FP / 2 + FN / 2, SQ their mean IoU, and RQ the F1 of segments. Counts are summed over all images; figures are means over the
classes that occur.

N images, R resamples of the images, K classes, M true segments, D answered ones, H and W of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import OutlinedObjects
from vitrail.data.sources.source import Source
from vitrail.tasks.instances.metric import read_truth
from vitrail.tasks.metric import Figures, Metric, Rows, divide, write_percent
from vitrail.tasks.panoptic.answer import Panoptic
from vitrail.tasks.segmentation.metric import mean_over_classes

IOU, RIGHT, FALSE, MISSED = range(4)  # what is kept of each image and class: the sum of IoU, TP, FP and FN
Numbers = NDArray[np.float64]
Indices = NDArray[np.integer]
Decode = Callable[[Tensor, Frames], Sequence[Panoptic]]


class PanopticMetric(Metric):
    """Of segments, in pixels of the pictures: four numbers of each image and class, and the confusion of all.

    Args:
        classes: the names of the classes.
        things: (K,) whether each class is one of things.
        decode: from outputs and frames to answers.
        source: has the segments as they were annotated, by the key of an image. Without it they are those of the maps of
            objects that `update` takes, in which crowds are void.
    """

    resamples = 10_000
    _parts: list[Numbers]  # counts (4, K) of each image

    def __init__(
        self, classes: Sequence[str], things: Sequence[bool], decode: Decode, source: Source | None = None
    ) -> None:
        super().__init__()
        self.classes, self.things, self.decode, self.source = tuple(classes), tuple(things), decode, source
        self.confusion = np.zeros((len(classes) + 1,) * 2, np.int64)  # segments, rows true, the last of each nothing

    def __getstate__(self) -> dict[str, Any]:
        """What `merge` needs, for another rank: neither the model nor the data."""
        return {**self.__dict__, "decode": None, "source": None}

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        """Adds a batch of outputs of a `PanopticSegmenter`, with maps of `PanopticObjects` (B, H, W)."""
        frames = Frames.whole(len(keys), (targets.shape[1], targets.shape[2])) if frames is None else frames
        for row, key in enumerate(keys):
            answer = self.decode(outputs[row : row + 1], frames.take(np.array([row])))[0]
            matched = match_answer(answer, read_truth(self.source, key, targets[row], frames.pictures[row]))
            self._parts.append(matched.counts)
            self.confusion += matched.confusion
        self.keys.extend(keys)

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.confusion += other.confusion

    @property
    def counts(self) -> Numbers:
        """(N, 4, K), from `IOU` to `MISSED`."""
        return np.stack(self._parts)

    def compute(self) -> Figures:
        """``pq sq rq pq_things pq_stuff``, as fractions. What is not defined, as ``pq_things`` without things, is left out."""
        figures = summarize_counts(self.counts.sum(0)[None], self.things)
        return {name: float(each[0]) for name, each in figures.items() if name == "pq" or not np.isnan(each[0])}

    def resample(self, weights: NDArray[np.int64]) -> dict[str, Numbers]:
        counts = self.counts
        drawn = weights.astype(np.float64) @ counts.reshape(len(counts), -1)
        figures = summarize_counts(drawn.reshape(-1, *counts.shape[1:]), self.things)
        return {name: figures[name] for name in self.compute()}

    def table(self) -> tuple[list[str], Rows]:
        """A row for each class with PQ, SQ and RQ, and how many of its segments are right, false and missed."""
        total = self.counts.sum(0)
        listed = zip(self.classes, self.things, *rate_classes(total), *total[RIGHT:].astype(int).tolist())
        head = ["class", "PQ %", "SQ %", "RQ %", "right", "false", "missed", "kind"]
        rows = ((name, *map(write_percent, row[:3]), *map(str, row[3:]), thing) for name, thing, *row in listed)
        return head, [(*row, "thing" if thing else "stuff") for *row, thing in rows]

    def worst(self, most: int) -> NDArray[np.int64]:
        """Indices of the images with the lowest PQ of all segments together, whatever their class; worst first."""
        quality = rate_classes(self.counts.sum(2).T)[0]  # (N,)
        return np.argsort(np.where(np.isnan(quality), 1, quality), kind="stable")[:most]


class Matched(NamedTuple):
    """How the segments of a picture match.

    ``counts`` (4, K) are from `IOU` to `MISSED`. ``confusion`` (K + 1, K + 1) has the true classes as rows, and nothing last.
    A pair that would match but for its class is confused there, and counts as false and missed. ``ious`` (M, D) are those of
    matches, else 0.
    """

    counts: Numbers
    confusion: NDArray[np.int64]
    ious: Numbers


def match_segments(
    found_ids: Indices,
    found_labels: Indices,
    true_ids: Indices,
    true_labels: Indices,
    true_crowd: NDArray[np.bool_],
    classes: int,
) -> Matched:
    """Returns the matches of a picture.

    Crowds never match. An answer without a match is false, unless more than half of it is on void and the crowd of its class; of
    several such crowds only the last counts, as in panopticapi.

    Args:
        found_ids, true_ids: (H, W), k in the pixels of the segment k - 1, 0 in void.
        found_labels, true_labels, true_crowd: of each segment, (D,) and (M,).
        classes: K.
    """
    rows, columns = len(true_labels) + 1, len(found_labels) + 1
    places = true_ids.astype(np.int64) * columns + found_ids
    shared = np.bincount(places.ravel(), minlength=rows * columns).reshape(rows, columns)  # (M + 1, D + 1) pixels
    areas, void, true_areas, shared = shared[:, 1:].sum(0), shared[0, 1:], shared[1:].sum(1), shared[1:, 1:]
    union = areas - void + true_areas[:, None] - shared
    ious = shared / np.maximum(union, 1)
    ious[(ious <= 0.5) | true_crowd[:, None]] = 0
    same = true_labels[:, None] == found_labels  # (M, D)
    crowds = {label: row for row, label in enumerate(true_labels.tolist()) if true_crowd[row]}
    absorbed = void + (shared * same)[[*crowds.values()]].sum(0)
    ignored = (2 * absorbed > areas) & ~(ious * same).any(0)
    ious[:, ignored] = 0
    confusion = np.zeros((classes + 1, classes + 1), np.int64)
    matched, partners = np.nonzero(ious)
    np.add.at(confusion, (true_labels[matched], found_labels[partners]), 1)
    np.add.at(confusion[:, classes], true_labels[~(ious.any(1) | true_crowd)], 1)
    np.add.at(confusion[classes], found_labels[~(ious.any(0) | ignored)], 1)
    sums, right = (
        np.bincount(true_labels[matched], (ious * same)[matched, partners], classes),
        confusion.diagonal()[:classes],
    )
    false, missed = confusion[:, :classes].sum(0) - right, confusion[:classes].sum(1) - right
    return Matched(np.stack([sums, right, false, missed]), confusion, ious * same)


def match_answer(answer: Panoptic, objects: OutlinedObjects) -> Matched:
    """Returns the matches of the answer for one picture with its annotated segments."""
    truth = Panoptic.of_objects(objects, answer.classes, answer.things)
    found, true = (answer.ids, answer.labels), (truth.ids, truth.labels)
    return match_segments(*found, *true, objects.crowd, len(answer.classes))


def rate_classes(counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """PQ, SQ and RQ, NaN for a class without segments, true or answered: (..., 4, K) -> (..., K) each."""
    ious, right, false, missed = (counts[..., row, :] for row in range(4))
    count = right + (false + missed) / 2
    matched = np.where(count > 0, ious / np.maximum(right, 1), np.nan)
    return divide(ious, count), matched, divide(right, count)


def summarize_counts(counts: Numbers, things: Sequence[bool]) -> dict[str, Numbers]:
    """The figures from sums over images (R, 4, K): (R,) each, NaN without a class that occurs."""
    quality, matched, found = rate_classes(counts)
    is_thing = np.array(things, bool)
    columns = {"pq": quality, "sq": matched, "rq": found}
    columns |= {"pq_things": quality[:, is_thing], "pq_stuff": quality[:, ~is_thing]}
    return {name: mean_over_classes(values) for name, values in columns.items()}
