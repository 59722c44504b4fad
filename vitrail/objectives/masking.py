"""The base of the masked objectives: random masks, the mask embedding, and a prediction for each patch.

Cells are hidden as a whole. A cell is the area of one output token of the encoder: a patch, or in a pyramid r x s patches, as
in SimMIM (Xie et al. 2022), where the cells of Swin are 32 pixels wide.

B images, M cells of r x s patches, N = M r s patches of P x Q pixels, D width, K outputs per patch.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.rng import uniforms
from vitrail.errors import ConfigError
from vitrail.models import Backbone, Tokens
from vitrail.models.initialise import fill_truncated, fills
from vitrail.models.layers import Dense, LayerNorm
from vitrail.objectives.objective import Objective

Grid = tuple[int, int]  # rows, columns
ATTEMPTS = 10  # to draw a block
LEAST = 16 / 196  # smallest area of a block, relative to the grid
NARROWEST = 0.3  # smallest height / width of a block; the largest is its inverse


def random_ranks(ids: NDArray[np.int64], cells: int, seed: int, stream: str) -> NDArray[np.int64]:
    """Returns the ranks of the cells of each image in a random order: (B, M). Ranks below k are a random subset of k cells.

    Args:
        ids: of the images (B, 3); the ranks of an image do not depend on the rest of the batch.
    """
    return uniforms(seed, stream, *ids.T, count=cells).argsort(1, kind="stable").argsort(1)


def block_mask(ids: NDArray[np.int64], grid: Grid, count: int, seed: int) -> NDArray[np.bool_]:
    """Hides exactly ``count`` cells per image, in rectangles (BEiT, Bao et al. 2022, algorithm 1): (B, M) bool.

    A rectangle that would hide too many cells, or no new ones, is drawn again, up to ten times. The authors' code then stops
    below the count; here random cells are added, so that all images of a batch have the same number of hidden cells.
    """
    hidden = np.zeros((len(ids), *grid), bool)
    failures = np.zeros(len(ids), np.int64)  # consecutive
    for attempt in itertools.count():
        missing = count - hidden.sum((1, 2))
        drawn = np.flatnonzero((missing > 0) & (failures < ATTEMPTS))
        if not len(drawn):
            break
        chances = uniforms(seed, f"block {attempt}", *ids[drawn].T, count=4)
        blocks = _rectangles(chances, missing[drawn], grid)
        gained = (blocks & ~hidden[drawn]).sum((1, 2))
        fits = (gained > 0) & (gained <= missing[drawn])
        hidden[drawn[fits]] |= blocks[fits]
        failures[drawn] = np.where(fits, 0, failures[drawn] + 1)
    hidden = hidden.reshape(len(ids), -1)
    order = uniforms(seed, "block rest", *ids.T, count=hidden.shape[1]) - hidden  # hidden cells come first
    return order.argsort(1, kind="stable").argsort(1) < count


def _rectangles(chances: NDArray[np.float64], largest: NDArray[np.int64], grid: Grid) -> NDArray[np.bool_]:
    """One rectangle of up to ``largest`` (B,) cells per four numbers in [0, 1); empty if it exceeds the grid: (B, h, w)."""
    of_area, of_shape, *places = chances.T
    least = max(LEAST * math.prod(grid), 1)
    area = least + of_area * (largest - least)
    aspect = np.exp((2 * of_shape - 1) * math.log(NARROWEST))
    lines = []  # rows, then columns
    for side, whole, place in zip((np.sqrt(area * aspect), np.sqrt(area / aspect)), grid, places):
        side = np.rint(side)
        first = np.floor(place * (whole - side + 1))
        past = np.arange(whole) - first[:, None]
        lines.append((past >= 0) & (past < side[:, None]) & (side <= whole)[:, None])
    return lines[0][:, :, None] & lines[1][:, None, :]


def expand_cells(cells: NDArray, grid: Grid, repeats: Grid) -> NDArray:
    """Repeats the value of each cell for its patches: (B, M) on a ``grid`` of cells of ``repeats`` (r, s) patches to (B, N)."""
    images = cells.reshape(-1, *grid)
    return images.repeat(repeats[0], 1).repeat(repeats[1], 2).reshape(len(cells), -1)


class PatchHead(nn.Module):
    """K outputs per patch: a linear layer on the token of a cell predicts all of its r x s patches.

    If the encoder has no final norm on its tokens (because it normalises their mean), the norm is here.
    """

    def __init__(self, encoder: Backbone, outputs: int) -> None:
        super().__init__()
        config = encoder.config
        self.repeats = patches_per_cell(encoder)
        bare = isinstance(encoder.get_submodule("norm"), nn.Identity)
        self.norm = LayerNorm(encoder.width, eps=config.norm_eps) if bare else nn.Identity()
        self.proj = Dense(encoder.width, math.prod(self.repeats) * outputs)

    def forward(self, tokens: Tokens, chosen: Tensor) -> Tensor:
        """Predictions (n, K) in fp32 for the ``chosen`` (n,) of the B N patches, numbered image by image in row-major order."""
        (rows, columns), (r, s) = tokens.grid, self.repeats
        x = tokens.x[:, -rows * columns :]  # (B, M, D), without the prefix tokens and registers in front
        if self.repeats == (1, 1):
            return self.proj(self.norm(x.flatten(0, 1).index_select(0, chosen))).float()
        y = self.proj(self.norm(x)).unflatten(2, (r, s, -1)).unflatten(1, (rows, columns))  # (B, h, w, r, s, K)
        return y.transpose(2, 3).flatten(0, 4).index_select(0, chosen).float()


def patches_per_cell(encoder: Backbone) -> Grid:
    """Returns the rows and columns of patches in a cell."""
    rows, columns = (cell // patch for cell, patch in zip(encoder.config.cell, encoder.config.patch_size))
    return rows, columns


class Masked(Objective):
    """An objective that replaces a fraction of the patches by a learned mask embedding and predicts ``outputs`` values for each.

    A ViT with a stem is supported, but its convolutions see across the borders of patches, so a little of a hidden patch is
    visible in its neighbours. Architectures with overlapping patches, such as PVT v2, are not supported.

    Args:
        encoder: a backbone that processes every patch.
        outputs: K.
        share: fraction of the cells that is hidden, in (0, 1]; the number is rounded and at least one.

    Raises:
        ConfigError: an architecture that is not supported, patch dropout, or an invalid share; from `draw` and forward for
            images that do not divide into cells.
    """

    carried_by: ClassVar = ("vit", "beit", "cait", "axial", "swin", "pvt")

    def __init__(self, encoder: Backbone, outputs: int, share: float) -> None:
        super().__init__(encoder)
        if not 0 < share <= 1:
            raise ConfigError(f"share is {share!r}", "give a number in (0, 1], such as share=0.5")
        dropped = getattr(encoder.config, "patch_dropout", 0.0)
        if dropped:
            what = (
                f"the encoder drops patches in training, patch_dropout={dropped}, which {type(self).__name__} predicts"
            )
            raise ConfigError(what, "create it with patch_dropout=0.0")
        self.share = share
        self.mask_token = nn.Parameter(torch.empty(1, 1, encoder.patch_width))
        self.head = PatchHead(encoder, outputs)
        self._initialise()

    @fills
    def _initialise(self) -> None:
        """Initialises mask embedding and matrix: normal with deviation 0.02; bias: 0; norm: 1 and 0."""
        for name, parameter in self._own_parameters().items():
            fill_truncated(name, parameter, 0.0)

    def _cell_grid(self, size: Grid) -> Grid:
        """Returns rows and columns of the cells of an image of ``size`` (height, width)."""
        (height, width), cell = size, self.encoder.config.cell
        if height % cell[0] or width % cell[1]:
            what = f"an image of {height}x{width} pixels does not divide into cells of {cell[0]}x{cell[1]} pixels"
            raise ConfigError(what, f"resize to a multiple of {cell[0]} pixels in height and {cell[1]} in width")
        return height // cell[0], width // cell[1]

    def _count_hidden(self, cells: Grid) -> int:
        """Returns the number of hidden cells."""
        return max(round(self.share * math.prod(cells)), 1)

    def _chosen_patches(self, images: Tensor, mask: Tensor) -> Tensor:
        """Returns indices (n,) of the patches in ``mask`` (B, N) among the B N patches of the batch.

        Each image has the number that `draw` chooses, so the shapes are static: no device synchronisation is needed, and a
        compiled model is one graph.
        """
        height, width = images.shape[2:]
        count = self._count_hidden(self._cell_grid((height, width))) * math.prod(self.head.repeats)
        assert torch.compiler.is_compiling() or mask.device.type != "cpu" or (mask.sum(1) == count).all(), count
        places = mask.int().argsort(dim=1, descending=True, stable=True)[:, :count]  # (B, n / B)
        return (places + torch.arange(len(mask), device=mask.device)[:, None] * mask.shape[1]).flatten()

    def _predict(self, images: Tensor, hidden: Tensor, chosen: Tensor, source: Tensor | None = None) -> Tensor:
        """Returns predictions (n, K) for the ``chosen`` (n,) patches.

        Args:
            hidden: (B, N) bool, the patches that are replaced by the mask embedding.
            source: (B, N), the patch whose embedding is used at each other position; its own by default.
        """
        patches = self.encoder.patchify(images)
        x = patches.x  # (B, N, D)
        if source is not None:
            x = x.gather(1, source.clamp(min=0)[..., None].expand_as(x))
        x = torch.where(hidden[..., None], self.mask_token.to(x.dtype), x)
        return self.head(self.encoder.encode(self.encoder.place(patches._replace(x=x))), chosen)


def cut_patches(images: Tensor, patch_size: Grid) -> Tensor:
    """Cuts (B, C, H, W) to patches (B, N, C, P, Q)."""
    (p, q), (height, width) = patch_size, images.shape[2:]
    x = images.unflatten(3, (width // q, q)).unflatten(2, (height // p, p))  # (B, C, h, P, w, Q)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def join_patches(patches: Tensor, size: Grid) -> Tensor:
    """Joins what `cut_patches` cut: (B, N, C, P, Q) to images (B, C, H, W) of ``size``."""
    p, q = patches.shape[3:]
    x = patches.unflatten(1, (size[0] // p, size[1] // q))  # (B, h, w, C, P, Q)
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
