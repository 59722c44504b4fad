"""What the masked objectives share: which patches chance hides, what stands in their place, and a prediction for each.

What is hidden are cells, each what one place of the encoder's answer stands for: a patch, or in a pyramid r x s patches, as in
SimMIM (Xie et al. 2022), whose cells of Swin are 32 pixels wide.

B images, M cells of r x s patches, N = M r s patches of P x Q pixels, D width, K outputs for each patch.
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
ATTEMPTS = 10  # at a block
LEAST = 16 / 196  # of the grid, the area that a block is to have at least
NARROWEST = 0.3  # height by width of a block; its inverse is the widest


def random_ranks(ids: NDArray[np.int64], cells: int, seed: int, stream: str) -> NDArray[np.int64]:
    """The cells of each image in a random order: (B, M), the rank of each. Those below k are a random subset of k of them.

    Args:
        ids: of the images (B, 3), whose ranks are theirs whatever else is in the batch.
    """
    return uniforms(seed, stream, *ids.T, count=cells).argsort(1, kind="stable").argsort(1)


def block_mask(ids: NDArray[np.int64], grid: Grid, count: int, seed: int) -> NDArray[np.bool_]:
    """Exactly ``count`` cells of each image, in rectangles (BEiT, Bao et al. 2022, algorithm 1): (B, M) bool.

    A rectangle that would hide too many cells, or none that still shows, is drawn again, up to ten times. The authors' code then
    stops short of the count; here cells chosen at random fill it up, so that all images of a batch have the same number.
    """
    hidden = np.zeros((len(ids), *grid), bool)
    failures = np.zeros(len(ids), np.int64)  # in a row
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
    order = uniforms(seed, "block rest", *ids.T, count=hidden.shape[1]) - hidden  # what is hidden comes first
    return order.argsort(1, kind="stable").argsort(1) < count


def _rectangles(chances: NDArray[np.float64], largest: NDArray[np.int64], grid: Grid) -> NDArray[np.bool_]:
    """One of up to ``largest`` (B,) cells for each four numbers in [0, 1), empty where it is larger than the grid: (B, h, w)."""
    of_area, of_shape, *places = chances.T
    least = max(LEAST * math.prod(grid), 1)
    area = least + of_area * (largest - least)
    aspect = np.exp((2 * of_shape - 1) * math.log(NARROWEST))
    lines = []  # which rows, then which columns
    for side, whole, place in zip((np.sqrt(area * aspect), np.sqrt(area / aspect)), grid, places):
        side = np.rint(side)
        first = np.floor(place * (whole - side + 1))
        past = np.arange(whole) - first[:, None]
        lines.append((past >= 0) & (past < side[:, None]) & (side <= whole)[:, None])
    return lines[0][:, :, None] & lines[1][:, None, :]


def of_patches(cells: NDArray, grid: Grid, repeats: Grid) -> NDArray:
    """What each cell has, for its patches: (B, M) on a ``grid`` of cells of ``repeats`` (r, s) patches to (B, N)."""
    images = cells.reshape(-1, *grid)
    return images.repeat(repeats[0], 1).repeat(repeats[1], 2).reshape(len(cells), -1)


class PatchHead(nn.Module):
    """K numbers for each patch: a linear layer on the token of its cell, which answers for each of its r x s patches.

    Where an encoder leaves its tokens without a last norm, since it is the mean that has one, the norm stands here.
    """

    def __init__(self, encoder: Backbone, outputs: int) -> None:
        super().__init__()
        config = encoder.config
        self.repeats = repeats_of(encoder)
        bare = isinstance(encoder.get_submodule("norm"), nn.Identity)
        self.norm = LayerNorm(encoder.width, eps=config.norm_eps) if bare else nn.Identity()
        self.proj = Dense(encoder.width, math.prod(self.repeats) * outputs)

    def forward(self, tokens: Tokens, chosen: Tensor) -> Tensor:
        """Predictions (n, K) in fp32 for the ``chosen`` (n,) of the B N patches, numbered image by image in row-major order."""
        (rows, columns), (r, s) = tokens.grid, self.repeats
        x = tokens.x[:, -rows * columns :]  # (B, M, D): prefix tokens and registers stand before
        if self.repeats == (1, 1):
            return self.proj(self.norm(x.flatten(0, 1).index_select(0, chosen))).float()
        y = self.proj(self.norm(x)).unflatten(2, (r, s, -1)).unflatten(1, (rows, columns))  # (B, h, w, r, s, K)
        return y.transpose(2, 3).flatten(0, 4).index_select(0, chosen).float()


def repeats_of(encoder: Backbone) -> Grid:
    """Rows and columns of the patches in a cell."""
    rows, columns = (cell // patch for cell, patch in zip(encoder.config.cell, encoder.config.patch_size))
    return rows, columns


class Masked(Objective):
    """An objective that hides a share of the patches behind one learned embedding, and predicts ``outputs`` numbers for each.

    A ViT with a stem can carry it, but its convolutions see across the borders of patches, so that what is hidden shows a
    little in the patches around it. Where patches overlap altogether, as in PVT v2, it could be read there.

    Args:
        encoder: a backbone that takes every patch.
        outputs: K.
        share: of the cells that are hidden, in (0, 1]; rounded, but one at least.

    Raises:
        ConfigError: an architecture that cannot carry it, one that drops patches in training, or a share that cannot be meant;
            from `draw` and forward for images that are not whole cells.
    """

    carried_by: ClassVar = ("vit", "beit", "cait", "axial", "swin", "pvt")

    def __init__(self, encoder: Backbone, outputs: int, share: float) -> None:
        super().__init__(encoder)
        if not 0 < share <= 1:
            raise ConfigError(f"share is {share!r}", "share = a part of the patches in (0, 1], such as 0.5")
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
        """Mask embedding and matrix normal, 0.02; bias 0; a norm 1 and 0."""
        for name, parameter in self._own().items():
            fill_truncated(name, parameter, 0.0)

    def _cells(self, size: Grid) -> Grid:
        """Rows and columns of the cells of an image of ``size`` (height, width)."""
        (height, width), cell = size, self.encoder.config.cell
        if height % cell[0] or width % cell[1]:
            what = f"an image of {height}x{width} pixels does not divide into cells of {cell[0]}x{cell[1]}, one a token"
            raise ConfigError(what, f"resize to a multiple of {cell[0]} pixels in height and {cell[1]} in width")
        return height // cell[0], width // cell[1]

    def _count(self, cells: Grid) -> int:
        """How many of them are hidden."""
        return max(round(self.share * math.prod(cells)), 1)

    def _chosen(self, images: Tensor, mask: Tensor) -> Tensor:
        """Numbers (n,) of the patches in ``mask`` (B, N) among the B N of the batch.

        Each image has as many as `draw` gives it: so shapes are known beforehand, no device waits to count, and a compiled
        model is one graph.
        """
        height, width = images.shape[2:]
        count = self._count(self._cells((height, width))) * math.prod(self.head.repeats)
        assert torch.compiler.is_compiling() or mask.device.type != "cpu" or (mask.sum(1) == count).all(), count
        places = mask.int().argsort(dim=1, descending=True, stable=True)[:, :count]  # (B, n / B)
        return (places + torch.arange(len(mask), device=mask.device)[:, None] * mask.shape[1]).flatten()

    def _predict(self, images: Tensor, hidden: Tensor, chosen: Tensor, source: Tensor | None = None) -> Tensor:
        """Predictions (n, K) for the ``chosen`` (n,) patches.

        Args:
            hidden: (B, N) bool, the patches in whose place the mask embedding stands.
            source: (B, N), the patch whose embedding stands in the place of each other one; its own by default.
        """
        patches = self.encoder.patchify(images)
        x = patches.x  # (B, N, D)
        if source is not None:
            x = x.gather(1, source.clamp(min=0)[..., None].expand_as(x))
        x = torch.where(hidden[..., None], self.mask_token.to(x.dtype), x)
        return self.head(self.encoder.encode(self.encoder.place(patches._replace(x=x))), chosen)


def cut(images: Tensor, patch_size: Grid) -> Tensor:
    """(B, C, H, W) to patches (B, N, C, P, Q)."""
    (p, q), (height, width) = patch_size, images.shape[2:]
    x = images.unflatten(3, (width // q, q)).unflatten(2, (height // p, p))  # (B, C, h, P, w, Q)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def joined(patches: Tensor, size: Grid) -> Tensor:
    """The inverse: (B, N, C, P, Q) to images (B, C, H, W) of ``size``."""
    p, q = patches.shape[3:]
    x = patches.unflatten(1, (size[0] // p, size[1] // q))  # (B, h, w, C, P, Q)
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
