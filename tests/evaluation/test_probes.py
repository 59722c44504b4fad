"""The probes, against scikit-learn, a plain NumPy solve and data whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.errors import ConfigError, DataError
from vitrail.evaluation import probes
from vitrail.evaluation.probes import STRENGTHS, draw_shots, knn, linear, ridge


def clouds(
    images: int, *, classes: int = 3, width: int = 8, apart: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, D) float32 around one centre for each class, of correlated columns far from zero; and targets (N,)."""
    fixed, generator = np.random.default_rng(7), np.random.default_rng(seed)
    mix, centres, offset = (
        fixed.normal(size=(width, width)),
        fixed.normal(size=(classes, width)),
        fixed.normal(size=width),
    )
    targets = np.arange(images) % classes
    features = (apart * centres[targets] + generator.normal(size=(images, width))) @ mix + 3 * offset
    return features.astype(np.float32), targets


def unit(features: np.ndarray) -> np.ndarray:
    return features / np.linalg.norm(features, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 5, 20])
def test_the_votes_are_those_of_scikit_learn(k):
    from sklearn.neighbors import KNeighborsClassifier

    (train, targets), (test, _) = clouds(90), clouds(40, seed=1)
    oracle = KNeighborsClassifier(
        k, metric="euclidean", algorithm="brute", weights=lambda d: np.exp((1 - d**2 / 2) / 0.07)
    ).fit(unit(train), targets)
    votes = knn(train, targets, test, classes=3, k=k)
    np.testing.assert_allclose(votes / votes.sum(1, keepdims=True), oracle.predict_proba(unit(test)), atol=1e-4)


def test_the_votes_do_not_depend_on_how_many_images_are_evaluated_at_a_time(monkeypatch):
    (train, targets), (test, _) = clouds(90), clouds(40, seed=1)
    whole = knn(train, targets, test, classes=4)
    monkeypatch.setattr(probes, "CELLS", 300)
    np.testing.assert_allclose(
        knn(torch.from_numpy(train), torch.from_numpy(targets), test, classes=4), whole, rtol=1e-5
    )
    assert whole.shape == (40, 4)
    assert knn(train, targets, test[:0], classes=4).shape == (0, 4)


def test_at_a_temperature_near_zero_the_nearest_decides(monkeypatch):
    monkeypatch.setattr(probes, "TEMPERATURE", 1e-6)
    (train, targets), (test, _) = clouds(90), clouds(40, seed=1)
    nearest = targets[(unit(test) @ unit(train).T).argmax(1)]
    assert (knn(train, targets, test, classes=3).argmax(1) == nearest).all()


@pytest.mark.parametrize("asked", [{"k": 0}, {"k": 91}])
def test_neighbours_that_are_not_there_are_refused(asked):
    train, targets = clouds(90)
    with pytest.raises(ConfigError, match="give a"):
        knn(train, targets, train, classes=3, **asked)


@pytest.mark.parametrize("strength", [10.0, 0.1, 1e-3])
def test_the_linear_classifier_is_that_of_scikit_learn(strength):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    (train, targets), (test, _) = clouds(200), clouds(50, seed=1)
    found = linear(train, targets, classes=3, strengths=(strength,))
    train, test = train.astype(np.float64), test.astype(np.float64)
    standard = StandardScaler().fit(train)
    oracle = LogisticRegression(C=1 / (strength * len(train)), tol=1e-9, max_iter=5_000)
    oracle.fit(standard.transform(train), targets)
    expected = oracle.decision_function(standard.transform(test))
    logits = found(test)
    np.testing.assert_allclose(logits - logits.mean(1, keepdims=True), expected, atol=1e-3)
    assert found.converged


def test_the_slope_at_the_minimum_is_nothing():
    train, targets = clouds(300, width=20)
    found = linear(train, targets, classes=3, strengths=(1e-4,))
    inputs = (train - found.mean) / found.scale
    logits = inputs @ found.weight + found.bias
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    slope = inputs.T @ (p - np.eye(3)[targets]) / len(train) + found.strength * found.weight
    assert np.abs(slope).max() < 1e-5


