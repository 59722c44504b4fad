"""Masked patch prediction (Dosovitskiy et al. 2021, section 4.6 and appendix B.1.2): half of the patch embeddings are corrupted,
and the colours of these patches are predicted.

B images, C channels, M cells, N patches of P x Q pixels, n corrupted patches of the batch, S colours of a patch, K outputs.
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
from vitrail.objectives.masking import Grid, Masked, cut, joined, of_patches, random_ranks, repeats_of

SIDES = {"mean": 1, "downsized": 4}  # of the square of colours that a patch is averaged to
TARGETS = (*SIDES, "pixels")
LEVELS = 8  # of each channel of a colour, 3 bits
MOST_CHANNELS = 5  # 8^5 colours are 32,768 classes
SWAPPED = KEPT = 0.1  # of the corrupted; the others are hidden
GREY = 0.5


class MaskedPatch(Masked):
    """Of the corrupted patches 80 % become the mask embedding, 10 % that of another patch, 10 % stay; the loss is theirs alone.

    Which other patch the paper does not say: here one of the same image, any but the patch itself. In a pyramid a cell is
    corrupted as a whole, and each patch of it is predicted.

    Args:
        encoder: a backbone.
        preprocessing: how the images were normalised; the targets are colours in [0, 1].
        target: ``mean``, the mean colour of a patch, each channel in 8 levels, as one of 8^C classes; ``downsized``, the same of
            the patch averaged to 4 x 4 colours, 16 predictions at once; or ``pixels``, the mean squared error of all its
            values in [0, 1].
        share: of the cells that are corrupted; the paper's is half.

    Raises:
        ConfigError: as `Masked`; an unknown target, one of colours with more than five channels, or preprocessing for another
            number of channels.
    """

    def __init__(
        self,
        encoder: Backbone,
        preprocessing: Preprocessing,
        target: Literal["mean", "downsized", "pixels"] = "mean",
        *,
        share: float = 0.5,
    ) -> None:
        super().__init__(encoder, outputs(encoder.config, target), share)
        channels = encoder.config.in_channels
        if preprocessing.channels != channels:
            what = f"preprocessing of {preprocessing.channels} channels for an encoder of {channels}"
            raise ConfigError(what, "give the mean and std of each channel of its images")
        self.preprocessing = preprocessing
        self.target = target

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor, Tensor]:
        """``corrupted`` and ``source`` as forward takes them; the numbers of patches of each kind are the same for each image."""
        grid, repeats = self._cells(size), repeats_of(self.encoder)
        cells, count = math.prod(grid), self._count(grid)
        swapped, kept = round(SWAPPED * count), round(KEPT * count)
        ranks = random_ranks(ids, cells, seed, "corrupted")  # (B, M)
        own = np.arange(cells)
        other = integers(seed, "swapped", *ids.T, count=cells, below=max(cells - 1, 1))
        other += other >= own  # any cell but itself
        source = np.where(ranks < swapped, other, own)
        source = np.where((ranks >= swapped + kept) & (ranks < count), -1, source)
        corrupted = of_patches(ranks < count, grid, repeats)  # (B, N)
        return torch.from_numpy(corrupted), torch.from_numpy(patches_of(source, grid, repeats))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the corrupted patches in fp32, and what was measured, detached.

        Args:
            images: normalised (B, C, H, W).
            corrupted: (B, N) bool, the patches to predict, as many of each image as `draw` chooses.
            source: (B, N), the patch whose embedding stands in the place of each: its own number, another's, or -1 for the
                mask embedding.

        Returns:
            The loss, and ``accuracy``, the part of the colours that are right, or of ``pixels`` the ``rmse``, in [0, 1].
        """
        images, corrupted, source = inputs
        chosen = self._chosen(images, corrupted)
        predicted = self._predict(images, source < 0, chosen, source)  # (n, K)
        patches = cut(self.preprocessing.restored(images), self.encoder.config.patch_size)  # (B, N, C, P, Q)
        patches = patches.flatten(0, 1).index_select(0, chosen)  # (n, C, P, Q)
        if self.target == "pixels":
            loss = F.mse_loss(predicted, patches.flatten(1))
            return loss, {"rmse": loss.detach().sqrt()}
        averaged = F.adaptive_avg_pool2d(patches, SIDES[self.target])  # (n, C, side, side)
        labels = classes_of(averaged.flatten(2).mT)  # (n, S)
        logits = predicted.unflatten(1, (labels.shape[1], -1))  # (n, S, 8^C)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, {"accuracy": (logits.detach().argmax(2) == labels).float().mean()}

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """``masked``, the images with the corrupted patches grey, and ``predicted``, with their predicted colours."""
        images, corrupted, source = inputs
        patches = cut(self.preprocessing.restored(images), self.encoder.config.patch_size)  # (B, N, C, P, Q)
        masked, predicted = patches.clone(), patches.clone()
        masked[corrupted] = GREY
        answers = self._predict(images, source < 0, self._chosen(images, corrupted), source)  # (n, K)
        predicted[corrupted] = self._colours(answers)
        size = (images.shape[2], images.shape[3])
        named = {"masked": masked, "predicted": predicted}
        return {name: self.preprocessing.normalise(joined(each, size)) for name, each in named.items()}

    def _colours(self, predicted: Tensor) -> Tensor:
        """What predictions (n, K) say, in [0, 1]: (n, C, P, Q)."""
        config = self.encoder.config
        if self.target == "pixels":
            return predicted.unflatten(1, (config.in_channels, *config.patch_size)).clamp(0, 1)
        side = SIDES[self.target]
        best = predicted.unflatten(1, (side**2, -1)).argmax(2)  # (n, S)
        colours = colours_of(best, config.in_channels).mT.unflatten(2, (side, side))  # (n, C, side, side)
        return F.interpolate(colours, config.patch_size)


