"""Temperature scaling: one number that calibrates the probabilities of a classifier.

N images, K classes. `vitrail.tasks.classification.metric.reliability` measures the calibration.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from vitrail.tasks.classification.metric import log_softmax
from vitrail.tasks.metric import Values, as_array

COLDEST, HOTTEST = 0.1, 10.0


def fit_temperature(logits: Values, targets: Values, *, multi_label: bool = False) -> float:
    """Returns the temperature that minimises the negative log-likelihood of held-out images (Guo et al. 2017, section 4.2).

    The loss is convex in 1 / temperature: its minimum between `COLDEST` and `HOTTEST` is where the slope is 0 (Brent's method).
    If all predictions are correct there is no minimum, and the result is `COLDEST`.

    Args:
        logits: (N, K) of images that were not used in training.
        targets: (N,) indices of classes, or (N, K) of 0 and 1 with ``multi_label``.
    """
    from scipy.optimize import root_scalar  # a dependency of scikit-learn

    logits, targets = as_array(logits).astype(np.float64), as_array(targets)
    slope = partial(_sigmoid_slope if multi_label else _softmax_slope, logits=logits, targets=targets)
    low, high = 1 / HOTTEST, 1 / COLDEST  # of the inverse temperature
    if (least := slope(low)) >= 0:
        return HOTTEST if slope(high) > least else 1.0  # equal logits do not depend on the temperature
    return COLDEST if slope(high) <= 0 else 1 / root_scalar(slope, bracket=(low, high), xtol=1e-12).root


def _softmax_slope(inverse: float, logits: np.ndarray, targets: np.ndarray) -> float:
    """Returns the derivative of the mean NLL with respect to the inverse temperature."""
    p = np.exp(log_softmax(inverse * logits))  # (N, K)
    return float(((p * logits).sum(1) - logits[np.arange(len(logits)), targets]).mean())


def _sigmoid_slope(inverse: float, logits: np.ndarray, targets: np.ndarray) -> float:
    p = np.exp(-np.logaddexp(0, -inverse * logits))  # (N, K)
    return float(((p - targets) * logits).mean())
