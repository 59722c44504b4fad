"""Labels that may be wrong: confident learning (Northcutt et al. 2021) on probabilities from a linear classifier of features.

N images, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.sources.contents import choose_evenly
from vitrail.evaluation.probes import predict_folds
from vitrail.text import listing

FOLDS = 5
WORK = 2e9  # images x features x classes that are examined at most: some minutes of one thread
LEAST = 20  # images of a class, before fewer classes are examined


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """An image whose label may be wrong, and the label that is suggested, with the probability of each."""

    path: str
    split: str
    given: str
    suggested: str
    given_probability: float
    probability: float


def find_suspects(
    features: np.ndarray,
    targets: np.ndarray,
    contents: np.ndarray,
    names: Sequence[tuple[str, str]],
    classes: Sequence[str],
) -> tuple[list[Suspect], list[str]]:
    """Returns the images whose label may be wrong, the least probable label first, and notes on labels that were not examined.

    Args:
        features: (N, D).
        targets: (N,) indices of classes.
        contents: (N,), equal for equal images.
        names: (N,) split and name of each image.
    """
    sizes = np.zeros(len(classes), np.int64)  # different images of each class
    np.add.at(sizes, targets[np.unique(contents, return_index=True)[1]], 1)
    present = np.unique(targets)
    few = [f"{classes[label]} {sizes[label]}" for label in present if sizes[label] < FOLDS]
    notes = [f"labels not examined, of classes with fewer than {FOLDS} different images: {listing(few)}"] if few else []
    rows = np.flatnonzero(sizes[targets] >= FOLDS)
    if rows.size * features.shape[1] * len(known := np.unique(targets[rows])) > WORK:
        chosen = known[choose_evenly(len(known), max(2, int((WORK / features.shape[1] / LEAST) ** 0.5)))]
        each = max(FOLDS, int(WORK / features.shape[1] / len(chosen) ** 2))
        different = np.sort(rows[np.unique(contents[rows], return_index=True)[1]])
        members = [np.flatnonzero(targets[different] == label) for label in chosen]
        part = np.sort(np.concatenate([places[choose_evenly(len(places), each)] for places in members]))
        of = f"evenly spaced in {len(chosen):,} of {len(known):,} classes"
        notes.append(f"labels of {len(part):,} of {len(rows):,} images examined, {of}")
        rows = different[part]
    known, targets = np.unique(targets[rows], return_inverse=True)
    if len(known) < 2:
        return [], [*notes, "labels not examined: that takes two classes"]
    probabilities = predict_held_out(features[rows], targets, contents[rows])
    suggested = probabilities.argmax(1)
    return [
        Suspect(
            split=names[rows[row]][0],
            path=names[rows[row]][1],
            given=classes[known[targets[row]]],
            suggested=classes[known[suggested[row]]],
            given_probability=float(probabilities[row, targets[row]]),
            probability=float(probabilities[row, suggested[row]]),
        )
        for row in rank_suspects(probabilities, targets).tolist()
    ], notes


def predict_held_out(
    features: np.ndarray, targets: np.ndarray, contents: np.ndarray, *, folds: int = FOLDS, seed: int = 0
) -> np.ndarray:
    """Returns the probabilities of each image by a linear classifier fitted on the other folds: (N, K).

    Args:
        features: (N, D).
        targets: (N,) indices of classes, each of which has at least ``folds`` different images.
        contents: (N,); images whose contents are equal are in the same fold.
    """
    _, first, same = np.unique(contents, return_index=True, return_inverse=True)
    generator, fold = np.random.default_rng(seed), np.zeros(len(first), np.int64)
    for label in np.unique(targets):
        members = generator.permutation(np.flatnonzero(targets[first] == label))
        fold[members] = np.arange(len(members)) % folds
    return np.exp(predict_folds(features, targets, fold[same], classes=int(targets.max()) + 1))


def rank_suspects(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the rows (S,) of the images whose label may be wrong, the least probable label first.

    An image counts for a class if its probability reaches the mean of the images with that label. S is the number of images for
    which such a class is more probable than their label: the off-diagonal of the confident joint. They are those with the
    lowest probability of their label among the images of which another class is the most probable.

    Args:
        probabilities: (N, K), of classifiers that were not fitted on the image.
        targets: (N,) indices of classes, all of which occur.
    """
    own = probabilities[np.arange(len(targets)), targets]
    thresholds = np.bincount(targets, own) / np.bincount(targets)  # (K,)
    count = (np.where(probabilities >= thresholds, probabilities, 0).max(1) > own).sum()
    doubted = np.flatnonzero(probabilities.argmax(1) != targets)
    return doubted[np.argsort(own[doubted], kind="stable")[:count]]