@pytest.mark.slow
def test_the_strength_is_the_one_that_does_best_on_the_held_out_fifth():
    train, targets = clouds(120, width=60, apart=0.3)
    held = probes._hold_out(targets, 0)
    assert np.bincount(targets[held]).tolist() == [8, 8, 8]

    def grade(strength: float) -> tuple[float, float]:
        logits = linear_on(train[~held], targets[~held], strength)(train[held])
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return (logits.argmax(1) == targets[held]).mean(), logs[np.arange(len(logs)), targets[held]].mean()

    found = linear(train, targets, classes=3)
    assert found.strength == max(STRENGTHS, key=grade)
    assert not found.at_edge
    assert linear(train, targets, classes=3, strengths=(1e-6, 1e-5)).at_edge


def linear_on(train: np.ndarray, targets: np.ndarray, strength: float) -> probes.Linear:
    return probes._Regression(train.astype(np.float64), targets, 3).fit(strength)


def test_a_solver_that_does_not_converge_warns(monkeypatch):
    train, targets = clouds(200, width=30)
    monkeypatch.setattr(probes, "ITERATIONS", 2)
    assert not linear(train, targets, classes=3, strengths=(1e-5,)).converged


def test_constant_features_change_nothing():
    (train, targets), (test, _) = clouds(90), clouds(40, seed=1)
    wider, evaluated = (np.pad(each, ((0, 0), (0, 2)), constant_values=0.1) for each in (train, test))
    np.testing.assert_allclose(
        linear(wider, targets, classes=3)(evaluated), linear(train, targets, classes=3)(test), atol=1e-3
    )


def test_a_strength_needs_a_class_of_two_images():
    with pytest.raises(DataError, match="fewshot"):
        linear(np.eye(3), np.arange(3), classes=3)


@pytest.mark.parametrize(("images", "width"), [(30, 8), (6, 40)], ids=["more images", "more features"])
def test_the_least_squares_are_those_of_a_plain_solve(images, width):
    (train, targets), (test, _) = clouds(images, width=width), clouds(20, width=width, seed=1)
    mean, scale = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64) + 1e-5
    inputs, asked = (np.hstack([(each - mean) / scale, np.full((len(each), 1), 100.0)]) for each in (train, test))
    weight = np.linalg.inv(inputs.T @ inputs + 1024 * np.eye(width + 1)) @ inputs.T @ (2 * np.eye(3)[targets] - 1)
    np.testing.assert_allclose(ridge(train, targets, test, classes=3), asked @ weight, atol=1e-5)


def test_shots_are_drawn_from_every_class_and_fewer_are_a_part_of_more():
    _, targets = clouds(60)
    few, many = draw_shots(targets, 2, seed=0), draw_shots(targets, 9, seed=0)
    assert set(few) < set(many)
    assert np.bincount(targets[many]).tolist() == [9, 9, 9]
    assert len(set(many)) == 27
    assert set(draw_shots(targets, 9, seed=1)) != set(many)


def accuracy(protocol: str, train: np.ndarray, targets: np.ndarray, test: np.ndarray, true: np.ndarray) -> float:
    solve = {
        "knn": lambda: knn(train, targets, test, classes=3),
        "linear": lambda: linear(train, targets, classes=3)(test),
        "fewshot": lambda: ridge(train, targets, test, classes=3),
    }
    return float((solve[protocol]().argmax(1) == true).mean())


@pytest.mark.parametrize("protocol", ["knn", "linear", "fewshot"])
def test_separable_features_are_always_right_and_shuffled_targets_are_chance(protocol):
    # directions of their own for the classes, as cosines and squares need them
    generator = np.random.default_rng(0)
    targets, true = np.arange(300) % 3, np.arange(600) % 3
    train, test = (6 * np.eye(3, 12)[each] + 0.5 * generator.normal(size=(len(each), 12)) for each in (targets, true))
    assert accuracy(protocol, train, targets, test, true) == 1
    assert 0.2 < accuracy(protocol, train, generator.permutation(targets), test, generator.permutation(true)) < 0.47
