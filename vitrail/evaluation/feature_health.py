"""The health of learned features: effective rank, spread, and detection of collapse.

An objective without labels can reach a trivial solution while its loss looks good: the same feature for every image, or
features that differ only in a few directions. N images, D dimensions of a feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.tasks.metric import Values, as_array

# if all dimensions vary equally, the mean cosine of two features is 1 - spread²: here 0.9975, nearly a single point
ONE_POINT = 0.05
FEW_DIMENSIONS = 0.05  # of the width; healthy encoders use several times as many, also untrained ones
LINE = 2.0  # features on a line have rank 1, and in a narrow encoder 5 % of the width could be less


@dataclass(frozen=True)
class FeatureHealth:
    """The `effective_rank` and `spread` of features (N, D), and their width D, for comparison."""

    rank: float
    spread: float
    width: int


def measure(features: Values) -> FeatureHealth:
    """Returns the health of features (N, D). N should be several times D, because the rank is at most N - 1."""
    return FeatureHealth(rank=effective_rank(features), spread=spread(features), width=features.shape[1])


def effective_rank(features: Values) -> float:
    """Returns the exponential of the entropy of the singular values, normalised to sum to one (Roy and Vetterli 2007, section 2).

    The mean of the features (N, D) is subtracted first, unlike in RankMe (Garrido et al. 2023, section 3): it does not
    distinguish images, and as by far the largest singular value it would hide the others. Singular values below the
    rounding error of fp32 are ignored: otherwise the rounding noise of equal features would have full rank.

    Returns:
        From 1 to the smaller of N - 1 and D, independent of scale and rotation; 0 if all features are equal.
    """
    raw = as_array(features).astype(np.float64)
    values = np.linalg.svd(raw - raw.mean(0), compute_uv=False)
    values = values[values > np.finfo(np.float32).eps * np.linalg.norm(raw)]
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def spread(features: Values) -> float:
    """Returns the standard deviation per dimension of the features (N, D) scaled to length 1, averaged, times √D.

    About 1 if they are uniform on the sphere, 0 if all are equal (Chen and He 2021, "Exploring Simple Siamese
    Representation Learning", section 4.1, figure 2). Features of length 0 are not scaled.
    """
    raw = as_array(features).astype(np.float64)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    unit = np.divide(raw, lengths, out=np.zeros_like(raw), where=lengths > 0)
    return float(unit.std(0).mean() * raw.shape[1] ** 0.5)


def diagnose(now: FeatureHealth, before: FeatureHealth | None = None) -> str | None:
    """Returns a sentence that describes a collapse, with its numbers; None if there is none.

    Args:
        now: of the trained encoder.
        before: of the same encoder with its initial weights, on the same images. A value that training did not lower is not
            a collapse: some architectures start with narrow features, and simple images have few directions.
    """
    spread_was = f", {before.spread:.2g} before training" if before else ""
    if now.spread < ONE_POINT and (before is None or now.spread < before.spread):
        return (
            f"Complete collapse: all images have nearly the same feature. The spread is {now.spread:.2g}{spread_was}; "
            "it is about 1 for features that are uniform on the sphere and 0 for equal features."
        )
    rank_was = f", {before.rank:.1f} before training" if before else ""
    if now.rank < max(LINE, FEW_DIMENSIONS * now.width) and (before is None or now.rank < before.rank):
        return (
            f"Dimensional collapse: the features use few of their {now.width:,} dimensions. The effective rank is "
            f"{now.rank:.1f}{rank_was}."
        )
    return None
