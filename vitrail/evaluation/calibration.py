"""Temperature scaling: one number that calibrates the probabilities of a classifier.

N images, K classes. `vitrail.tasks.classification.metric.reliability` measures the calibration.
"""

from __future__ import annotations

import numpy as np

from vitrail.tasks.classification.metric import log_softmax
from vitrail.tasks.metric import Values, as_array

COLDEST, HOTTEST = 0.1, 10.0


def fit_temperature(logits: Values, targets: Values, *, multi_label: bool = False) -> float:
    """Returns the temperature that minimises the negative log-likelihood of held-out images (Guo et al. 2017, section 4.2).

    The loss is convex in 1 / temperature, so Newton's method with a bracket finds the minimum between `COLDEST` and
    `HOTTEST`. If all predictions are correct there is no minimum, and the result is `COLDEST`.

    Args:
        logits: (N, K) of images that were not used in training.
        targets: (N,) indices of classes, or (N, K) of 0 and 1 with ``multi_label``.
    """
    logits, targets = as_array(logits).astype(np.float64), as_array(targets)
    slope = _sigmoid_slope if multi_label else _softmax_slope
    low, high = 1 / HOTTEST, 1 / COLDEST  # of the inverse temperature
    first, second = slope(low, logits, targets)
    if first >= 0:
        return HOTTEST if second > 0 else 1.0  # equal logits do not depend on the temperature
    if slope(high, logits, targets)[0] <= 0:
        return COLDEST
    inverse = 1.0
    for _ in range(100):
        first, second = slope(inverse, logits, targets)
        low, high = (inverse, high) if first < 0 else (low, inverse)
        step = first / second if second > 0 else np.inf
        last, inverse = inverse, inverse - step
        if not low < inverse < high:
            inverse = (low * high) ** 0.5
        if abs(inverse - last) <= 1e-10 * last:
            break
    return float(1 / inverse)


def _softmax_slope(inverse: float, logits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Returns the first and second derivatives of the mean NLL with respect to the inverse temperature."""
    p = np.exp(log_softmax(inverse * logits))  # (N, K)
    expected = (p * logits).sum(1)  # (N,)
    spread = (p * np.square(logits - expected[:, None])).sum(1)
    return float((expected - logits[np.arange(len(logits)), targets]).mean()), float(spread.mean())


def _sigmoid_slope(inverse: float, logits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    p = np.exp(-np.logaddexp(0, -inverse * logits))  # (N, K)
    return float(((p - targets) * logits).mean()), float((p * (1 - p) * np.square(logits)).mean())
