"""Masked patch prediction (Dosovitskiy et al. 2021, section 4.6 and appendix B.1.2): half of the patch embeddings are corrupted,
and the colours of these patches are predicted.

B images, C channels, M cells, N patches of P x Q pixels, n corrupted patches of the batch, S colours per patch, K outputs.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.rng import integers
from vitrail.errors import ConfigError, nearest
from vitrail.models import Backbone, Config
from vitrail.objectives.masking import (
    Grid,
    Masked,
    cut_patches,
    expand_cells,
    join_patches,
    patches_per_cell,
    random_ranks,
)

SIDES = {"mean": 1, "downsized": 4}  # of the square of colours to which a patch is averaged
TARGETS = (*SIDES, "pixels")
LEVELS = 8  # of each channel of a colour, 3 bits
MOST_CHANNELS = 5  # 8^5 colours are 32,768 classes
SWAPPED = KEPT = 0.1  # fractions of the corrupted patches; the others are hidden
GREY = 0.5


class MaskedPatch(Masked):
    """80 % of the corrupted patches become the mask embedding, 10 % another patch, 10 % stay; only they have a loss.

    The paper does not say which other patch; here it is a random different patch of the same image. In a pyramid whole cells
    are corrupted, and each of their patches is predicted.

    Args:
        encoder: a backbone.
        preprocessing: how the images were normalised; the targets are colours in [0, 1].
        target: ``mean``, the mean colour of a patch with 8 levels per channel, as one of 8^C classes; ``downsized``, the same
            for the patch averaged to 4 x 4 colours, 16 predictions; or ``pixels``, the mean squared error of all values in
            [0, 1].
        share: fraction of the cells that is corrupted; one half in the paper.

    Raises:
        ConfigError: as in `Masked`; an unknown target, a colour target with more than five channels, or preprocessing for a
            different number of channels.
    """

    about = (
        "Half of the patches are corrupted, and their mean colour, in 512 steps, is predicted from the others "
        "(Dosovitskiy et al. 2021, appendix B.1.2)."
    )

    def __init__(
        self,
        encoder: Backbone,
        preprocessing: Preprocessing,
        target: Literal["mean", "downsized", "pixels"] = "mean",
        *,
        share: float = 0.5,
    ) -> None:
        super().__init__(encoder, count_outputs(encoder.config, target), share)
        channels = encoder.config.in_channels
        if preprocessing.channels != channels:
            what = f"preprocessing of {preprocessing.channels} channels for an encoder of {channels}"
            raise ConfigError(what, "give one mean and std per channel of the encoder")
        self.preprocessing = preprocessing
        self.target = target

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor, Tensor]:
        """Draws ``corrupted`` and ``source`` of `forward`; all images have the same number of patches of each kind."""
        grid, repeats = self._cell_grid(size), patches_per_cell(self.encoder)
        cells, count = math.prod(grid), self._count_hidden(grid)
        swapped, kept = round(SWAPPED * count), round(KEPT * count)
        ranks = random_ranks(ids, cells, seed, "corrupted")  # (B, M)
        own = np.arange(cells)
        other = integers(seed, "swapped", *ids.T, count=cells, below=max(cells - 1, 1))
        other += other >= own  # any other cell
        source = np.where(ranks < swapped, other, own)
        source = np.where((ranks >= swapped + kept) & (ranks < count), -1, source)
        corrupted = expand_cells(ranks < count, grid, repeats)  # (B, N)
        return torch.from_numpy(corrupted), torch.from_numpy(expand_sources(source, grid, repeats))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the corrupted patches in fp32, and detached measurements.

        Args:
            images: normalised (B, C, H, W).
            corrupted: (B, N) bool, the patches to predict; `draw` chooses the same number for each image.
            source: (B, N), the patch whose embedding is used at each position: its own index, another one, or -1 for the
                mask embedding.

        Returns:
            The loss, and ``accuracy``, the fraction of correct colours; for ``pixels`` ``rmse``, on the scale of [0, 1].
        """
        images, corrupted, source = inputs
        chosen = self._chosen_patches(images, corrupted)
        predicted = self._predict(images, source < 0, chosen, source)  # (n, K)
        patches = cut_patches(self.preprocessing.denormalise(images), self.encoder.config.patch_size)  # (B, N, C, P, Q)
        patches = patches.flatten(0, 1).index_select(0, chosen)  # (n, C, P, Q)
        if self.target == "pixels":
            loss = F.mse_loss(predicted, patches.flatten(1))
            return loss, {"rmse": loss.detach().sqrt()}
        averaged = F.adaptive_avg_pool2d(patches, SIDES[self.target])  # (n, C, side, side)
        labels = quantise_colours(averaged.flatten(2).mT)  # (n, S)
        logits = predicted.unflatten(1, (labels.shape[1], -1))  # (n, S, 8^C)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, {"accuracy": (logits.detach().argmax(2) == labels).float().mean()}

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Returns ``masked``: the images with the corrupted patches in grey; ``predicted``: with the predicted colours."""
        images, corrupted, source = inputs
        patches = cut_patches(self.preprocessing.denormalise(images), self.encoder.config.patch_size)  # (B, N, C, P, Q)
        masked, predicted = patches.clone(), patches.clone()
        masked[corrupted] = GREY
        answers = self._predict(images, source < 0, self._chosen_patches(images, corrupted), source)  # (n, K)
        predicted[corrupted] = self._colours(answers)
        size = (images.shape[2], images.shape[3])
        named = {"masked": masked, "predicted": predicted}
        return {name: self.preprocessing.normalise(join_patches(values, size)) for name, values in named.items()}

    def _colours(self, predicted: Tensor) -> Tensor:
        """Returns the colours of predictions (n, K), in [0, 1]: (n, C, P, Q)."""
        config = self.encoder.config
        if self.target == "pixels":
            return predicted.unflatten(1, (config.in_channels, *config.patch_size)).clamp(0, 1)
        side = SIDES[self.target]
        best = predicted.unflatten(1, (side**2, -1)).argmax(2)  # (n, S)
        colours = dequantise_colours(best, config.in_channels).mT.unflatten(2, (side, side))  # (n, C, side, side)
        return F.interpolate(colours, config.patch_size)


def count_outputs(config: Config, target: str) -> int:
    """Returns the number of outputs per patch. Raises `ConfigError` for an unknown target."""
    if target not in TARGETS:
        raise ConfigError(f"unknown target {target!r}", nearest(target, TARGETS))
    channels = config.in_channels
    if target == "pixels":
        return channels * math.prod(config.patch_size)
    if channels > MOST_CHANNELS:
        what = f"colours of {channels} channels with {LEVELS} levels each are {LEVELS**channels:,} classes"
        raise ConfigError(what, "set target='pixels'")
    return SIDES[target] ** 2 * LEVELS**channels


def quantise_colours(colours: Tensor) -> Tensor:
    """Converts colours (..., C) in [0, 1] to classes (...): 3 bits per channel, the first channel in the highest bits."""
    levels = (colours * LEVELS).floor().clamp(max=LEVELS - 1).long()  # 1.0 is in the highest level
    return (levels * _weights(colours.shape[-1], colours)).sum(-1)


def dequantise_colours(classes: Tensor, channels: int) -> Tensor:
    """Returns the colour in the middle of each class (...): (..., C)."""
    return (classes[..., None] // _weights(channels, classes) % LEVELS + 0.5) / LEVELS


def _weights(channels: int, like: Tensor) -> Tensor:
    return LEVELS ** torch.arange(channels - 1, -1, -1, device=like.device)  # (C,)


def expand_sources(source: NDArray[np.int64], grid: Grid, repeats: Grid) -> NDArray[np.int64]:
    """Indices of cells (B, M), or -1, to indices of patches (B, N): the patch at the same position in that cell, or -1."""
    (rows, columns), (r, s) = grid, repeats
    cell = expand_cells(source, grid, repeats).reshape(-1, rows * r, columns * s)
    row = cell // columns * r + (np.arange(rows * r) % r)[:, None]
    column = cell % columns * s + np.arange(columns * s) % s
    return np.where(cell < 0, -1, row * columns * s + column).reshape(len(source), -1)
