"""Health of features, on clouds of points whose rank and spread are known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitrail.evaluation.feature_health import FeatureHealth, diagnose, effective_rank, measure, spread

HEALTHY = FeatureHealth(rank=60.0, spread=0.8, width=192)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def cloud(singular: list[float], width: int, count: int = 50) -> np.ndarray:
    """Centred features (count, width) with these singular values, in random directions."""
    drawn = normal(count, len(singular), seed=1)
    left, _ = np.linalg.qr(drawn - drawn.mean(0))  # columns of mean 0, orthonormal
    right, _ = np.linalg.qr(normal(width, len(singular), seed=2))
    return left * np.array(singular) @ right.T


@pytest.mark.parametrize(
    ("singular", "rank"),
    [([3.0], 1.0), ([2.0] * 4, 4.0), ([2.0, 1.0, 1.0], 2**1.5), ([0.7] * 12, 12.0)],
    ids=["a line", "four alike", "one as strong as two", "every dimension"],
)
def test_the_effective_rank_is_that_of_the_singular_values(singular, rank):
    assert effective_rank(cloud(singular, width=12)) == pytest.approx(rank)


def test_the_effective_rank_knows_neither_place_nor_scale_nor_rotation():
    features = cloud([3.0, 2.0, 0.5], width=6)
    turned, _ = np.linalg.qr(normal(6, 6, seed=3))
    expected = effective_rank(features)
    for changed in (features * 1e4, features + 7.0, features @ turned):
        assert effective_rank(changed) == pytest.approx(expected)


def test_one_point_has_no_rank_and_no_spread_even_with_the_rounding_of_fp32():
    point = normal(16).astype(np.float32)
    for features in (np.tile(point, (40, 1)), np.tile(point, (40, 1)) * np.linspace(1, 1 + 1e-7, 40)[:, None]):
        found = measure(features.astype(np.float32))
        assert found.rank == 0
        assert found.spread < 1e-6


def test_an_isotropic_cloud_uses_every_dimension_and_lies_all_over_the_sphere():
    found = measure(normal(20_000, 8))
    assert found.rank == pytest.approx(8, abs=0.01)
    assert found.spread == pytest.approx(1, abs=0.01)
    assert found.width == 8


def test_a_few_images_have_at_most_their_own_number_of_directions_less_one():
    assert 1 < effective_rank(normal(5, 30)) <= 4


def test_spread_is_worked_out_by_hand_for_two_points():
    assert spread(np.array([[3.0, 0.0], [0.0, 9.0]])) == pytest.approx(0.5 * 2**0.5)
    assert spread(np.array([[3.0, 0.0], [-1.0, 0.0]])) == pytest.approx(0.5 * 2**0.5)  # (1 + 0) / 2
    assert spread(np.array([[0.0, 0.0], [0.0, 0.0]])) == 0


def test_spread_knows_the_rotation_hardly_and_the_length_of_a_feature_not_at_all():
    features = normal(4000, 16) + 0.3
    turned, _ = np.linalg.qr(normal(16, 16, seed=3))
    assert spread(features * np.linspace(0.1, 10, 4000)[:, None]) == pytest.approx(spread(features))
    assert spread(features @ turned) == pytest.approx(spread(features), rel=0.01)


def test_the_mean_cosine_of_two_features_is_one_less_the_squared_spread_where_dimensions_vary_alike_else_less():
    def mean_cosine(features: np.ndarray) -> float:
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        return float((unit @ unit.T).mean())

    alike = normal(4000, 64) * 0.1 + normal(64, seed=4)
    assert mean_cosine(alike) == pytest.approx(1 - spread(alike) ** 2, abs=1e-3)
    unlike = alike + normal(4000, 64) * np.geomspace(0.01, 1, 64)
    assert mean_cosine(unlike) < 1 - spread(unlike) ** 2 - 0.05


def test_tensors_of_any_precision_are_taken():
    features = torch.from_numpy(normal(50, 6))
    assert measure(features.bfloat16()).rank == pytest.approx(measure(features).rank, rel=1e-2)
    assert measure(features.requires_grad_()).width == 6


def test_healthy_features_have_no_diagnosis():
    assert diagnose(HEALTHY) is None
    assert diagnose(replace(HEALTHY, rank=12.0, spread=0.2), HEALTHY) is None


def test_one_point_is_a_complete_collapse_and_a_line_a_dimensional_one():
    point = diagnose(measure(normal(40, 24) * 1e-3 + normal(24, seed=5)))
    line = diagnose(measure(cloud([1.0], width=24)))
    assert point is not None
    assert line is not None
    assert point.startswith("Complete collapse: all images have nearly the same feature. The spread is 0.00")
    assert line.startswith("Dimensional collapse: the features use few of their 24 dimensions.")
    assert "effective rank is 1.0." in line


def test_a_diagnosis_says_the_figure_before_training():
    few = diagnose(replace(HEALTHY, rank=4.0), HEALTHY)
    one = diagnose(replace(HEALTHY, spread=0.003), HEALTHY)
    assert few is not None
    assert one is not None
    assert "effective rank is 4.0, 60.0 before training" in few
    assert "spread is 0.003, 0.8 before training" in one


def test_a_rank_that_training_did_not_lower_is_not_a_collapse():
    narrow = FeatureHealth(rank=3.0, spread=0.03, width=192)
    assert diagnose(narrow) is not None
    assert diagnose(narrow, narrow) is None
    assert diagnose(replace(narrow, spread=0.04, rank=5.0), narrow) is None
    fewer = diagnose(replace(narrow, rank=2.5), narrow)
    assert fewer is not None
    assert fewer.startswith("Dimensional")
