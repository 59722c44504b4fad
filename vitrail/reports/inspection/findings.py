"""The ViT paper's findings about what attention and positions learn (section 4.5), asked of a model by its numbers.

L layers, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.reports.inspection.facts import Finding, Positions

LOCAL, GLOBAL = (
    0.5,
    0.75,
)  # of the distance of uniform attention: a head below the one is local, from the other on global
TOO_FEW = "There are fewer than three layers in which places attend to places."
NOT_SEEN = "No attention was looked at."
NEAREST = 0.95  # of the patches must have their most similar position beside them


def findings(heads: Sequence[HeadFigures], positions: Positions | None) -> list[Finding]:
    """Each finding with its verdict; those that the model cannot be asked stay without one."""
    return [
        low_layers_mix(heads),
        distance_grows(heads),
        positions_know_neighbours(positions),
        lines_are_alike(positions),
    ]


def low_layers_mix(heads: Sequence[HeadFigures]) -> Finding:
    """Figure 7, right: in the lowest layers some heads look at most of the image, others at small distances."""
    claim = "The low layers have local heads and global heads"
    asked = _shares(heads)
    if len(asked) < 3:
        return Finding(claim=claim, holds=None, words=TOO_FEW if heads else NOT_SEEN)
    low = np.concatenate(asked[: math.ceil(len(asked) / 3)])
    local, all_over = int((low < LOCAL).sum()), int((low >= GLOBAL).sum())
    words = (
        f"Of the {len(low)} heads of the lowest third of the layers {local} look less than {LOCAL:g} times as far as uniform "
        f"attention would, {all_over} at least {GLOBAL:g} times; the nearest {low.min():.2f}, the farthest {low.max():.2f}."
    )
    return Finding(claim=claim, holds=bool(local and all_over), words=words)


def distance_grows(heads: Sequence[HeadFigures]) -> Finding:
    """Figure 7, right: the attention distance increases with depth."""
    claim = "The attention distance grows with depth"
    asked = _shares(heads)
    if len(asked) < 3:
        return Finding(claim=claim, holds=None, words=TOO_FEW if heads else NOT_SEEN)
    means = np.array([layer.mean() for layer in asked])
    third = math.ceil(len(means) / 3)
    low, high, order = means[:third].mean(), means[-third:].mean(), rank_correlation(means)
    words = (
        f"The mean over heads is {low:.2f} of the distance of uniform attention in the lowest third of the layers and {high:.2f} "
        f"in the highest; its rank correlation with depth is {order:.2f}."
    )
    return Finding(claim=claim, holds=bool(high > low and order > 0.5), words=words)


def positions_know_neighbours(positions: Positions | None) -> Finding:
    """Figure 7, centre: closer patches tend to have more similar position embeddings."""
    claim = "Neighbouring patches have the most similar positions"
    if positions is None or math.isnan(positions.neighbour_rate):
        words = "No position embeddings are added to the patches, or there is only one."
        return Finding(claim=claim, holds=None, words=words)
    rate = positions.neighbour_rate
    words = (
        f"For {rate:.1%} of the patches the most similar other position is that of one of the four patches beside it."
    )
    return Finding(claim=claim, holds=rate >= NEAREST, words=words)


def lines_are_alike(positions: Positions | None) -> Finding:
    """Section 4.5: patches in the same row or column have similar embeddings."""
    claim = "Positions of one row or column are alike"
    if positions is None or math.isnan(positions.lines.row):
        words = "No position embeddings are added to the patches, or the grid is too small."
        return Finding(claim=claim, holds=None, words=words)
    lines = positions.lines
    words = (
        f"The mean similarity is {lines.row:.2f} in a row, {lines.column:.2f} in a column and {lines.elsewhere:.2f} elsewhere at "
        "the same distances."
    )
    return Finding(claim=claim, holds=min(lines.row, lines.column) > lines.elsewhere, words=words)


def _shares(heads: Sequence[HeadFigures]) -> list[np.ndarray]:
    """Of each layer in which places ask, the distance of its heads as a share of that of uniform attention: (H,) each.

    Pyramids look at maps of several scales, and windows at most as far as they reach: in shares they can be compared.
    """
    return [layer.distance.numpy() / layer.uniform for layer in heads if layer.uniform > 0]


def rank_correlation(values: np.ndarray) -> float:
    """Spearman's, of values (L,) with their own order; ties share their rank."""
    ranks = np.array([(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values])
    places = np.arange(len(values))
    return float(np.corrcoef(ranks, places)[0, 1]) if len(set(ranks)) > 1 else 0.0
