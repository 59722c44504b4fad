"""Probes of frozen features: nearest neighbours, a linear classifier, and least squares on a few images per class.

N training images, M test images, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import ConfigError, DataError
from vitrail.tasks.classification.metric import log_softmax
from vitrail.tasks.metric import Values, as_array

TEMPERATURE = 0.07  # of the votes of neighbours, as in the papers
CELLS = 4_000_000  # similarities in memory at a time
STRENGTHS = tuple(10.0**power for power in range(3, -7, -1))  # of the L2 penalty, in decreasing order
CHOSEN_ON = 0.2  # fraction of the training images of each class that is held out to choose the penalty
STEEPEST = 1e-5  # largest gradient at a minimum
ITERATIONS = 2000
RIDGE, CONSTANT = 1024.0, 100.0  # of the least squares: the penalty, and the constant feature for the bias


def knn(train: Values, targets: Values, test: Values, *, classes: int, k: int = 20) -> np.ndarray:
    """Returns the votes of the nearest training images (Wu et al. 2018, section 3.4; Caron et al. 2021, DINO).

    Each of the ``k`` images with the highest cosine similarity s adds exp(s / `TEMPERATURE`) to its class.

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        test: features (M, D).

    Returns:
        (M, K) float32, relative to the vote of the nearest; the largest is the prediction.

    Raises:
        ConfigError: ``k`` is not between 1 and N.
    """
    check_neighbours(k, len(train))
    known, asked = F.normalize(_to_float(train), dim=1), _to_float(test)
    labels = torch.as_tensor(targets).to(known.device, torch.int64)
    # allocated at once: small results between large temporary tensors would fragment the memory
    votes = torch.zeros(len(asked), classes, device=known.device)
    rows = max(CELLS // len(known), 1)
    for batch, batch_votes in zip(asked.split(rows), votes.split(rows)):
        similarity, nearest = (F.normalize(batch.to(known.device), dim=1) @ known.T).topk(k, dim=1)  # (m, k) each
        # relative to the nearest: same prediction, and the exponential cannot overflow
        batch_votes.scatter_add_(1, labels[nearest], ((similarity - similarity[:, :1]) / TEMPERATURE).exp())
    return votes.cpu().numpy()


def check_neighbours(k: int, images: int) -> None:
    """Raises `ConfigError` if ``k`` is not between 1 and the number of training images."""
    if not 1 <= k <= images:
        raise ConfigError(f"k is {k}, for {images:,} training images", f"give a k from 1 to {images}")


def _to_float(features: Values) -> torch.Tensor:
    return torch.as_tensor(features).detach().float()


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear classifier of features (M, D), and how it was fitted.

    ``strength`` is the chosen L2 penalty; ``at_edge``: it is the first or last that was tried; ``converged``: the final
    gradient of the loss is small.
    """

    mean: np.ndarray  # (D,)
    scale: np.ndarray  # (D,)
    weight: np.ndarray  # (D, K)
    bias: np.ndarray  # (K,)
    strength: float
    converged: bool
    at_edge: bool = False

    def __call__(self, features: Values) -> np.ndarray:
        """Logits (M, K) float64."""
        return (as_array(features).astype(np.float64) - self.mean) / self.scale @ self.weight + self.bias


def linear(
    train: Values, targets: Values, *, classes: int, strengths: Sequence[float] = STRENGTHS, seed: int = 0
) -> Linear:
    """Multinomial logistic regression on standardised features, fitted in fp64.

    The loss is the mean cross-entropy plus strength / 2 times the squared weights, without a penalty on the bias. Each
    strength is evaluated on a fifth of the images of each class, drawn by ``seed``; the most accurate (of equal ones, that
    with the highest likelihood) is fitted on all images.

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        strengths: above 0; tried in decreasing order, each starting at the previous minimum.

    Raises:
        DataError: no class has two images.
    """
    features, targets = as_array(train).astype(np.float64), as_array(targets)
    strengths = sorted(strengths, reverse=True)
    held = _hold_out(targets, seed)
    if not held.any():
        fact = "no class has two training images, which the choice of the L2 penalty needs"
        raise DataError(fact, "use the protocol knn or fewshot, or give more images")
    problem = _Regression(features[~held], targets[~held], classes)
    best, most = None, (-1.0, -np.inf)
    for strength in strengths:
        classifier = problem.fit(strength)
        logits = classifier(features[held])
        right = float((logits.argmax(1) == targets[held]).mean())
        likelihood = float(log_softmax(logits)[np.arange(len(logits)), targets[held]].mean())
        if (right, likelihood) > most:
            best, most = classifier, (right, likelihood)
    assert best is not None, "no strengths"
    at_edge = best.strength in (strengths[0], strengths[-1])
    classifier = _Regression(features, targets, classes, start=best).fit(best.strength)
    return replace(classifier, at_edge=at_edge)


