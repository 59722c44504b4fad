"""The results of an inspection as plain data, the only input of its page and of ``numbers.json``.

L attention layers, H heads per layer, h x w patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vitrail.analysis.components import Components
from vitrail.analysis.cost import CostPoint
from vitrail.analysis.embeddings import LineSimilarity
from vitrail.analysis.equivariance import MapEquivariance, PermutationResponse, Response
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.locality import Locality
from vitrail.analysis.offsets import OffsetFigures
from vitrail.analysis.registers import Register
from vitrail.analysis.tokens import MapNorms, Neuron, find_onset
from vitrail.reports.facts import Origin


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The first layer: its first principal components as images, uint8 (n, P, Q, 3), and the explained variance ratio of all
    components, (n or more,).
    """

    pictures: np.ndarray
    explained: np.ndarray
    width: int  # number of filters


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Position embeddings: ``similarity`` (h, w, h, w), and the share of patches whose most similar patch is adjacent."""

    similarity: np.ndarray
    neighbour_rate: float
    neighbour_rate_with_corners: float
    lines: LineSimilarity


@dataclass(frozen=True, kw_only=True)
class Rotations:
    """Rotary positions, measured on ``images`` images: attention and its content-free kernel by offset, and the wavelengths.

    ``kernel`` is the mean over all heads, each scaled to mean 0 and standard deviation 1, as the similarity of pairs of patches.
    """

    images: int
    rule: str  # a name of `vitrail.models.rope.ROPES`
    layers: Sequence[OffsetFigures]
    wavelengths: np.ndarray  # in patches, in rising order
    kernel: Positions


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image: the model input as uint8 (H, W, 3), its prediction, and attribution maps (h, w) by method. ``reach`` is the
    height and width of a map relative to the image, for maps that extend beyond it.
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
    """The inductive biases of CNNs (paper, section 3.1), measured on ``images`` images.

    ``shifts``: response of the features to shifts, by pixels. ``maps``: translation equivariance of each feature map.
    ``locality``: effective receptive field of each feature map. ``permutation``: response to permuted patches.
    """

    images: int
    shifts: Mapping[int, Response]
    maps: Sequence[MapEquivariance]
    locality: Sequence[Locality]
    permutation: PermutationResponse


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Norms of the patches of each feature map, and the neuron that makes their outliers if there is one."""

    maps: Sequence[MapNorms]
    after: str  # what each map follows: "block" or "stage"
    neuron: Neuron | None = None

    @property
    def onset(self) -> int | None:
        """Index of the first map with artefacts, or None."""
        return find_onset(self.maps)

    @property
    def shown(self) -> int:
        """Index of the last map with artefacts, or of the last map."""
        return max((index for index, map_ in enumerate(self.maps) if map_.is_bimodal), default=len(self.maps) - 1)


@dataclass(frozen=True, kw_only=True)
class Painted:
    """Images, the model inputs as uint8 (H, W, 3), and the components of their patches."""

    pictures: Sequence[np.ndarray]
    components: Components


@dataclass(frozen=True, kw_only=True)
class Prototypes:
    """Images, the model inputs as uint8 (H, W, 3), and ``maps`` (n, P, r, c), from which the masks of each are summed."""

    pictures: Sequence[np.ndarray]
    maps: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding tested on this model: true, false, or None if it cannot be tested, with the measured values."""

    claim: str
    holds: bool | None
    words: str
    of_paper: bool = True  # of the ViT paper


@dataclass(frozen=True, kw_only=True)
class Inspection(Origin):
    """All results. Values that could not be measured are None or empty, and ``notes`` give the reason."""

    title: str
    model: str
    image_size: tuple[int, int]
    patch_size: tuple[int, int] | None  # of the patches that attention operates on
    parameters: int
    multiply_adds: int
    filters: Filters
    positions: Positions | None = None
    rotations: Rotations | None = None
    heads: Sequence[HeadFigures] = ()
    samples: Sequence[Sample] = ()
    biases: Biases | None = None
    tokens: Tokens | None = None
    register: Register | None = None
    painted: Painted | None = None
    queries: Sequence[Sample] = ()  # one for each query that is shown
    prototypes: Prototypes | None = None
    cost: Sequence[CostPoint] = ()  # by image size
    cost_by_patch: Sequence[CostPoint] = ()  # of new models that differ only in patch size
    findings: Sequence[Finding] = ()
    data: str = ""
    images: int = 0
    notes: Sequence[str] = ()
