"""Detections matched with the objects of an image as COCO does, and the kind of every error.

D detections and M objects of an image, A ranges of area, T thresholds of IoU. Boxes are (x0, y0, x1, y1) in pixels.

COCO's rules (Lin et al. 2014; pycocotools is the oracle of the tests): the best `MAX_DETECTIONS` of each class take objects of
their class in the order of their scores, each the free one with the largest IoU, of equal ones the last. Objects that do not
count (crowds, and those outside of the range of area) are taken only if no other is within reach. Who takes such an object is
neither right nor wrong, nor is a detection outside of the range that takes none. A crowd can be taken any number of times, and
what overlaps it is measured as a share of the detection. pycocotools takes a match with an annotation of id 0 for none; here
objects have no ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from vitrail.images.rle import Rle, mask_ious

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
IOUS = np.linspace(0.5, 0.95, 10)
# in pixels, both ends included
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
MAX_DETECTIONS = 100  # detections of a class and an image
WRONG, RIGHT, UNCOUNTED = 0, 1, 2  # outcomes of a detection
# the kinds of errors (Bolya et al. 2020, TIDE: a general toolbox for identifying object detection errors)
ERRORS = ("class", "location", "both", "duplicate", "background", "missed")
CLASS, LOCATION, BOTH, DUPLICATE, BACKGROUND = range(5)
NONE = -1
FOREGROUND = 0.1  # IoU below which a detection has nothing to do with an object


@dataclass(frozen=True, eq=False)
class Detected:
    """The detections of an image: labels (D,), scores (D,), boxes (D, 4), and masks where these are matched."""

    labels: Indices
    scores: Numbers
    boxes: NDArray[np.floating]
    masks: Sequence[Rle] | None = None


@dataclass(frozen=True, eq=False)
class Truth:
    """The objects of an image: labels (M,), crowd (M,), areas (M,) in pixels, boxes (M, 4), and masks for those of detections."""

    labels: Indices
    crowd: Flags
    areas: Numbers
    boxes: NDArray[np.floating]
    masks: Sequence[Rle] | None = None


@dataclass(frozen=True, eq=False)
class Matches:
    """The matches of ``images`` images: D detections, at most `MAX_DETECTIONS` of each class and image, and M objects.

    Those of an image are together, its detections by decreasing score.

    Args:
        owners: (D,) the image.
        labels: (D,)
        scores: (D,)
        ranks: (D,) the place among the detections of its class and image, from 0.
        outcomes: (D, A, T) `WRONG`, `RIGHT` or `UNCOUNTED`.
        errors: (D,) what is wrong at an IoU of 0.5, `CLASS` to `BACKGROUND`; `NONE` where nothing is, or it does not count.
        mistaken: (D,) the class of the object that an error of class was made on, else `NONE`.
        object_owners: (M,) the image.
        object_labels: (M,)
        counted: (M, A) whether the object counts in each range.
        claims: (M, 3) the largest score of the detections that are right about the object at an IoU of 0.5, take it for
            another class, and are badly placed on it; -inf for none.
    """

    images: int
    owners: Indices
    labels: Indices
    scores: Numbers
    ranks: Indices
    outcomes: NDArray[np.int8]
    errors: NDArray[np.int8]
    mistaken: Indices
    object_owners: Indices
    object_labels: Indices
    counted: Flags
    claims: Numbers

    @classmethod
    def join(cls, parts: Sequence[Matches]) -> Matches:
        """At least one part, one after the other."""
        first = np.cumsum([0, *(part.images for part in parts)])
        names = [field.name for field in fields(cls)][1:]  # all but ``images``
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        for name in ("owners", "object_owners"):
            sizes = [len(getattr(part, name)) for part in parts]
            columns[name] = columns[name] + np.repeat(first[:-1], sizes)
        return cls(images=int(first[-1]), **columns)


def match(detected: Detected, truth: Truth) -> Matches:
    """The matches of one image, by masks where both have them, else by boxes."""
    order = np.argsort(-detected.scores, kind="stable")
    ranks = _rank(detected.labels[order])
    order, ranks = order[ranks < MAX_DETECTIONS], ranks[ranks < MAX_DETECTIONS]
    labels, scores = detected.labels[order], detected.scores[order].astype(np.float64)
    if detected.masks is None or truth.masks is None:
        boxes = detected.boxes[order].astype(np.float64)
        iou, areas = box_iou(boxes, truth.boxes.astype(np.float64), truth.crowd), box_areas(boxes)
    else:
        masks = [detected.masks[place] for place in order.tolist()]
        iou = mask_ious(masks, truth.masks, truth.crowd)
        areas = np.array([mask.area for mask in masks], np.float64)
    ranges = np.array(list(AREAS.values()))  # (A, 2)
    uncounted = truth.crowd | _is_outside(truth.areas, ranges)  # (A, M)
    own = labels[:, None] == truth.labels  # (D, M)
    taken = assign(np.where(own, iou, -1), truth.crowd, uncounted, IOUS)  # (D, A, T)
    passed = np.where(_is_outside(areas, ranges).T[:, :, None], UNCOUNTED, WRONG)  # (D, A, 1)
    outcomes = np.broadcast_to(passed, taken.shape).astype(np.int8)
    row, area, threshold = np.nonzero(taken != NONE)
    outcomes[row, area, threshold] = np.where(uncounted[area, taken[row, area, threshold]], UNCOUNTED, RIGHT)
    counted = ~uncounted[0]
    errors, subjects = explain_errors(np.where(counted, iou, -1), own, wrong=outcomes[:, 0, 0] == WRONG)
    claims = np.full((len(counted), 3), -np.inf)
    claimed = [taken[:, 0, 0], *(np.where(errors == kind, subjects, NONE) for kind in (CLASS, LOCATION))]
    for column, objects in enumerate(claimed):
        np.maximum.at(claims[:, column], objects[objects != NONE], scores[objects != NONE])
    mistaken = np.full(len(labels), NONE)
    mistaken[errors == CLASS] = truth.labels[subjects[errors == CLASS]]
    return Matches(
        images=1,
        owners=np.zeros(len(labels), np.int64),
        labels=labels,
        scores=scores,
        ranks=ranks,
        outcomes=outcomes,
        errors=errors,
        mistaken=mistaken,
        object_owners=np.zeros(len(counted), np.int64),
        object_labels=truth.labels,
        counted=~uncounted.T,
        claims=claims,
    )


def assign(iou: Numbers, crowd: Flags, uncounted: Flags, thresholds: Numbers) -> Indices:
    """The object that each detection takes, or `NONE`: (D, A, T).

    Args:
        iou: (D, M), the best detection first; below 0 where the object is of another class.
        crowd: (M,) objects that can be taken more than once.
        uncounted: (A, M) objects that are taken only for want of others.
        thresholds: (T,) of IoU, increasing.
    """
    free = np.ones((len(uncounted), len(thresholds), iou.shape[1]), bool)  # (A, T, M)
    taken = np.full((len(iou), *free.shape[:2]), NONE)
    ranges, levels = np.ogrid[: free.shape[0], : free.shape[1]]
    within = iou >= thresholds[0]
    for row in np.flatnonzero(within.any(1)):
        near = np.flatnonzero(within[row])
        near = near[np.argsort(iou[row, near], kind="stable")][::-1]  # the best first, of equal ones the last
        possible = free[:, :, near] & (iou[row, near] >= thresholds[:, None])
        counts = ~uncounted[:, None, near]
        choices = np.concatenate([possible & counts, possible & ~counts], 2)  # (A, T, 2 x near)
        pick = choices.argmax(2)
        takes = choices.any(2)
        chosen = near[pick % len(near)]
        taken[row] = np.where(takes, chosen, NONE)
        free[ranges, levels, chosen] &= ~takes | crowd[chosen]
    return taken


def explain_errors(iou: Numbers, own: Flags, wrong: Flags) -> tuple[NDArray[np.int8], Indices]:
    """The kind of each error, and the object that an error of class or location was made on, `NONE` without one: (D,), (D,).

    The first that holds: badly placed on an object of its class; well placed on one of another class; a second detection of an
    object; on nothing; the rest are badly placed on an object of another class.

    Args:
        iou: (D, M), below 0 for objects that do not count.
        own: (D, M) whether the object is of the detection's class.
        wrong: (D,)
    """
    found = IOUS[0]
    alike, other = (np.where(mask, iou, -1.0) for mask in (own, ~own))
    of_class, of_others = (each.max(1, initial=-1.0) for each in (alike, other))  # (D,)
    kinds = [
        (LOCATION, (of_class >= FOREGROUND) & (of_class < found)),
        (CLASS, of_others >= found),
        (DUPLICATE, of_class >= found),
        (BACKGROUND, np.maximum(of_class, of_others) < FOREGROUND),
    ]
    errors = np.select([holds for _, holds in kinds], [kind for kind, _ in kinds], BOTH)
    errors = np.where(wrong, errors, NONE).astype(np.int8)
    subjects = np.full(len(iou), NONE)
    for kind, values in ((LOCATION, alike), (CLASS, other)):
        rows = np.flatnonzero(errors == kind)
        subjects[rows] = values[rows].argmax(1) if len(rows) else NONE
    return errors, subjects


def box_iou(boxes: Numbers, others: Numbers, crowd: Flags) -> Numbers:
    """Intersection over union of boxes (D, 4) and (M, 4), in float64: (D, M).

    Where the other is a crowd (M,), the intersection is divided by the area of the box itself.
    """
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])  # (D, M, 2)
    shared = sides.clip(0).prod(2)
    own, theirs = box_areas(boxes)[:, None], box_areas(others)
    whole = np.where(crowd, own, own + theirs - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0)


def box_areas(boxes: Numbers) -> Numbers:
    """(n, 4) -> (n,)"""
    return (boxes[:, 2:] - boxes[:, :2]).prod(1)


def _rank(labels: Indices) -> Indices:
    """The place of each detection among those of its label: (D,)."""
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], labels[order], side="left")
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - first
    return ranks


def _is_outside(areas: Numbers, ranges: Numbers) -> Flags:
    """Whether the areas (n,) lie outside of each of the ranges (A, 2): (A, n)."""
    return (areas < ranges[:, :1]) | (areas > ranges[:, 1:])
