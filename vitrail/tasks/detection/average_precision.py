"""Average precision and recall of detections as COCO defines them, the best threshold, and the kinds of errors, from matches.

D detections, M objects, N images, K classes, A ranges of area, T thresholds of IoU, R resamples of the images. What is not
defined, as the precision of a class without objects, is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.tasks.detection.matching import (
    AREAS,
    BACKGROUND,
    CLASS,
    ERRORS,
    IOUS,
    RIGHT,
    UNCOUNTED,
    Indices,
    Matches,
    Numbers,
)
from vitrail.tasks.metric import mean_of_defined

RECALLS = np.linspace(0.0, 1.0, 101)
LISTED = (1, 10, 100)  # detections of an image and class that average recall takes
TINY = np.spacing(1)  # in the divisor of a precision, as pycocotools has it
HALF, THREE_QUARTERS = 0, 5  # of IOUS


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


def average_precision(
    matches: Matches, classes: int, *, areas: int = 1, weights: NDArray[Any] | None = None
) -> Numbers:
    """The mean of the best precision at `RECALLS` or more: (R, K, A, T).

    Args:
        areas: of `AREAS`, the first so many.
        weights: (R, N) how often each image was drawn; once each by default. The result is that of the images drawn.
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
    figures = {
        "ap": mean_of_defined(precision[:, 0]),
        "ap50": mean_of_defined(precision[:, 0, HALF]),
        "ap75": mean_of_defined(precision[:, 0, THREE_QUARTERS]),
    }
    sizes = list(enumerate(AREAS))[1:]
    figures |= {f"ap_{size}": mean_of_defined(precision[:, area]) for area, size in sizes}
    figures |= {f"ar_{most}": mean_of_defined(average_recall(matches, classes, most=most)) for most in LISTED}
    return figures | {
        f"ar_{size}": mean_of_defined(average_recall(matches, classes, area=area)) for area, size in sizes
    }


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
