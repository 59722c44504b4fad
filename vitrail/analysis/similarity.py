"""How alike the patches of an image are to one of them, by the features of the last map.

B images, D channels, h x w cells of the map.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.analysis.attention import Place
from vitrail.analysis.equivariance import Model
from vitrail.errors import ConfigError
from vitrail.models.backbone import eval_mode


def patch_similarity(model: Model, images: Tensor, patch: Place | None = None) -> Tensor:
    """Returns the cosine similarity of a cell of the last of the `dense_maps`, which are normed, to all cells.

    Nothing is fitted, so unlike principal components it says the same of an image whatever others are shown.

    Args:
        images: normalised (B, C, H, W).
        patch: row and column of the cell; by default that in the centre.

    Returns:
        (B, h, w) in fp32, 1 at the cell itself.

    Raises:
        ConfigError: there is no such cell.
    """
    with eval_mode(model):
        units = F.normalize(model.dense_maps(images)[-1].float(), dim=1)  # (B, D, h, w)
    grid = (units.shape[2], units.shape[3])
    row, column = (grid[0] // 2, grid[1] // 2) if patch is None else patch
    check_patch((row, column), grid)
    return torch.einsum("bd,bdhw->bhw", units[:, :, row, column], units)


def check_patch(patch: Place, grid: Sequence[int]) -> None:
    """Raises `ConfigError` unless the row and column of ``patch`` are in a map of ``grid`` rows and columns."""
    (row, column), (rows, columns) = patch, grid
    if not (0 <= row < rows and 0 <= column < columns):
        what = f"there is no patch {row},{column} in a map of {rows} x {columns}"
        raise ConfigError(what, f"give row,column from 0, up to {rows - 1},{columns - 1}")