def predict_folds(
    train: Values, targets: Values, folds: np.ndarray, *, classes: int, strengths: Sequence[float] = STRENGTHS
) -> np.ndarray:
    """Returns log-probabilities (N, K) float64 of each image by a classifier as `linear`, fitted on the other folds.

    All folds have one strength, that with the highest likelihood of the held-out images, so that their probabilities are
    comparable. Strengths are tried in decreasing order up to the first that is worse than the one before.

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        folds: (N,) the fold of each image, from 0.
    """
    features, targets = as_array(train).astype(np.float64), as_array(targets)
    held = [folds == fold for fold in range(folds.max() + 1)]
    problems = [_Regression(features[~rows], targets[~rows], classes) for rows in held]
    best, most = np.zeros((len(targets), classes)), -np.inf
    for strength in sorted(strengths, reverse=True):
        logs = np.zeros_like(best)
        for rows, problem in zip(held, problems):
            logs[rows] = log_softmax(problem.fit(strength)(features[rows]))
        likelihood = float(logs[np.arange(len(logs)), targets].mean())
        if likelihood < most:
            break
        best, most = logs, likelihood
    return best


def _hold_out(targets: np.ndarray, seed: int) -> np.ndarray:
    """Returns the images on which the strength is chosen: (N,) bool; at least one of each class with two or more images."""
    generator, held = np.random.default_rng(seed), np.zeros(len(targets), bool)
    for label in np.unique(targets):
        rows = generator.permutation(np.flatnonzero(targets == label))
        held[rows[: max(round(CHOSEN_ON * len(rows)), 1) if len(rows) > 1 else 0]] = True
    return held


class _Regression:
    """Logistic regression for several strengths, each fit starting at the previous minimum."""

    def __init__(self, features: np.ndarray, targets: np.ndarray, classes: int, start: Linear | None = None) -> None:
        self.mean, deviation = features.mean(0), features.std(0)
        # features that vary only by rounding are constant and are not scaled
        self.scale = np.where(deviation > 1e-6 * deviation.max(), deviation, 1.0)
        standard = (features - self.mean) / self.scale  # (N, D)
        variances, self.axes = np.linalg.eigh(standard.T @ standard / len(standard))
        self.variances = variances.clip(0)  # (D,)
        self.turned = standard @ self.axes  # (N, D)
        self.targets = (np.arange(len(targets)), targets)
        self.weight = np.zeros((features.shape[1], classes)) if start is None else start.weight
        self.bias = np.zeros(classes) if start is None else start.bias

    def fit(self, strength: float) -> Linear:
        """Returns the classifier with the lowest loss.

        The curvature of the loss is at most half the covariance plus the strength (Böhning 1992). In the principal axes, each
        divided by the square root of this bound, the curvature is nearly equal in all directions, so L-BFGS needs few steps.
        """
        from scipy.optimize import minimize  # a dependency of scikit-learn

        shrink = 1 / np.sqrt(self.variances[:, None] / 2 + strength)  # (D, 1)
        inputs, penalty = self.turned * shrink.T, strength * shrink**2
        shape = (len(self.weight) + 1, len(self.bias))  # the last row is the bias

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weight, bias = np.split(flat.reshape(shape), [-1])
            logs = log_softmax(inputs @ weight + bias)  # (N, K)
            value = (penalty * weight**2).sum() / 2 - logs[self.targets].mean()
            wrong = np.exp(logs)
            wrong[self.targets] -= 1
            wrong /= len(wrong)
            return float(value), np.vstack([inputs.T @ wrong + penalty * weight, wrong.sum(0)]).ravel()

        start = np.vstack([self.axes.T @ self.weight / shrink, self.bias])
        options = {"maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS, "gtol": STEEPEST / 10, "ftol": 0.0}
        result = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        weight, bias = np.split(result.x.reshape(shape), [-1])
        self.weight, self.bias = self.axes @ (weight * shrink), bias[0]
        converged = float(np.abs(result.jac).max()) <= STEEPEST
        return Linear(self.mean, self.scale, self.weight, self.bias, strength, converged=converged)


def draw_shots(targets: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Rows of ``shots`` images of each class; with the same seed, fewer shots are a subset of more.

    A class without images has no rows; all others need at least ``shots`` images.
    """
    generator = np.random.default_rng(seed)
    rows = [generator.permutation(np.flatnonzero(targets == label))[:shots] for label in np.unique(targets)]
    assert all(len(chosen) == shots for chosen in rows), f"a class with fewer than {shots} images"
    return np.concatenate(rows)


def ridge(train: Values, targets: Values, test: Values, *, classes: int) -> np.ndarray:
    """Regularised least squares from whitened features to targets of -1 and 1, in closed form (Dosovitskiy et al. 2021,
    section 4.1; the constants are those of big_vision's evaluator).

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        test: features (M, D).

    Returns:
        (M, K) float64; the largest is the prediction.
    """
    train, test = as_array(train).astype(np.float64), as_array(test).astype(np.float64)
    mean, scale = train.mean(0), train.std(0) + 1e-5
    inputs, asked = (
        np.pad((features - mean) / scale, ((0, 0), (0, 1)), constant_values=CONSTANT) for features in (train, test)
    )
    wanted = 2 * np.eye(classes)[as_array(targets)] - 1  # (N, K)
    images, width = inputs.shape
    if images >= width:
        return asked @ np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(width), inputs.T @ wanted)
    return asked @ (inputs.T @ np.linalg.solve(inputs @ inputs.T + RIDGE * np.eye(images), wanted))
