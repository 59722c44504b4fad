"""The health of learned features: how many directions they use, how far apart they lie, and whether they have collapsed.

An objective without labels can fall to a trivial answer while its loss looks well: the same feature for every image, or
features that differ in a few directions alone. N images, D dimensions of a feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.tasks.metrics import Values, as_array

# where all dimensions vary alike, the mean cosine of two images' features is 1 - spread²: here 0.9975, all but one point
ONE_POINT = 0.05
FEW_DIMENSIONS = 0.05  # of the width; encoders that serve as they should use several times as many, untrained ones too
LINE = 2.0  # features on one line have rank 1, and in a narrow encoder 5 % of the width would be less than that


@dataclass(frozen=True)
class Health:
    """Of features (N, D): their `effective_rank`, their `spread`, and their width D, which both are to be read against."""

    rank: float
    spread: float
    width: int


def measure(features: Values) -> Health:
    """The health of features (N, D); of at least several times D images, as no N of them have a rank above N - 1."""
    return Health(rank=effective_rank(features), spread=spread(features), width=features.shape[1])


def effective_rank(features: Values) -> float:
    """The exponential of the entropy of the singular values, normalised to sum to one (Roy and Vetterli 2007, section 2).

    Of the features (N, D) without their mean, where RankMe (Garrido et al. 2023, section 3) leaves it in: a feature that all
    images share tells none apart, and as the largest singular value by far it would hide what does. Singular values
    below the rounding of fp32 count as none: otherwise a point but for rounding would have the full rank of noise.

    Returns:
        At least 1, at most the smaller of N - 1 and D, whatever the scale and the rotation; 0 where all features are equal.
    """
    raw = as_array(features).astype(np.float64)
    values = np.linalg.svd(raw - raw.mean(0), compute_uv=False)
    values = values[values > np.finfo(np.float32).eps * np.linalg.norm(raw)]
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def spread(features: Values) -> float:
    """The standard deviation of the features (N, D), scaled to length 1 each, by dimension; the mean, times √D.

    About 1 where they lie all over the sphere, 0 where all are one point (Chen and He 2021, "Exploring Simple Siamese
    Representation Learning", section 4.1, figure 2). A feature of length 0 stays as it is.
    """
    raw = as_array(features).astype(np.float64)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    unit = np.divide(raw, lengths, out=np.zeros_like(raw), where=lengths > 0)
    return float(unit.std(0).mean() * raw.shape[1] ** 0.5)


def diagnose(now: Health, before: Health | None = None) -> str | None:
    """Names a collapse in a sentence with its figures; None where there is none.

    Args:
        now: of the trained encoder.
        before: of the same encoder with the weights it began with, on the same images. What training did not lower is no
            collapse, however low: some architectures begin with narrow features, and plain images have few directions.
    """
    spread_was = f", {before.spread:.2g} before training" if before else ""
    if now.spread < ONE_POINT and (before is None or now.spread < before.spread):
        return (
            f"Complete collapse: all images have nearly one feature. Their spread is {now.spread:.2g}{spread_was}; "
            "it is about 1 for features all over the sphere and 0 for one point."
        )
    rank_was = f", {before.rank:.1f} before training" if before else ""
    if now.rank < max(LINE, FEW_DIMENSIONS * now.width) and (before is None or now.rank < before.rank):
        return (
            f"Dimensional collapse: the features differ in few of their {now.width:,} dimensions. Their effective rank is "
            f"{now.rank:.1f}{rank_was}."
        )
    return None
