"""Average precision and recall of detections as COCO defines them, the best threshold, and the kinds of errors.

B images of a batch, N in all, D detections and M objects of an image, K classes, A ranges of area, T thresholds of IoU, R
resamples of the images. Boxes are (x0, y0, x1, y1) in pixels. What is not defined, as the precision of a class without objects,
is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import Objects
from vitrail.images.rle import Rle
from vitrail.tasks.detection.answer import Detections
from vitrail.tasks.detection.matching import (
    AREAS,
    BACKGROUND,
    CLASS,
    ERRORS,
    IOUS,
    RIGHT,
    UNCOUNTED,
    Detected,
    Indices,
    Matches,
    Numbers,
    Truth,
    box_areas,
    match,
)
from vitrail.tasks.metric import Figures, Metric, Rows, as_array, mean_of_defined, write_percent

RECALLS = np.linspace(0.0, 1.0, 101)
LISTED = (1, 10, 100)  # detections of an image and class that average recall takes
TINY = np.spacing(1)  # in the divisor of a precision, as pycocotools has it
HALF, THREE_QUARTERS = 0, 5  # of IOUS
CELLS = 4_000_000  # weighted detections in memory at a time


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision and recall by threshold, from the highest score to the lowest, a point for each distinct score (points,)."""

    scores: Numbers
    precision: Numbers
    recall: Numbers
    f1: Numbers

    @property
    def best(self) -> int | None:
        """The point with the largest F1, the highest threshold of several; None without any."""
        return int(self.f1.argmax()) if len(self.f1) and not np.isnan(self.f1[0]) else None


def average_precision(matches: Matches, classes: int, *, areas: int = 1, weights: NDArray | None = None) -> Numbers:
    """The mean of the best precision at `RECALLS` or more, for the first so many of `AREAS`: (R, K, A, T).

    ``weights`` (R, N) say how often each image was drawn, by default once. The result is that of the images drawn.
    """
    weights = np.ones((1, matches.images)) if weights is None else weights
    found = np.full((len(weights), classes, areas, len(IOUS)), np.nan)
    for label in range(classes):
        rows = _rank_all(matches, label)
        owners, outcomes = matches.owners[rows], matches.outcomes[rows]
        for area in range(areas):
            objects = matches.object_owners[(matches.object_labels == label) & matches.counted[:, area]]
            positives = weights[:, objects].sum(1)  # (R,)
            if not len(objects):
                continue
            for threshold in range(len(IOUS)):
                outcome = outcomes[:, area, threshold]
                found[:, label, area, threshold] = _average(owners, outcome, positives, weights)
    return found


def _average(owners: Indices, outcome: np.ndarray, positives: NDArray[Any], weights: NDArray[Any]) -> Numbers:
    """Of one class, range and threshold: detections (D,) by decreasing score, objects (R,), weights (R, N) -> (R,)."""
    right = np.flatnonzero(outcome == RIGHT)
    if not len(right):
        return np.where(positives > 0, 0.0, np.nan)
    # what counts, as far as the last that is right: what follows changes neither the recall nor the best precision
    kept = np.flatnonzero(outcome[: right[-1] + 1] != UNCOUNTED)
    is_right = outcome[kept] == RIGHT
    drawn = weights[:, owners[kept]]  # (R, kept)
    seen = np.cumsum(drawn, axis=1)[:, is_right]
    hits = np.cumsum(drawn[:, is_right], axis=1)  # (R, right)
    precision = hits / (seen + TINY)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(invalid="ignore"):  # a class that was not drawn
        recall = hits / positives[:, None]
    reached = np.searchsorted(RECALLS, recall, side="right")  # how many of the recalls that are asked for
    values = (best * np.diff(reached, axis=1, prepend=0)).sum(1) / len(RECALLS)
    return np.where(positives > 0, values, np.nan)