def outputs(config: Config, target: str) -> int:
    """How many numbers are predicted for each patch. Raises `ConfigError` where there is no such target."""
    if target not in TARGETS:
        raise ConfigError(f"unknown target {target!r}", nearest(target, TARGETS))
    channels = config.in_channels
    if target == "pixels":
        return channels * math.prod(config.patch_size)
    if channels > MOST_CHANNELS:
        what = f"colours of {channels} channels in {LEVELS} levels each are {LEVELS**channels:,} classes"
        raise ConfigError(what, "set target='pixels'")
    return SIDES[target] ** 2 * LEVELS**channels


def classes_of(colours: Tensor) -> Tensor:
    """Colours (..., C) in [0, 1] to their classes (...): 3 bits of each channel, those of the first one highest."""
    levels = (colours * LEVELS).floor().clamp(max=LEVELS - 1).long()  # 1.0 belongs to the highest
    return (levels * _weights(colours.shape[-1], colours)).sum(-1)


def colours_of(classes: Tensor, channels: int) -> Tensor:
    """The middle of each class (...): (..., C)."""
    return (classes[..., None] // _weights(channels, classes) % LEVELS + 0.5) / LEVELS


def _weights(channels: int, like: Tensor) -> Tensor:
    return LEVELS ** torch.arange(channels - 1, -1, -1, device=like.device)  # (C,)


def patches_of(source: NDArray[np.int64], grid: Grid, repeats: Grid) -> NDArray[np.int64]:
    """Numbers of cells (B, M), or -1, to numbers of patches (B, N): the patch at the same place in that cell, or -1."""
    (rows, columns), (r, s) = grid, repeats
    cell = of_patches(source, grid, repeats).reshape(-1, rows * r, columns * s)
    row = cell // columns * r + (np.arange(rows * r) % r)[:, None]
    column = cell % columns * s + np.arange(columns * s) % s
    return np.where(cell < 0, -1, row * columns * s + column).reshape(len(source), -1)
