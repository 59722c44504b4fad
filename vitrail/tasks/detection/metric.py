"""What judging detections keeps of every image, and the figures from it.

B images, D detections and M objects of an image, K classes, N images in all. Boxes are (x0, y0, x1, y1) in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.tasks.detection.average_precision import (
    HALF,
    Curve,
    average_precision,
    average_recall,
    confuse,
    count_errors,
    summarize_detections,
    trace_curve,
)
from vitrail.tasks.detection.matching import Detected, Matches, Truth, box_areas, match
from vitrail.tasks.metric import Figures, Metric, as_array, mean_of_defined, write_percent

CELLS = 4_000_000  # weighted detections in memory at a time
Numbers = NDArray[np.float64]


class BoxMetric(Metric):
    """Of boxes with a class and a score, judged in pixels of the pictures as COCO does; see `match`.

    Args:
        classes: the names of the classes.
        size: (height, width) of the model's input.
        detect: from the outputs of the task to detections (B, D, 6), as `update` takes them; by default they are such.
    """

    resamples = 300

    def __init__(
        self, classes: Sequence[str], size: tuple[int, int], detect: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.classes, self.size, self.detect = tuple(classes), size, detect
        self.keys: list[str] = []
        self._parts: list[Matches] = []

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

    def merge(self, other: Self) -> None:
        self.keys.extend(other.keys)
        self._parts += other._parts

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
        curve = self.curve()
        return float("nan") if curve.best is None else float(curve.scores[curve.best])

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
        matches = self.matches
        most = np.bincount(matches.labels, minlength=1).max()
        parts = np.array_split(weights, max(-(-len(weights) * int(most) // CELLS), 1))
        precision = [
            average_precision(matches, len(self.classes), weights=part)[:, :, 0] for part in parts if len(part)
        ]
        drawn = np.concatenate(precision)  # (R, K, T)
        return {
            "ap": np.array([mean_of_defined(each) for each in drawn]),
            "ap50": np.array([mean_of_defined(each) for each in drawn[..., HALF]]),
        }

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """A row for each class with AP, AP50 and average recall, its threshold with the largest F1 and the precision and recall
        there, and the number of its objects that count.
        """
        matches = self.matches
        precision = average_precision(matches, len(self.classes))[0, :, 0]  # (K, T)
        recall = average_recall(matches, len(self.classes)).mean(1)
        objects = np.bincount(matches.object_labels[matches.counted[:, 0]], minlength=len(self.classes))
        rows: list[tuple[str, ...]] = []
        for label, name in enumerate(self.classes):
            best = _describe_best(self.curve(label))
            shares = precision[label].mean(), precision[label, HALF], recall[label], best["precision"], best["recall"]
            cells = [write_percent(share) for share in shares]
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
    names = ("threshold", "precision", "recall", "f1")
    if curve.best is None:
        return dict.fromkeys(names, float("nan"))
    return dict(
        zip(names, (float(each[curve.best]) for each in (curve.scores, curve.precision, curve.recall, curve.f1)))
    )
