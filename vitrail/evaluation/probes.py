"""What frozen features are worth: nearest neighbours, a linear classifier, and least squares on a few images of each class.

N training images, M judged ones, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import ConfigError, DataError
from vitrail.tasks.metrics import Values, as_array, log_softmax

CELLS = 4_000_000  # similarities held in memory at one time
STRENGTHS = tuple(10.0**power for power in range(3, -7, -1))  # of the L2 penalty, the strongest first
CHOSEN_ON = 0.2  # of the training images of each class
STEEPEST = 1e-5  # slope that may be left in a minimum
ITERATIONS = 2000
RIDGE, CONSTANT = 1024.0, 100.0  # of the least squares: the penalty, and the feature that carries the bias


def knn(
    train: Values, targets: Values, test: Values, *, classes: int, k: int = 20, temperature: float = 0.07
) -> np.ndarray:
    """The votes of the nearest training images (Wu et al. 2018, section 3.4; Caron et al. 2021, DINO).

    Each of the ``k`` images of the highest cosine similarity s gives exp(s / ``temperature``) to its class.

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        test: features (M, D).

    Returns:
        (M, K) float32, relative to the vote of the nearest; the largest is the answer.

    Raises:
        ConfigError: ``k`` is not between 1 and N, or ``temperature`` not above 0.
    """
    check_neighbours(k, len(train))
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}", "give a number above 0, such as 0.07")
    known, asked = F.normalize(_floats(train), dim=1), _floats(test)
    labels = torch.as_tensor(targets).to(known.device, torch.int64)
    # made whole at once: small results kept between large passing ones would break up the memory
    votes = torch.zeros(len(asked), classes, device=known.device)
    rows = max(CELLS // len(known), 1)
    for some, part in zip(asked.split(rows), votes.split(rows)):
        similarity, nearest = (F.normalize(some.to(known.device), dim=1) @ known.T).topk(k, dim=1)  # (m, k) each
        # relative to the nearest: the same answer, and no temperature is so small that an exponential overflows
        part.scatter_add_(1, labels[nearest], ((similarity - similarity[:, :1]) / temperature).exp())
    return votes.cpu().numpy()


def check_neighbours(k: int, images: int) -> None:
    """Raises `ConfigError` where ``k`` is not between 1 and the number of training images."""
    if not 1 <= k <= images:
        raise ConfigError(f"k is {k}, for {images:,} training images", f"give a k from 1 to {images}")


def _floats(features: Values) -> torch.Tensor:
    return torch.as_tensor(features).detach().float()


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear classifier of features (M, D), and how it was found.

    ``strength`` is the L2 penalty that was chosen among `STRENGTHS`; ``at_edge``: it is the first or the last of them;
    ``converged``: the slope of the loss that was left is small.
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
    """Multinomial logistic regression on standardised features, the minimum of a convex loss, found in fp64.

    The loss is the mean cross-entropy plus strength / 2 times the squared weights, the bias left free. Each strength is tried
    on a fifth of each class's images, drawn by ``seed``; the most accurate, and of several such the likeliest, is fitted on
    all.

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        strengths: more than 0 each; they are tried in falling order, each from the minimum of the last.

    Raises:
        DataError: no class has two images.
    """
    features, targets = as_array(train).astype(np.float64), as_array(targets)
    strengths = sorted(strengths, reverse=True)
    held = _a_part(targets, seed)
    if not held.any():
        fact = "no class has two training images, so no strength of the penalty can be chosen"
        raise DataError(fact, "use the protocol knn or fewshot, or give more images")
    problem = _Regression(features[~held], targets[~held], classes)
    best, most = None, (-1.0, -np.inf)
    for strength in strengths:
        found = problem.minimum(strength)
        logits = found(features[held])
        right = float((logits.argmax(1) == targets[held]).mean())
        likelihood = float(log_softmax(logits)[np.arange(len(logits)), targets[held]].mean())
        if (right, likelihood) > most:
            best, most = found, (right, likelihood)
    assert best is not None, "no strengths"
    at_edge = best.strength in (strengths[0], strengths[-1])
    found = _Regression(features, targets, classes, start=best).minimum(best.strength)
    return replace(found, at_edge=at_edge)


def _a_part(targets: np.ndarray, seed: int) -> np.ndarray:
    """Which images the strength is chosen on: (N,) bool; of a class with two images or more at least one."""
    generator, held = np.random.default_rng(seed), np.zeros(len(targets), bool)
    for each in np.unique(targets):
        rows = generator.permutation(np.flatnonzero(targets == each))
        held[rows[: max(round(CHOSEN_ON * len(rows)), 1) if len(rows) > 1 else 0]] = True
    return held


class _Regression:
    """One logistic regression for several strengths, each started from the minimum of the one before."""

    def __init__(self, features: np.ndarray, targets: np.ndarray, classes: int, start: Linear | None = None) -> None:
        self.mean, deviation = features.mean(0), features.std(0)
        # what only rounding moves is constant, and stays as it is
        self.scale = np.where(deviation > 1e-6 * deviation.max(), deviation, 1.0)
        standard = (features - self.mean) / self.scale  # (N, D)
        variances, self.axes = np.linalg.eigh(standard.T @ standard / len(standard))
        self.variances = variances.clip(0)  # (D,)
        self.turned = standard @ self.axes  # (N, D)
        self.targets = (np.arange(len(targets)), targets)
        self.weight = np.zeros((features.shape[1], classes)) if start is None else start.weight
        self.bias = np.zeros(classes) if start is None else start.bias

    def minimum(self, strength: float) -> Linear:
        """The classifier of the least loss.

        The curvature of the loss is at most half the covariance plus the strength (Böhning 1992), so along the principal axes,
        each divided by the root of that, it is nearly the same in all directions, and L-BFGS needs few steps.
        """
        from scipy.optimize import minimize  # scikit-learn brings scipy

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
        how = {"maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS, "gtol": STEEPEST / 10, "ftol": 0.0}
        found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=how)
        weight, bias = np.split(found.x.reshape(shape), [-1])
        self.weight, self.bias = self.axes @ (weight * shrink), bias[0]
        converged = float(np.abs(found.jac).max()) <= STEEPEST
        return Linear(self.mean, self.scale, self.weight, self.bias, strength, converged=converged)


def draw_shots(targets: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Rows of ``shots`` images of each class; of one seed, fewer shots are a part of more.

    A class without images has no rows; no other may have fewer than ``shots``.
    """
    generator = np.random.default_rng(seed)
    rows = [generator.permutation(np.flatnonzero(targets == each))[:shots] for each in np.unique(targets)]
    assert all(len(each) == shots for each in rows), f"a class with fewer than {shots} images"
    return np.concatenate(rows)


def ridge(train: Values, targets: Values, test: Values, *, classes: int) -> np.ndarray:
    """Regularised least squares from whitened features to targets of -1 and 1, in closed form (Dosovitskiy et al. 2021,
    section 4.1; the constants are those of big_vision's evaluator).

    Args:
        train: features (N, D).
        targets: (N,) indices of classes.
        test: features (M, D).

    Returns:
        (M, K) float64; the largest is the answer.
    """
    train, test = as_array(train).astype(np.float64), as_array(test).astype(np.float64)
    mean, scale = train.mean(0), train.std(0) + 1e-5
    inputs, asked = (
        np.pad((each - mean) / scale, ((0, 0), (0, 1)), constant_values=CONSTANT) for each in (train, test)
    )
    wanted = 2 * np.eye(classes)[as_array(targets)] - 1  # (N, K)
    images, width = inputs.shape
    if images >= width:
        return asked @ np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(width), inputs.T @ wanted)
    return asked @ (inputs.T @ np.linalg.solve(inputs @ inputs.T + RIDGE * np.eye(images), wanted))
