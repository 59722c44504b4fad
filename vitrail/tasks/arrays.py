"""What the figures of several tasks are computed with. Arrays and tensors are both accepted; what is not defined is NaN."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

Values = np.ndarray | Tensor


def confusion(predicted: Values, targets: Values, classes: int) -> np.ndarray:
    """The confusion matrix (K, K) from indices (N,), (N,): rows are true classes, columns predictions."""
    places = as_array(targets) * classes + as_array(predicted)
    return np.bincount(places, minlength=classes**2).reshape(classes, classes)


def largest_difference(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
    """The largest absolute difference of an output, as a share of the largest absolute value of that output."""
    shares = (
        (output - given[name]).abs().max() / output.abs().max().clamp(min=1e-30) for name, output in expected.items()
    )
    return max(map(float, shares))


def as_array(values: Values) -> np.ndarray:
    """Convert a tensor of any device and precision to an array; arrays are returned unchanged."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()


def write_percent(share: float) -> str:
    """A share as the cell of a table in percent; a dash where it is not defined."""
    return "–" if np.isnan(share) else f"{100 * share:.1f}"


def divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """The quotient, NaN if the divisor is 0."""
    return np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom != 0)


def mean_of_defined(values: np.ndarray) -> float:
    """Returns the mean without NaN; NaN if there is nothing else."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
