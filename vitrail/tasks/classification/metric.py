"""What judging a classifier keeps of every image, and the figures from it.

N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Self

import numpy as np
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.tasks.arrays import as_array, confusion, write_percent
from vitrail.tasks.classification import metrics
from vitrail.tasks.classification.metrics import Bins, Graded
from vitrail.tasks.metric import Figures, Metric


class ClassMetric(Metric):
    """Of one class an image: a few numbers of each image, whatever the number of classes.

    Args:
        classes: the names of the outputs.
        temperature: what logits are divided by.
    """

    def __init__(self, classes: Sequence[str], temperature: float = 1.0) -> None:
        self.classes, self.temperature = tuple(classes), temperature
        self.keys: list[str] = []
        self._parts: list[tuple[np.ndarray, np.ndarray, Graded]] = []  # predicted, targets, grades

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        logits, true = as_array(outputs), as_array(targets)
        self._parts.append((logits.argmax(1), true, metrics.grade(logits, true, temperature=self.temperature)))
        self.keys.extend(keys)

    def merge(self, other: Self) -> None:
        self._parts += other._parts
        self.keys.extend(other.keys)

    @property
    def predicted(self) -> np.ndarray:
        """(N,) the class with the largest logit."""
        return np.concatenate([predicted for predicted, *_ in self._parts])

    @property
    def targets(self) -> np.ndarray:
        """(N,)"""
        return np.concatenate([targets for _, targets, _ in self._parts])

    @property
    def grades(self) -> Graded:
        """Rank, confidence, NLL and Brier score, (N,) each."""
        columns = ([getattr(grades, field.name) for *_, grades in self._parts] for field in fields(Graded))
        return Graded(*map(np.concatenate, columns))

    @property
    def right(self) -> np.ndarray:
        """(N,) whether the class predicted is the true one."""
        return self.predicted == self.targets

    @property
    def confusion(self) -> np.ndarray:
        """(K, K) images, rows true."""
        return confusion(self.predicted, self.targets, len(self.classes))

    @property
    def calibration(self) -> Bins:
        """The confidence of the predicted class against how often it is right."""
        return metrics.reliability(self.grades.confidence, self.right)

    def per_class(self) -> metrics.PerClass:
        return metrics.per_class(self.confusion)

    def summarize(self) -> Figures:
        grades = self.grades
        return {"top1": float((grades.rank == 0).mean()), "nll": float(grades.nll.mean())}

    def compute(self) -> Figures:
        """``top1 top5 nll ece brier``, shares as fractions."""
        return metrics.summarize_grades(self.grades)

    def samples(self) -> np.ndarray:
        return self.right.astype(np.float64)

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """A row for each class with precision, recall, F1 and the number of images."""
        return class_table(self.classes, self.per_class())

    def worst(self, most: int) -> np.ndarray:
        """Indices of the images that the model is most confidently wrong about, worst first: by the confidence in the wrong
        class, then by the little that was left for the true one.
        """
        grades = self.grades
        wrong = np.flatnonzero(~self.right)
        return wrong[np.lexsort((np.exp(-grades.nll[wrong]), -grades.confidence[wrong]))][:most]

    def describe(self, index: int) -> tuple[str, str, float]:
        """The true and the predicted class of an image, and the confidence in the latter."""
        names = self.classes[int(self.targets[index])], self.classes[int(self.predicted[index])]
        return *names, float(self.grades.confidence[index])


class AcceptableMetric(Metric):
    """Of images with several acceptable answers, judged by the one class that the model gives: ReaL accuracy (Beyer et al.
    2020). Images without any acceptable answer do not count.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.without = 0  # images without an acceptable answer
        self._parts: list[np.ndarray] = []

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        """``targets`` (B, K) are above 0 for the acceptable classes."""
        predicted, accepted = as_array(outputs).argmax(1), as_array(targets) > 0
        answered = accepted.sum(1) > 0  # (B,)
        self.without += int((~answered).sum())
        self._parts.append(accepted[np.arange(len(predicted)), predicted][answered])
        self.keys.extend(key for key, counts in zip(keys, answered) if counts)

    def merge(self, other: Self) -> None:
        self.without += other.without
        self._parts += other._parts
        self.keys.extend(other.keys)

    def compute(self) -> Figures:
        """``real_top1``, the share of images whose class is acceptable, and how many images have no acceptable answer."""
        return {"real_top1": float(self.samples().mean()), "without_label": self.without}

    def samples(self) -> np.ndarray:
        return np.concatenate(self._parts).astype(np.float64)


