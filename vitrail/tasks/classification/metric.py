"""Metrics of a classifier: what they keep of every image, and the figures from it, in float64 and whatever the batches.

N images, K classes, M bins. An undefined figure (of a class that occurs neither in the targets nor in the predictions) is NaN.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.tasks.metric import (
    Figures,
    Metric,
    Rows,
    Values,
    as_array,
    confusion,
    divide,
    mean_of_defined,
    write_percent,
)

ROWS = 4096  # rows of logits in float64 at a time


class Graded(NamedTuple):
    """One value per image, (N,) each."""

    rank: np.ndarray  # number of classes ranked before the true one; 0 is correct
    confidence: np.ndarray  # probability of the predicted class
    nll: np.ndarray  # negative log-likelihood of the true class
    brier: np.ndarray  # squared distance of the probabilities from the one-hot target, in [0, 2]


class PerClass(NamedTuple):
    """One value per class, (K,) each."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray

    @classmethod
    def of(cls, hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> PerClass:
        return cls(divide(hits, predicted), divide(hits, support), divide(2 * hits, predicted + support), support)


class Bins(NamedTuple):
    """Equal-width bins of confidence, (M,) each; the means of an empty bin are NaN."""

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap between confidence and accuracy (Guo et al. 2017, equation 3)."""
        gaps = np.nan_to_num(np.abs(self.confidence - self.accuracy))
        return float((gaps * self.counts).sum() / self.counts.sum()) if self.counts.any() else float("nan")

    @property
    def lean(self) -> float:
        """Mean confidence minus accuracy; above 0 the model is overconfident."""
        gaps = np.nan_to_num(self.confidence - self.accuracy)
        return float((gaps * self.counts).sum() / max(self.counts.sum(), 1))


class NamedMetric(Metric):
    """Of classes with names; ``temperature`` divides the logits."""

    def __init__(self, classes: Sequence[str], temperature: float = 1.0) -> None:
        super().__init__()
        self.classes, self.temperature = tuple(classes), temperature

    @abstractmethod
    def per_class(self) -> PerClass: ...

    def table(self) -> tuple[list[str], Rows]:
        """A row for each class with precision, recall, F1 and the number of images."""
        values = self.per_class()
        listed = zip(self.classes, values.support, values.precision, values.recall, values.f1)
        rows: Rows = [(name, *map(write_percent, shares), str(int(count))) for name, count, *shares in listed]
        return ["class", "precision %", "recall %", "F1 %", "images"], rows


class ClassMetric(NamedMetric):
    """Of one class an image: a few numbers of each image, whatever the number of classes."""

    summary = ("top1", "nll")
    _parts: list[tuple[np.ndarray, ...]]  # the predicted class, the true one, and what `Graded` has; (B,) each

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        logits, true = as_array(outputs)[:, : len(self.classes)], as_array(targets)
        self._parts.append((logits.argmax(1), true, *grade(logits, true, temperature=self.temperature)))
        self.keys.extend(keys)

    @property
    def predicted(self) -> np.ndarray:
        """(N,) the class with the largest logit."""
        return self._join(0)

    @property
    def targets(self) -> np.ndarray:
        """(N,)"""
        return self._join(1)

    @property
    def grades(self) -> Graded:
        return Graded(*map(self._join, range(2, 2 + len(Graded._fields))))

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
        return reliability(self.grades.confidence, self.right)

    def per_class(self) -> PerClass:
        return per_class(self.predicted, self.targets, len(self.classes))

    def compute(self) -> Figures:
        """``top1 top5 mean_recall f1_macro nll ece brier``, shares as fractions. Mean recall and macro F1 leave out the classes
        for which they are undefined.
        """
        by_class, figures = self.per_class(), summarize_grades(self.grades)
        means = {"mean_recall": float(np.nanmean(by_class.recall)), "f1_macro": float(np.nanmean(by_class.f1))}
        return {"top1": figures["top1"], "top5": figures["top5"], **means, **figures}

    def samples(self) -> np.ndarray:
        return self.right.astype(np.float64)

    def explain_failure(self, figures: Figures) -> str:
        counts = np.bincount(self.targets, minlength=len(self.classes))
        commonest, share = self.classes[int(counts.argmax())], float(counts.max() / counts.sum())
        if figures.get("top1_low", figures["top1"]) > share:
            return ""
        return (
            f"The model is not shown to be better than the answer {commonest!r} to everything, which is right for "
            f"{100 * share:.1f} % of these images: train for longer, from pre-trained weights, or on more images."
        )

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
    """Of images with several acceptable answers, evaluated by the one class that the model gives: ReaL accuracy (Beyer et al.
    2020). Images without any acceptable answer do not count.
    """

    _parts: list[np.ndarray]

    def __init__(self) -> None:
        super().__init__()
        self.without = 0  # images without an acceptable answer

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        """``targets`` (B, K) are above 0 for the acceptable classes."""
        accepted = as_array(targets) > 0
        predicted = as_array(outputs)[:, : accepted.shape[1]].argmax(1)
        answered = accepted.sum(1) > 0  # (B,)
        self.without += int((~answered).sum())
        self._parts.append(accepted[np.arange(len(predicted)), predicted][answered])
        self.keys.extend(key for key, counts in zip(keys, answered) if counts)

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.without += other.without

    def compute(self) -> Figures:
        """``real_top1``, the share of images whose class is acceptable, and how many images have no acceptable answer."""
        return {"real_top1": float(self.samples().mean()), "without_label": self.without}

    def samples(self) -> np.ndarray:
        return np.concatenate(self._parts).astype(np.float64)


class LabelMetric(NamedMetric):
    """Of several labels an image: their logits, as average precision ranks all images by each of them."""

    summary = ("map", "f1_micro")
    _parts: list[tuple[np.ndarray, np.ndarray]]  # logits, targets

    def update(self, outputs: Tensor, targets: Tensor, keys: Sequence[str], frames: Frames | None = None) -> None:
        logits, true = as_array(outputs)[:, : len(self.classes)], as_array(targets)
        if true.ndim == 1:  # data with one label an image
            true = np.eye(len(self.classes), dtype=np.float32)[true]
        self._parts.append((logits, true))
        self.keys.extend(keys)

    @property
    def logits(self) -> np.ndarray:
        """(N, K), before the temperature."""
        return self._join(0)

    @property
    def targets(self) -> np.ndarray:
        """(N, K) of 0 and 1."""
        return self._join(1)

    @property
    def probabilities(self) -> np.ndarray:
        """(N, K), after the temperature."""
        return probabilities(self.logits, multi_label=True, temperature=self.temperature)

    @property
    def calibration(self) -> Bins:
        """The probability of every label against how often it is there."""
        return reliability(self.probabilities.ravel(), (self.targets > 0.5).ravel())

    @property
    def average_precision(self) -> np.ndarray:
        """(K,)"""
        return average_precision(self.logits, self.targets)

    def per_class(self) -> PerClass:
        return per_label(self.logits, self.targets)

    def compute(self) -> Figures:
        """``map f1_micro f1_macro nll``, shares as fractions."""
        return summarize_labels(self.logits, self.targets, self.temperature)

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


def summarize_grades(grades: Graded) -> dict[str, float]:
    """Returns `top1`, `top5`, `ece` and `brier` as fractions, and `nll` in nats."""
    right = grades.rank == 0
    return {
        "top1": float(right.mean()),
        "top5": float((grades.rank < 5).mean()),
        "nll": float(grades.nll.mean()),
        "ece": reliability(grades.confidence, right).error,
        "brier": float(grades.brier.mean()),
    }


def summarize_labels(logits: Values, targets: Values, temperature: float = 1.0) -> dict[str, float]:
    """Returns the figures of several labels an image: `map`, `f1_micro`, `f1_macro`, and `nll`, the mean over images and
    classes.

    Logits (N, K) are those before the temperature, targets (N, K) of 0 and 1.
    """
    logits, targets = as_array(logits), as_array(targets)
    by_label = per_label(logits, targets)
    predicted, true = logits >= 0, targets > 0.5
    hits, both = int((predicted & true).sum()), int(predicted.sum() + true.sum())
    scaled = logits.astype(np.float64) / temperature
    # the binary cross-entropy without overflow: log(1 + e^x) - x y
    nll = np.logaddexp(0, scaled) - scaled * targets
    return {
        "map": mean_of_defined(average_precision(logits, targets)),
        "f1_micro": 2 * hits / both if both else float("nan"),
        "f1_macro": mean_of_defined(by_label.f1),
        "nll": float(nll.mean()),
    }


def grade(logits: Values, targets: Values, *, temperature: float = 1.0) -> Graded:
    """Rank, confidence, NLL and Brier score of each image: (N, K), (N,) -> (N,) each.

    Equal logits are ranked by class index, like `argmax`, so a constant output is not correct for every image.
    """
    logits, targets = as_array(logits), as_array(targets)
    parts = [
        _grade(logits[start : start + ROWS].astype(np.float64), targets[start : start + ROWS], temperature)
        for start in range(0, max(len(logits), 1), ROWS)
    ]
    return Graded(*(np.concatenate(columns) for columns in zip(*parts)))


def _grade(logits: np.ndarray, targets: np.ndarray, temperature: float) -> tuple[np.ndarray, ...]:
    rows = np.arange(len(logits))
    true = logits[rows, targets][:, None]  # (N, 1)
    # "not at most" ranks NaN before the true class, and a true class with NaN after all others
    ahead = ~(logits <= true) | ((logits == true) & (np.arange(logits.shape[1]) < targets[:, None]))  # (N, K)
    log_p = log_softmax(logits / temperature)  # (N, K)
    p = np.exp(log_p)
    p_true = p[rows, targets]
    brier = np.square(p).sum(1) - np.square(p_true) + np.square(1 - p_true)
    return ahead.sum(1), p.max(1), -log_p[rows, targets], brier


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """(N, K) -> (N, K)."""
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def probabilities(logits: Values, *, multi_label: bool = False, temperature: float = 1.0) -> np.ndarray:
    """(N, K) -> (N, K) float64: the softmax of logits / temperature, or the sigmoid for multi-label data."""
    scaled = as_array(logits).astype(np.float64) / temperature
    return np.exp(-np.logaddexp(0, -scaled)) if multi_label else np.exp(log_softmax(scaled))


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> Bins:
    """Confidence and accuracy in equal-width bins, open below and closed above: (N,), (N,) -> (M,)."""
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)  # (N,)
    counts = np.bincount(place, minlength=bins)
    confident, correct = (np.bincount(place, weights=values, minlength=bins) for values in (confidence, right))
    return Bins(counts, divide(confident, counts), divide(correct, counts))


def per_class(predicted: np.ndarray, targets: np.ndarray, classes: int) -> PerClass:
    """Precision, recall, F1 and support of each class, from indices of classes (N,), (N,)."""
    named = (targets[predicted == targets], predicted, targets)
    return PerClass.of(*(np.bincount(indices, minlength=classes) for indices in named))


def per_label(logits: Values, targets: Values) -> PerClass:
    """The same for multi-label data, (N, K), (N, K); a label is predicted if its probability is at least 1/2."""
    predicted, true = as_array(logits) >= 0, as_array(targets) > 0.5
    return PerClass.of((predicted & true).sum(0), predicted=predicted.sum(0), support=true.sum(0))


def average_precision(scores: Values, targets: Values) -> np.ndarray:
    """Area under the precision-recall curve of each label, (N, K), (N, K) -> (K,); equal scores are one step."""
    areas = []
    for column, true in zip(as_array(scores).T, (as_array(targets) > 0.5).T):
        if not true.any():
            areas.append(float("nan"))
            continue
        order = np.argsort(-column, kind="stable")
        steps = np.flatnonzero(np.append(np.diff(column[order]) != 0, True))  # the last image of every tie
        hits = np.cumsum(true[order])[steps]
        precision, recall = hits / (steps + 1), hits / hits[-1]
        areas.append(float((precision * np.diff(recall, prepend=0)).sum()))
    return np.array(areas)
