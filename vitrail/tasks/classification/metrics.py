"""Metrics from logits and targets, in float64, independent of the batch size.

N images, K classes, M bins. Both arrays and tensors are accepted. An undefined metric (of a class that occurs neither in
the targets nor in the predictions) is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.tasks.arrays import Values, as_array, divide, mean_of_defined

ROWS = 4096  # rows of logits in float64 at a time


@dataclass(frozen=True)
class Graded:
    """One value per image, (N,) each."""

    rank: np.ndarray  # number of classes ranked before the true one; 0 is correct
    confidence: np.ndarray  # probability of the predicted class
    nll: np.ndarray  # negative log-likelihood of the true class
    brier: np.ndarray  # squared distance of the probabilities from the one-hot target, in [0, 2]


@dataclass(frozen=True)
class PerClass:
    """One value per class, (K,) each."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray


@dataclass(frozen=True)
class Bins:
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
    """Returns the figures of several labels an image: `map`, `f1_micro`, `f1_macro`, and `nll`, the mean over images and classes.

    Args:
        logits: (N, K), before the temperature.
        targets: (N, K) of 0 and 1.
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


def per_class(counts: np.ndarray) -> PerClass:
    """Precision, recall, F1 and support from a confusion matrix (K, K)."""
    return _per_class(np.diag(counts), predicted=counts.sum(0), support=counts.sum(1))


def per_label(logits: Values, targets: Values) -> PerClass:
    """The same for multi-label data, (N, K), (N, K); a label is predicted if its probability is at least 1/2."""
    predicted, true = as_array(logits) >= 0, as_array(targets) > 0.5
    return _per_class((predicted & true).sum(0), predicted=predicted.sum(0), support=true.sum(0))


def _per_class(hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> PerClass:
    return PerClass(divide(hits, predicted), divide(hits, support), divide(2 * hits, predicted + support), support)


def average_precision(scores: Values, targets: Values) -> np.ndarray:
    """Area under the precision-recall curve of each label, (N, K), (N, K) -> (K,); equal scores are one step."""
    scores, true = as_array(scores), as_array(targets) > 0.5
    return np.array([_average_precision(*columns) for columns in zip(scores.T, true.T)])


def _average_precision(scores: np.ndarray, true: np.ndarray) -> float:
    if not true.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    steps = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last image of every tie
    hits = np.cumsum(true[order])[steps]
    precision, recall = hits / (steps + 1), hits / hits[-1]
    return float((precision * np.diff(recall, prepend=0)).sum())
