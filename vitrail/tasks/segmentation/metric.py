"""What evaluating label maps keeps of every image, and the figures from it.

N images, K classes, R resamples of the images, H and W of a picture. The figures are quotients of sums over all images: mean
IoU is the mean over classes of the sum of intersections by the sum of unions, never a mean over images. A class that is
neither true nor predicted in any of them is NaN, and left out of means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import LabelMaps
from vitrail.errors import DataError
from vitrail.images.masks import IGNORED
from vitrail.tasks.dense.pixels import compare_pixels, sample_pixels
from vitrail.tasks.metric import Figures, Metric, Rows, confusion, divide, write_percent

TOLERANCE = 0.0075  # of the picture's diagonal, that a boundary may be off (Csurka et al. 2013)
# What is kept of each image and class: the pixels that are right, predicted and true; and on boundaries those that are predicted,
# predicted and near a true one, true, true and near a predicted one.
RIGHT, PREDICTED, TRUE, EDGE, EDGE_RIGHT, TRUE_EDGE, TRUE_EDGE_FOUND = range(7)
Numbers = NDArray[np.float64]
Labels = NDArray[np.uint8]


class MapMetric(Metric):
    """Of a class for every pixel, at the sizes of the pictures: a few counts of each image, and the confusion of all."""

    summary, resamples = ("miou", "pixel_accuracy"), 10_000
    _parts: list[NDArray[np.int64]]  # counts (7, K) of each image

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.confusion = np.zeros((len(classes),) * 2, np.int64)  # pixels, rows true

    def update(
        self, outputs: Tensor, targets: Sequence[Labels] | Tensor, keys: Sequence[str], frames: Frames | None = None
    ) -> None:
        """Adds a batch: logits (B, K, h, w) at the size of the input, and the classes of the pixels of each picture, (H, W);
        255 is ignored, and may fill up rows and columns beyond the picture. By default the images show whole pictures.

        Raises `DataError` for a class that the model does not have, or a map of another size than its picture.
        """
        if frames is None:
            sizes = np.array([target.shape for target in targets], np.float64).reshape(-1, 2)
            frames = Frames(np.concatenate([np.zeros_like(sizes), sizes[:, ::-1]], 1), sizes)
        answers = sample_pixels(outputs, frames, find_classes)
        for key, (found, true) in zip(keys, compare_pixels(answers, targets, keys, LabelMaps.pixel_format)):
            unknown = true[(true != IGNORED) & (true >= len(self.classes))]
            if len(unknown):
                what = f"the mask of {key} has the class {unknown[0]}, the model has {len(self.classes)} classes"
                raise DataError(what, "evaluate on data with the classes of the model")
            self._add(found, true)
        self.keys.extend(keys)

    def _add(self, predicted: Labels, true: Labels) -> None:
        ignored = true == IGNORED
        answered, asked = (each[~ignored].astype(np.int64) for each in (predicted, true))
        counts = confusion(answered, asked, len(self.classes))
        self.confusion += counts
        edges = count_boundaries(np.where(ignored, IGNORED, predicted).astype(np.uint8), true, len(self.classes))
        self._parts.append(np.stack([np.diag(counts), counts.sum(0), counts.sum(1), *edges]))

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.confusion += other.confusion

    @property
    def counts(self) -> NDArray[np.int64]:
        """(N, 7, K), from `RIGHT` to `TRUE_EDGE_FOUND`."""
        return np.stack(self._parts)

    def compute(self) -> Figures:
        """``miou pixel_accuracy mean_accuracy frequency_weighted_iou dice boundary_f``, as fractions."""
        return {name: float(values[0]) for name, values in summarize_counts(self.counts.sum(0)[None]).items()}

    def resample(self, weights: NDArray[np.int64]) -> dict[str, Numbers]:
        counts = self.counts
        drawn = weights.astype(np.float64) @ counts.reshape(len(counts), -1)  # exact: whole numbers below 2^53
        return summarize_counts(drawn.reshape(-1, *counts.shape[1:]))

    def table(self) -> tuple[list[str], Rows]:
        """A row for each class with IoU, precision, recall and boundary F, its share of the pixels and its images."""
        counts = self.counts
        total = counts.sum(0)
        columns = [
            *(intersection_over_union(total), divide(total[RIGHT], total[PREDICTED])),
            *(divide(total[RIGHT], total[TRUE]), boundary_f(total)),
            divide(total[TRUE], np.broadcast_to(total[TRUE].sum(), total[TRUE].shape)),
        ]
        listed = zip(self.classes, (counts[:, TRUE] > 0).sum(0), *columns)
        rows: Rows = [(name, *map(write_percent, shares), str(int(images))) for name, images, *shares in listed]
        return ["class", "IoU %", "precision %", "recall %", "boundary F %", "pixels %", "images"], rows

    def worst(self, most: int) -> NDArray[np.int64]:
        """Indices of the images with the lowest IoU, weighted by the true pixels of their classes; worst first."""
        counts = self.counts
        values = frequency_weighted_iou(counts)
        return np.argsort(np.where(np.isnan(values), 1, values), kind="stable")[:most]


def find_classes(logits: Tensor) -> Tensor:
    """Returns the class of each pixel from logits (K, h, w): uint8 (h, w)."""
    return logits.argmax(0).to(torch.uint8)


def summarize_counts(counts: NDArray) -> dict[str, Numbers]:
    """The figures from sums over images (R, 7, K): (R,) each."""
    right, predicted, true = (counts[:, row] for row in (RIGHT, PREDICTED, TRUE))
    return {
        "miou": mean_over_classes(intersection_over_union(counts)),
        "pixel_accuracy": divide(right.sum(1), true.sum(1)),
        "mean_accuracy": mean_over_classes(divide(right, true)),
        "frequency_weighted_iou": frequency_weighted_iou(counts),
        "dice": mean_over_classes(divide(2 * right, predicted + true)),
        "boundary_f": mean_over_classes(boundary_f(counts)),
    }


def intersection_over_union(counts: NDArray) -> Numbers:
    """(..., 7, K) -> (..., K)"""
    right, predicted, true = (counts[..., row, :] for row in (RIGHT, PREDICTED, TRUE))
    return divide(right, predicted + true - right)


def frequency_weighted_iou(counts: NDArray) -> Numbers:
    """The mean IoU of the classes weighted by their true pixels: (..., 7, K) -> (...)."""
    true = counts[..., TRUE, :]
    return divide((np.nan_to_num(intersection_over_union(counts)) * true).sum(-1), true.sum(-1))


def boundary_f(counts: NDArray) -> Numbers:
    """The F-score of the boundaries, the harmonic mean of the shares that are near: (..., 7, K) -> (..., K).

    0 where a class has a boundary only in what is true or only in what is predicted.
    """
    edge, right, true, found = (counts[..., row, :] for row in (EDGE, EDGE_RIGHT, TRUE_EDGE, TRUE_EDGE_FOUND))
    precision, recall = (np.nan_to_num(divide(top, bottom)) for top, bottom in ((right, edge), (found, true)))
    score = np.nan_to_num(divide(2 * precision * recall, precision + recall))
    return np.where(edge + true > 0, score, np.nan)


def mean_over_classes(values: Numbers) -> Numbers:
    """The mean over the classes that are not NaN: (R, K) -> (R,)."""
    return divide(np.nansum(values, 1), (~np.isnan(values)).sum(1))


def count_boundaries(predicted: Labels, true: Labels, classes: int) -> NDArray[np.int64]:
    """Pixels on boundaries of two maps (H, W), both `IGNORED` at the same pixels: `EDGE` to `TRUE_EDGE_FOUND`, (4, K).

    A boundary has the pixels of a class that have a pixel of another class beside, above or below them. Near is what lies
    within `TOLERANCE`, at least one pixel (Csurka et al. 2013, What is a good evaluation measure for semantic segmentation?).
    """
    reach = max(TOLERANCE * float(np.hypot(*true.shape)), 1.0)
    radius = int(reach)
    edges = [np.where(find_boundary(each), each, IGNORED) for each in (predicted, true)]
    edges = [np.pad(each, radius, constant_values=IGNORED) for each in edges]
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    steps = (y * edges[0].shape[1] + x)[y**2 + x**2 <= reach**2]  # to every pixel within reach, in the flat map
    counts = []
    for own, other in (edges, edges[::-1]):
        places = np.flatnonzero(own != IGNORED)
        labels, near = own.ravel()[places], np.zeros(len(places), bool)
        for step in steps:
            near |= other.ravel()[places + step] == labels
        counts += [np.bincount(each, minlength=classes) for each in (labels, labels[near])]
    return np.stack(counts)


def find_boundary(labels: Labels) -> NDArray[np.bool_]:
    """Whether each pixel of a map (H, W) has a neighbour of another class; what is ignored neither has nor is one."""
    found = np.zeros(labels.shape, bool)
    for mask, values in ((found, labels), (found.T, labels.T)):  # above one another, then side by side
        differ = (values[1:] != values[:-1]) & (values[1:] != IGNORED) & (values[:-1] != IGNORED)
        mask[1:] |= differ
        mask[:-1] |= differ
    return found
