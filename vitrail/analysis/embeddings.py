"""Filters of the first layer and position embeddings (Dosovitskiy et al. 2021, section 4.5, figure 7).

C channels, P x Q pixels of a kernel, D width, h x w patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models import Backbone, Patches
from vitrail.models.backbone import eval_mode
from vitrail.tasks import Task


class PrincipalFilters(NamedTuple):
    """Principal components of filters, (K, C, P, Q) with unit norm, and their explained variance ratios (K,)."""

    components: Tensor
    explained: Tensor


@dataclass(frozen=True)
class LineSimilarity:
    """Mean similarity of patches in the same row, in the same column and elsewhere; NaN without such pairs."""

    row: float
    column: float
    elsewhere: float


def extract_position_embeddings(model: Task | Backbone) -> Tensor | None:
    """Returns the position embeddings that are added to the patches before the encoder: (h, w, D), in the model's precision.

    Returns None if nothing is added: no positions, or positions that act in each block or on attention.
    """
    with eval_mode(model):
        images = _read_first_layer(model).new_zeros(1, model.config.in_channels, *model.config.image_size)
        x, grid, _ = model.patchify(images)
        added = model.place(Patches(torch.zeros_like(x), grid)).x[0].unflatten(0, grid)  # (h, w, D)
    return added if added.any() else None


def compute_position_similarity(embeddings: Tensor) -> Tensor:
    """Computes pairwise cosine similarities: (h, w, D) to (h, w, h, w) in fp32 (figure 7, centre; figure 10).

    The tile of the patch in row r and column c is ``[r, c]``. The similarity of an embedding of zeros is 0.
    """
    directions = F.normalize(embeddings.float(), dim=2)  # (h, w, D)
    return torch.einsum("hwd,yxd->hwyx", directions, directions)


def compute_neighbour_rate(similarity: Tensor, *, reach: float = 1) -> float:
    """Returns the share of patches whose most similar other patch is a neighbour, from `compute_position_similarity`; NaN for a
    grid of one patch. Ties with patches further away do not count.

    Args:
        reach: maximum distance between the centres of neighbours, in patches: 1 for the 4 adjacent patches, 1.5 for all 8.
    """
    if similarity[0, 0].numel() == 1:
        return float("nan")
    down, right = _compute_offsets(similarity)
    squares = down**2 + right**2  # (h, w, h, w)
    is_near, is_far = (squares > 0) & (squares <= reach**2), squares > reach**2
    near, far = (similarity.masked_fill(~mask, -torch.inf).amax((2, 3)) for mask in (is_near, is_far))  # (h, w) each
    return (near > far).float().mean().item()


def compute_line_similarity(similarity: Tensor) -> LineSimilarity:
    """Compares the similarity of patches within rows and columns with others (section 4.5: "row-column structure").

    Patches in a row or column are closer to each other on average, and close patches are more similar. Pairs are therefore
    compared by distance: pairs at distance d within a row or column with other pairs at distances in (d - 1, d]. Each value
    is the mean over d = 2, 3, ... below the shorter side of the grid. A similarity that depends only on distance, and
    decreases with it, is lower within rows and columns than elsewhere.
    """
    down, right = _compute_offsets(similarity)
    distance = (down**2 + right**2).float().sqrt().ceil()  # (h, w, h, w)

    def mean(is_meant: Tensor) -> float:
        steps = [similarity[is_meant & (distance == step)].mean() for step in range(2, min(similarity.shape[:2]))]
        return torch.stack(steps).mean().item() if steps else float("nan")

    return LineSimilarity(mean(down == 0), mean(right == 0), mean((down != 0) & (right != 0)))


def _compute_offsets(similarity: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the offsets of the second patch from the first in rows and columns: (h, 1, h, 1) and (1, w, 1, w)."""
    rows, columns = (torch.arange(length, device=similarity.device) for length in similarity.shape[:2])
    return (rows - rows[:, None])[:, None, :, None], (columns - columns[:, None])[None, :, None]


def extract_filters(model: Task | Backbone) -> Tensor:
    """Returns the stored kernels of the first layer: (D, C, P, Q) in fp32. Those of ResNets and of the stem of a hybrid are
    standardised in each forward pass.
    """
    return _read_first_layer(model).to(torch.float32, copy=True)


def compute_principal_filters(filters: Tensor, count: int = 28) -> PrincipalFilters:
    """Computes the principal components of filters in descending order of variance (figure 7, left, shows 28).

    The D filters (D, C, P, Q) are the observations; they are centred, and the SVD is in fp64. The sign of a component is chosen
    so that its largest absolute value is positive. There are at most D - 1 components, and at most C P Q. The explained ratios
    are 0 if all filters are equal.
    """
    rows = filters.detach().cpu().double().flatten(1)  # (D, C P Q)
    _, deviations, directions = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    kept = min(count, len(rows) - 1, rows.shape[1])
    variances = deviations**2
    explained = variances / variances.sum().clamp(min=torch.finfo(torch.float64).tiny)
    directions = directions[:kept]  # (K, C P Q)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))  # (K, 1)
    components = (directions * largest.sign()).unflatten(1, filters.shape[1:])
    return PrincipalFilters(components.to(filters), explained[:kept].to(filters))


def render_filters(components: Tensor) -> np.ndarray:
    """Renders filters as RGB images: (K, C, P, Q) to uint8 (K, P, Q, 3).

    In each image, 0 is mid grey (128) and the largest absolute value is 255 or 0. The first three channels are red, green
    and blue; with fewer than three, the first channel is shown in grey.
    """
    shown = components[:, :3] if components.shape[1] >= 3 else components[:, :1].expand(-1, 3, -1, -1)
    values = shown.detach().cpu().double().movedim(1, 3).numpy()  # (K, P, Q, 3)
    ends = np.abs(values).max((1, 2, 3), keepdims=True)
    scaled = np.divide(values, ends, out=np.zeros_like(values), where=ends > 0)
    return np.rint(127.5 + 127.5 * scaled).astype(np.uint8)


def _read_first_layer(model: Task | Backbone) -> Tensor:
    """Returns the weight of the first layer: (D, C, P, Q)."""
    return model.layers()[0][model.first_layer].detach()
