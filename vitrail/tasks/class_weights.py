"""Rare classes: their weights in a loss, and the shares of the classes that a model was trained on, as its provenance has them.

K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitrail.errors import ConfigError, nearest

MAX_WEIGHT = 10.0  # of a class, relative to that of the average image or pixel


def weigh_classes(counts: ArrayLike) -> list[float]:
    """Weights of classes that occur in so many images or pixels (K,): 1 / sqrt(frequency), so that rare classes are learned.

    They are scaled to a mean of 1 over the images or pixels, and at most 10; a class without any has the largest weight of the
    others.
    """
    counts = np.asarray(counts, np.float64)
    occurs = counts > 0
    if not occurs.any():
        return [1.0] * len(counts)
    weights = 1 / np.sqrt(np.where(occurs, counts, counts[occurs].min()))
    return _scale(weights, counts).clip(max=MAX_WEIGHT).tolist()


def choose_weights(asked: str | Mapping[str, float], classes: Sequence[str], counts: NDArray[np.int64]) -> list[float]:
    """Returns the weights (K,) that ``objective.class_weights`` asks for, for classes with so many training images.

    They are those of `weigh_classes` for "auto", and 1 for "none". A mapping names weights relative to that of the other classes;
    all are scaled to a mean of 1 over the images.

    Raises `ConfigError` for a class that does not exist.
    """
    if asked == "auto":
        return weigh_classes(counts)
    named = {} if isinstance(asked, str) else asked
    for name in named:
        if name not in classes:
            raise ConfigError(f"objective.class_weights names the class {name!r}", nearest(name, classes))
    return _scale(np.array([named.get(name, 1.0) for name in classes]), counts).tolist()


def _scale(weights: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Returns weights (K,) with a mean of 1 over the images or pixels."""
    return weights * counts.sum() / (weights * counts).sum()


def share_classes(
    counts: NDArray[np.int64], classes: Sequence[str], *, balance: bool, weights: str | Mapping[str, float]
) -> list[float]:
    """Returns the shares (K,) of the classes in a loss, with ``data.balance`` and ``objective.class_weights``."""
    shares = (np.sqrt(counts) if balance else counts) * choose_weights(weights, classes, counts)
    return [float(f"{share:.6g}") for share in shares / shares.sum()]


def find_counts(provenance: Mapping[str, Any], classes: int, name: str = "class_images") -> NDArray[Any] | None:
    """Returns the training images of each class (K,) that a provenance has, or their ``class_shares`` in the loss, which it has
    where they are others; None where it has none for so many classes.
    """
    values = provenance.get(name)
    if not isinstance(values, list) or len(values) != classes or not all(type(each) in (int, float) for each in values):
        return None
    counts = np.array(values)
    return counts if np.isfinite(counts).all() and (counts >= 0).all() and counts.any() else None


def find_log_prior(provenance: Mapping[str, Any], classes: int) -> NDArray[np.float64]:
    """Returns the logarithms of the shares (K,) of the classes in the loss that a model was trained with.

    A class without training images has the share of the rarest of the others.

    Raises `ConfigError` where the provenance does not have them.
    """
    shares = find_counts(provenance, classes, "class_shares")
    shares = find_counts(provenance, classes) if shares is None else shares
    if shares is None:
        what = "it is not known how many images of each class the model was trained on"
        raise ConfigError(what, "train it with this version: earlier ones and other libraries do not store it")
    return np.log(np.maximum(shares, shares[shares > 0].min()) / shares.sum())