def average_recall(matches: Matches, classes: int, *, area: int = 0, most: int = LISTED[-1]) -> Numbers:
    """The share of objects that the best ``most`` detections of each image and class find: (K, T)."""
    objects = np.bincount(matches.object_labels[matches.counted[:, area]], minlength=classes)
    listed = matches.ranks < most
    right = matches.outcomes[listed, area] == RIGHT  # (D, T)
    hits = np.zeros((classes, len(IOUS)))
    np.add.at(hits, matches.labels[listed], right)
    return np.where(objects[:, None] > 0, hits / np.maximum(objects, 1)[:, None], np.nan)


def summarize_detections(matches: Matches, classes: int) -> dict[str, float]:
    """COCO's twelve figures: AP, AP at IoU 0.5 and 0.75 and by size of the object, AR by detections an image and by size."""
    precision = average_precision(matches, classes, areas=len(AREAS))[0]  # (K, A, T)
    figures = {"ap": precision[:, 0], "ap50": precision[:, 0, HALF], "ap75": precision[:, 0, THREE_QUARTERS]}
    sizes = list(enumerate(AREAS))[1:]
    figures |= {f"ap_{size}": precision[:, area] for area, size in sizes}
    figures |= {f"ar_{most}": average_recall(matches, classes, most=most) for most in LISTED}
    figures |= {f"ar_{size}": average_recall(matches, classes, area=area) for area, size in sizes}
    return {name: mean_of_defined(values) for name, values in figures.items()}


def trace_curve(matches: Matches, label: int | None = None, threshold: int = HALF) -> Curve:
    """The curve of a class, or of all classes with one threshold of the score, at one of `IOUS`."""
    rows = _rank_all(matches, label)
    outcome = matches.outcomes[rows, 0, threshold]
    rows, outcome = rows[outcome != UNCOUNTED], outcome[outcome != UNCOUNTED]
    scores = matches.scores[rows]
    steps = np.flatnonzero(np.append(np.diff(scores) != 0, True)[: len(scores)])  # the last of every tie
    hits = np.cumsum(outcome == RIGHT)[steps]
    counted = matches.counted[:, 0] & ((matches.object_labels == label) if label is not None else True)
    objects = counted.sum()
    recall, f1 = (
        top / bottom if objects else np.full(len(steps), np.nan)
        for top, bottom in ((hits, objects), (2 * hits, steps + 1 + objects))
    )
    return Curve(scores[steps], hits / (steps + 1), recall, f1)


def count_errors(matches: Matches, threshold: float) -> dict[str, int]:
    """How many errors of each kind of `ERRORS` the detections with at least this score have, at an IoU of 0.5.

    Missed are the objects that no detection found, took for another class or was badly placed on (Bolya et al. 2020).
    """
    kept = matches.errors[(matches.scores >= threshold) & (matches.errors >= 0)]
    counts = np.bincount(kept, minlength=BACKGROUND + 1).tolist()
    missed = int((matches.counted[:, 0] & (matches.claims < threshold).all(1)).sum())
    return dict(zip(ERRORS, [*counts, missed]))


def confuse(matches: Matches, classes: int, threshold: float) -> Indices:
    """Objects by true class (rows) and answered class (columns) for a threshold of the score; the last of each is nothing.

    A detection stands in the row of the object that it found or, at the same IoU of 0.5, took for another class, else in that
    of nothing. An object that nobody found or took for another class stands in the column of nothing. One that was both found
    and taken for another class stands in two columns.
    """
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    outcome = matches.outcomes[:, 0, HALF]
    kept = (matches.scores >= threshold) & (outcome != UNCOUNTED)
    true = np.where(outcome == RIGHT, matches.labels, np.where(matches.errors == CLASS, matches.mistaken, classes))
    np.add.at(counts, (true[kept], matches.labels[kept]), 1)
    lost = matches.counted[:, 0] & (matches.claims[:, :2] < threshold).all(1)
    np.add.at(counts[:, classes], matches.object_labels[lost], 1)
    return counts


