"""Tests findings on a model: those of the ViT paper about attention and position embeddings (section 4.5), and artefacts.

L layers, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.tokens import LEAST, NEAR, OUTLIER, RARE
from vitrail.reports.inspection.facts import Finding, Positions, Rotations, Tokens
from vitrail.text import percent, plural

# relative to the distance of uniform attention: heads below LOCAL are local, heads from GLOBAL on are global
LOCAL, GLOBAL = 0.5, 0.75
TOO_FEW = "Fewer than three layers have attention between patches."
NOT_SEEN = "Attention was not measured."
EMBEDDING, KERNEL = "position embedding", "content-free attention logit"
OFTEN = 0.5  # share of the images with an outlier in a cell, from which the cell is named
NEAREST = 0.95  # required share of patches whose most similar position embedding is adjacent


def findings(
    heads: Sequence[HeadFigures],
    positions: Positions | None,
    rotations: Rotations | None = None,
    *,
    is_rotary: bool = False,
) -> list[Finding]:
    """Returns all findings; the result is None for those that cannot be tested on the model.

    Without position embeddings, those about positions are tested on the content-free kernel of rotary positions.
    """
    known = [low_layers_mix(heads), distance_grows(heads)]
    if positions is None and rotations is not None:
        return [*known, positions_know_neighbours(rotations.kernel, KERNEL), lines_are_alike(rotations.kernel, KERNEL)]
    known += [positions_know_neighbours(positions), lines_are_alike(positions)]
    if positions is None and is_rotary:
        known[2:] = [replace(finding, words=NOT_SEEN) for finding in known[2:]]
    return known


def low_layers_mix(heads: Sequence[HeadFigures]) -> Finding:
    """Figure 7, right: in the lowest layers some heads attend to most of the image, others at small distances."""
    claim = "The low layers have local heads and global heads"
    shares = relative_distances(heads)
    if len(shares) < 3:
        return Finding(claim=claim, holds=None, words=TOO_FEW if heads else NOT_SEEN)
    low = np.concatenate(shares[: math.ceil(len(shares) / 3)])
    local, all_over = int((low < LOCAL).sum()), int((low >= GLOBAL).sum())
    words = (
        f"Attention distances of the {len(low)} heads in the lowest third of the layers, relative to uniform attention: {local} "
        f"below {LOCAL:g}, {all_over} at least {GLOBAL:g}; minimum {low.min():.2f}, maximum {low.max():.2f}."
    )
    return Finding(claim=claim, holds=bool(local and all_over), words=words)


def distance_grows(heads: Sequence[HeadFigures]) -> Finding:
    """Figure 7, right: the attention distance increases with depth."""
    claim = "The attention distance grows with depth"
    if len(relative_distances(heads)) < 3:
        return Finding(claim=claim, holds=None, words=TOO_FEW if heads else NOT_SEEN)
    figures = summarise_heads(heads)
    low, high, order = (figures[name] for name in ("distance_low", "distance_high", "growth"))
    words = (
        f"The mean over heads, relative to uniform attention, is {low:.2f} in the lowest third of the layers and {high:.2f} in "
        f"the highest; its rank correlation with depth is {order:.2f}."
    )
    return Finding(claim=claim, holds=bool(high > low and order > 0.5), words=words)


def positions_know_neighbours(positions: Positions | None, what: str = EMBEDDING) -> Finding:
    """Figure 7, centre: closer patches tend to have more similar position embeddings."""
    claim = "Neighbouring patches have the most similar positions"
    if positions is None or math.isnan(positions.neighbour_rate):
        words = "No position embeddings are added to the patches, or there is only one patch."
        return Finding(claim=claim, holds=None, words=words)
    rate = positions.neighbour_rate
    words = f"For {percent(rate)} of the patches the most similar other {what} is that of one of the 4 neighbours."
    return Finding(claim=claim, holds=rate >= NEAREST, words=words)


def lines_are_alike(positions: Positions | None, what: str = EMBEDDING) -> Finding:
    """Section 4.5: patches in the same row or column have similar embeddings."""
    claim = "Positions of one row or column are alike"
    if positions is None or math.isnan(positions.lines.row):
        words = "No position embeddings are added to the patches, or the grid is too small."
        return Finding(claim=claim, holds=None, words=words)
    lines = positions.lines
    measure = "cosine similarity" if what == EMBEDDING else f"{what}, in standard deviations,"
    words = (
        f"The mean {measure} is {lines.row:.2f} within rows, {lines.column:.2f} within columns and {lines.elsewhere:.2f} "
        "elsewhere at the same distances."
    )
    return Finding(claim=claim, holds=min(lines.row, lines.column) > lines.elsewhere, words=words)


def norms_have_outliers(tokens: Tokens) -> Finding:
    """Darcet et al. 2024, "Vision Transformers Need Registers": a few patches have norms far above all others."""
    claim, most = "A few patches have outlier norms (artefacts)", max(map_.norms.size for map_ in tokens.maps)
    if most * RARE[1] < LEAST:
        words = f"With {plural(most, 'patch', 'patches')} there are too few to tell."
        return Finding(claim=claim, holds=None, words=words, of_paper=False)
    if (onset := tokens.onset) is None:
        far = max(map_.largest / map_.median if map_.median else 0.0 for map_ in tokens.maps)
        words = f"In no feature map are a few norms far from all others; the largest is {far:.1f} times the median of its map."
        return Finding(claim=claim, holds=False, words=words, of_paper=False)
    map_ = tokens.maps[tokens.shown]
    words = (
        f"They begin with feature map {onset}, after {tokens.after} {onset + 1} of {len(tokens.maps)}. In map {tokens.shown}, "
        f"{percent(map_.outliers)} of the patches have more than {OUTLIER:g} times the median norm, up to "
        f"{map_.largest / map_.median:.0f} times, and {percent(map_.near, 2)} have {NEAR:g} to {OUTLIER:g} times. "
        f"{describe_places(map_.places)}"
    )
    if tokens.neuron is not None:
        words += f" Neuron {tokens.neuron.index} of the MLP of {tokens.after} {onset + 1} makes them."
    words += " Attention and similarity maps are unreliable there. Models with registers lack such patches;"
    words += " vitrail inspect --registers 2 gives a ViT a test-time register."
    return Finding(claim=claim, holds=True, words=words, of_paper=False)


def describe_places(places: np.ndarray, most: int = 4) -> str:
    """Returns a sentence on the cells with the largest share of images with an outlier, ``places`` (h, w)."""
    order = np.argsort(-places, axis=None, kind="stable")[:most]
    often = [place for place in order if places.flat[place] >= OFTEN] or order[:1]
    named = (
        "({}, {}) in {}".format(*np.unravel_index(place, places.shape), percent(places.flat[place], 0))
        for place in often
    )
    return f"Most often they are at row and column {', '.join(named)} of the images."


def summarise_heads(heads: Sequence[HeadFigures]) -> dict[str, float]:
    """Returns figures of all heads by name, empty without attention between patches. Distances are relative to uniform
    attention; ``growth`` is the rank correlation of the mean over heads with depth.
    """
    if not (shares := relative_distances(heads)):
        return {}
    every, means = np.concatenate(shares), np.array([layer.mean() for layer in shares])
    third = math.ceil(len(means) / 3)
    return {
        "local_heads": float((every < LOCAL).mean()),
        "global_heads": float((every >= GLOBAL).mean()),
        "distance": float(every.mean()),
        "distance_low": float(means[:third].mean()),
        "distance_high": float(means[-third:].mean()),
        "growth": rank_correlation(means),
    }


def relative_distances(heads: Sequence[HeadFigures]) -> list[np.ndarray]:
    """Returns the distances of the heads of each layer with spatial queries, relative to uniform attention: (H,) each.

    Relative values are comparable between the scales of a pyramid and between windows of different sizes.
    """
    return [layer.distance.numpy() / layer.uniform for layer in heads if layer.uniform > 0]


def rank_correlation(values: np.ndarray) -> float:
    """Returns Spearman's rank correlation of values (L,) with their index; 0 for equal values."""
    from scipy.stats import spearmanr  # a dependency of scikit-learn

    return float(spearmanr(np.arange(len(values)), values).statistic) if len(set(values.tolist())) > 1 else 0.0