class LabelMetric(Metric):
    """Of several labels an image: their logits, as average precision ranks all images by each of them.

    Args:
        classes, temperature: as `ClassMetric` has them.
    """

    def __init__(self, classes: Sequence[str], temperature: float = 1.0) -> None:
        self.classes, self.temperature = tuple(classes), temperature
        self.keys: list[str] = []
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []  # logits, targets

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        logits, true = as_array(outputs), as_array(targets)
        if true.ndim == 1:  # data with one label an image
            true = np.eye(len(self.classes), dtype=np.float32)[true]
        self._parts.append((logits, true))
        self.keys.extend(keys)

    def merge(self, other: Self) -> None:
        self._parts += other._parts
        self.keys.extend(other.keys)

    @property
    def logits(self) -> np.ndarray:
        """(N, K), before the temperature."""
        return np.concatenate([logits for logits, _ in self._parts])

    @property
    def targets(self) -> np.ndarray:
        """(N, K) of 0 and 1."""
        return np.concatenate([targets for _, targets in self._parts])

    @property
    def probabilities(self) -> np.ndarray:
        """(N, K), after the temperature."""
        return metrics.probabilities(self.logits, multi_label=True, temperature=self.temperature)

    @property
    def calibration(self) -> Bins:
        """The probability of every label against how often it is there."""
        return metrics.reliability(self.probabilities.ravel(), (self.targets > 0.5).ravel())

    @property
    def average_precision(self) -> np.ndarray:
        """(K,)"""
        return metrics.average_precision(self.logits, self.targets)

    def per_class(self) -> metrics.PerClass:
        return metrics.per_label(self.logits, self.targets)

    def summarize(self) -> Figures:
        figures = self.compute()
        return {name: figures[name] for name in ("map", "f1_micro")}

    def compute(self) -> Figures:
        """``map f1_micro f1_macro nll``, shares as fractions."""
        return metrics.summarize_labels(self.logits, self.targets, self.temperature)

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        return class_table(self.classes, self.per_class())

    def worst(self, most: int) -> np.ndarray:
        """Indices of the images with the label that is furthest off, worst first."""
        probabilities, targets = self.probabilities, self.targets
        offset = np.abs(probabilities - targets).max(1, initial=0)
        wrong = np.flatnonzero(((probabilities >= 0.5) != (targets > 0.5)).any(1))
        return wrong[np.argsort(-offset[wrong], kind="stable")][:most]

    def describe(self, index: int) -> tuple[str, str, float]:
        """The true and the predicted labels of an image, and the largest probability."""
        probabilities = self.probabilities[index]
        words = [
            ", ".join(name for name, is_there in zip(self.classes, row) if is_there) or "none"
            for row in (self.targets[index] > 0.5, probabilities >= 0.5)
        ]
        return words[0], words[1], float(probabilities.max())


def class_table(classes: Sequence[str], values: metrics.PerClass) -> tuple[list[str], list[tuple[str, ...]]]:
    """A row for each class with precision, recall, F1 and the number of images, under its head."""
    rows: list[tuple[str, ...]] = []
    for name, count, *shares in zip(classes, values.support, values.precision, values.recall, values.f1):
        rows.append((name, *(write_percent(share) for share in shares), str(int(count))))
    return ["class", "precision %", "recall %", "F1 %", "images"], rows