def _rank_all(matches: Matches, label: int | None) -> Indices:
    """The detections of a class, or of all, by decreasing score; equal ones in the order of the images."""
    rows = np.arange(len(matches.labels)) if label is None else np.flatnonzero(matches.labels == label)
    return rows[np.argsort(-matches.scores[rows], kind="stable")]


class BoxMetric(Metric):
    """Of boxes with a class and a score, evaluated in pixels of the pictures as COCO does; see `match`.

    Args:
        classes: the names of the classes.
        size: (height, width) of the model's input.
        detect: from the outputs of the task to detections (B, D, 6), as `update` takes them; by default they are such.
    """

    resamples = 300
    _parts: list[Matches]

    def __init__(
        self, classes: Sequence[str], size: tuple[int, int], detect: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.classes, self.size, self.detect = tuple(classes), size, detect

    def __getstate__(self) -> dict[str, Any]:
        """What `merge` needs, for another rank: not the model."""
        return {**self.__dict__, "detect": None}

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        """Adds a batch.

        Args:
            outputs: (B, D, 6): a box in pixels of the input, its score and label; a score of 0 is filling.
            targets: (B, M, 6 or 7): label, crowd, a box in pixels of the picture, and the area of the object, by which it is
                small, medium or large; without it that of the box. Rows of label -1 are filling.
            keys: the names of the images.
            frames: the regions that the images show; by default whole pictures of the input's size.
        """
        found = as_array(outputs if self.detect is None else self.detect(outputs))
        frames = Frames.whole(len(found), self.size) if frames is None else frames
        placed = place_boxes(found[..., :4], frames, self.size)
        for boxes, (scores, labels), truth in zip(placed, found[..., 4:].transpose(0, 2, 1), read_truths(targets)):
            kept = scores > 0
            detected = Detected(labels[kept].astype(np.int64), scores[kept].astype(np.float64), boxes[kept])
            self._parts.append(match(detected, truth))
        self.keys.extend(keys)

    @property
    def matches(self) -> Matches:
        """Of all images, in the order of the keys."""
        if len(self._parts) > 1:
            self._parts = [Matches.join(self._parts)]
        return self._parts[0]

    def curve(self, label: int | None = None) -> Curve:
        """Precision and recall at an IoU of 0.5 by threshold of the score, of one class or of all."""
        return trace_curve(self.matches, label)

    @property
    def threshold(self) -> float:
        """The threshold of the score with the largest F1 of all classes at an IoU of 0.5; NaN without answers or objects."""
        return _describe_best(self.curve())["threshold"]

    @property
    def errors(self) -> dict[str, int]:
        """How many errors of each kind there are at `threshold`."""
        return count_errors(self.matches, self.threshold)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(K + 1, K + 1) at `threshold`: rows true, the last row and column nothing."""
        return confuse(self.matches, len(self.classes), self.threshold)

    def compute(self) -> Figures:
        """COCO's twelve: ``ap ap50 ap75 ap_small ap_medium ap_large ar_1 ar_10 ar_100 ar_small ar_medium ar_large``; then the
        ``threshold`` with the largest F1, and the ``precision recall f1`` there, at an IoU of 0.5. What is not defined, as
        ``ap_small`` without small objects, is left out.
        """
        figures = {**summarize_detections(self.matches, len(self.classes)), **_describe_best(self.curve())}
        return {name: value for name, value in figures.items() if name == "ap" or not np.isnan(value)}

    def summarize(self) -> Figures:
        precision = average_precision(self.matches, len(self.classes))[0, :, 0]  # (K, T)
        return {"ap": mean_of_defined(precision), "ap50": mean_of_defined(precision[:, HALF])}

    def resample(self, weights: NDArray[np.int64]) -> dict[str, Numbers]:
        matches, count = self.matches, len(self.classes)
        most = np.bincount(matches.labels, minlength=1).max()
        parts = np.array_split(weights, max(-(-len(weights) * int(most) // CELLS), 1))
        precision = [average_precision(matches, count, weights=part)[:, :, 0] for part in parts if len(part)]
        drawn = np.concatenate(precision)  # (R, K, T)
        columns = {"ap": drawn, "ap50": drawn[..., HALF]}
        return {name: np.array(list(map(mean_of_defined, values))) for name, values in columns.items()}

    def table(self) -> tuple[list[str], Rows]:
        """A row for each class with AP, AP50 and average recall, its threshold with the largest F1 and the precision and recall
        there, and the number of its objects that count.
        """
        matches = self.matches
        precision = average_precision(matches, len(self.classes))[0, :, 0]  # (K, T)
        recall = average_recall(matches, len(self.classes)).mean(1)
        objects = np.bincount(matches.object_labels[matches.counted[:, 0]], minlength=len(self.classes))
        rows: Rows = []
        for label, name in enumerate(self.classes):
            best = _describe_best(self.curve(label))
            shares = precision[label].mean(), precision[label, HALF], recall[label], best["precision"], best["recall"]
            cells = list(map(write_percent, shares))
            threshold = "–" if np.isnan(best["threshold"]) else f"{best['threshold']:.3f}"
            rows.append((name, *cells[:3], threshold, *cells[3:], str(int(objects[label]))))
        return ["class", "AP %", "AP50 %", "AR %", "best threshold", "precision %", "recall %", "objects"], rows

    def worst(self, most: int) -> NDArray[np.int64]:
        """Indices of the images with the most errors at `threshold`, missed objects included, worst first; none without."""
        matches, threshold = self.matches, self.threshold
        wrong = matches.owners[(matches.errors >= 0) & (matches.scores >= threshold)]
        missed = matches.object_owners[matches.counted[:, 0] & ~(matches.claims[:, 0] >= threshold)]
        counts = np.bincount(np.concatenate([wrong, missed]), minlength=matches.images)
        order = np.argsort(-counts, kind="stable")
        return order[counts[order] > 0][:most]


def place_boxes(boxes: NDArray[np.floating], frames: Frames, size: tuple[int, int]) -> Numbers:
    """Boxes (B, D, 4) in pixels of inputs of ``size`` (height, width) as boxes of the pictures, clipped to these."""
    corners = boxes.reshape(len(boxes), -1, 2).astype(np.float64)
    limits = frames.pictures[:, None, ::-1]  # (B, 1, 2) width and height
    return np.clip(frames.move(corners, size), 0, limits).reshape(boxes.shape)


def match_answer(
    answer: Detections,
    objects: Objects,
    classes: Sequence[str],
    masks: tuple[Sequence[Rle], Sequence[Rle]] | None = None,
) -> Matches:
    """Returns the matches of the answer for one picture with its objects, by boxes or by the ``masks`` of both."""
    index = {name: label for label, name in enumerate(classes)}
    labels = np.array([index[label] for label in answer.labels], np.int64)
    found, true = masks or (None, None)
    detected = Detected(labels, answer.scores.astype(np.float64), answer.boxes, found)
    areas = objects.areas.astype(np.float64)
    return match(detected, Truth(objects.labels.astype(np.int64), objects.crowd, areas, objects.boxes, true))


def read_truths(targets: Tensor | NDArray[np.floating]) -> list[Truth]:
    """The objects of each image from (B, M, 6 or 7), as `BoxMetric.update` takes them."""
    truths = []
    for rows in as_array(targets):
        rows = rows[rows[:, 0] >= 0].astype(np.float64)
        boxes = rows[:, 2:6]
        areas = rows[:, 6] if rows.shape[1] == 7 else box_areas(boxes)
        truths.append(Truth(rows[:, 0].astype(np.int64), rows[:, 1] > 0, areas, boxes))
    return truths


def _describe_best(curve: Curve) -> Figures:
    """The threshold with the largest F1, and precision, recall and F1 there; NaN without one."""
    best = curve.best
    columns = {"threshold": curve.scores, "precision": curve.precision, "recall": curve.recall, "f1": curve.f1}
    return {name: float("nan") if best is None else float(values[best]) for name, values in columns.items()}
