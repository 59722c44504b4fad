"""What the inspection of a model found, as plain data: its page and its ``numbers.json`` are made of this alone.

L layers of attention, H heads of one, h x w patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vitrail.analysis.cost import CostPoint
from vitrail.analysis.embeddings import LineSimilarity
from vitrail.analysis.equivariance import MapEquivariance, PermutationResponse, Response
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.locality import Locality


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The first layer: its first principal components as pictures, uint8 (n, P, Q, 3), and the share of the variance in each of
    all of them, (n or more,).
    """

    pictures: np.ndarray
    explained: np.ndarray
    width: int  # filters in all


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Position embeddings: ``similarity`` (h, w, h, w); the share of patches whose most similar other patch is a neighbour."""

    similarity: np.ndarray
    neighbour_rate: float
    neighbour_rate_with_corners: float
    lines: LineSimilarity


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image: the model's input as uint8 (H, W, 3), its answer, and maps (h, w) of what counted, by method; where one of
    them is larger than the picture, ``reach`` says how many times as high and as wide.
    """

    key: str
    label: str
    score: float
    picture: np.ndarray
    maps: Mapping[str, np.ndarray]
    reach: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def reach_of(self, method: str) -> tuple[float, float]:
        return self.reach.get(method, (1.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class Biases:
    """What the paper says CNNs have by construction (section 3.1), measured on ``images`` images.

    ``shifts``: by pixels, how the features answer to a moved window. ``maps``: how far each feature map moves with it.
    ``locality``: from how far each map's places take their input. ``permutation``: the patches in another order.
    """

    images: int
    shifts: Mapping[int, Response]
    maps: Sequence[MapEquivariance]
    locality: Sequence[Locality]
    permutation: PermutationResponse


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One of the paper's findings asked of this model: true, false, or None where it cannot be asked; and the figures."""

    claim: str
    holds: bool | None
    words: str


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """All that was found. What could not be measured is None or empty, and ``notes`` say why."""

    title: str
    model: str
    image_size: tuple[int, int]
    patch_size: tuple[int, int] | None  # of the patches that attention sees
    parameters: int
    multiply_adds: int
    filters: Filters
    positions: Positions | None = None
    heads: Sequence[HeadFigures] = ()
    samples: Sequence[Sample] = ()
    biases: Biases | None = None
    cost: Sequence[CostPoint] = ()  # by size of image
    cost_by_patch: Sequence[CostPoint] = ()  # of like models with other patches, freshly made
    findings: Sequence[Finding] = ()
    data: str = ""
    images: int = 0
    command: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    notes: Sequence[str] = ()
