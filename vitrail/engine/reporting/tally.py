"""What went wrong, in order: the pairs of classes that are confused most, and the worst mistakes.

N images, K classes.
"""

from __future__ import annotations

import numpy as np


def confused_pairs(counts: np.ndarray, most: int = 12) -> list[tuple[int, int, int]]:
    """The most frequent mistakes as (true, predicted, images), the most frequent first."""
    wrong = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")[:most]
    return [(int(row), int(column), int(wrong[row, column])) for row, column in zip(rows[order], columns[order])]


def worst_mistakes(probabilities: np.ndarray, targets: np.ndarray, most: int = 12) -> np.ndarray:
    """The images that the model is most confidently wrong about, worst first.

    Args:
        probabilities: (N, K), softmax for one label an image, sigmoid for several.
        targets: (N,) class indices, or (N, K) of 0 and 1 for several labels an image.
        most: how many at most; fewer come where the model is wrong less often.

    Returns:
        Indices into N, int64: by the confidence in the wrong class, then by the little that was left for the true one;
        for several labels an image, by the single label that is furthest off.
    """
    if targets.ndim == 2:
        offset = np.abs(probabilities - targets).max(1, initial=0)
        wrong = np.flatnonzero(((probabilities >= 0.5) != (targets > 0.5)).any(1))
        return wrong[np.argsort(-offset[wrong], kind="stable")][:most]
    predicted = probabilities.argmax(1)
    wrong = np.flatnonzero(predicted != targets)
    confidence, left = probabilities[wrong, predicted[wrong]], probabilities[wrong, targets[wrong]]
    return wrong[np.lexsort((left, -confidence))][:most]
