"""Masked image modelling (Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers"): the codes of hidden patches, as a
tokenizer of images gives them, are predicted from the patches that show.

B images, N patches, n hidden ones of the batch, K codes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models import Backbone
from vitrail.models.config import is_whole
from vitrail.objectives.masking import Grid, Masked, block_mask, cut, joined, of_patches, repeats_of

Drawn = Callable[[Tensor, Grid], Tensor]


class MaskedCodes(Masked):
    """Rectangles of patches become the mask embedding; the loss is the cross-entropy of their codes, no others.

    Args:
        encoder: a backbone.
        vocabulary: how many codes the tokenizer has; the paper's has 8192.
        share: of the cells that are hidden. The authors' code hides 75 of 196, "40 %" in the paper.
        drawn: from codes (B, N) and the size of the images to what the tokenizer makes of them, (B, C, H, W), normalised as the
            encoder's; for the report.

    Raises:
        ConfigError: as `Masked`, or a vocabulary that cannot be meant.
    """

    def __init__(
        self, encoder: Backbone, vocabulary: int = 8192, *, share: float = 75 / 196, drawn: Drawn | None = None
    ) -> None:
        if not is_whole(vocabulary, 2):
            raise ConfigError(f"vocabulary is {vocabulary!r}", "vocabulary = the number of codes, from 2")
        super().__init__(encoder, vocabulary, share)
        self.drawn = drawn

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor]:
        """``hidden`` as forward takes it, as many patches for each image; see `masking.block_mask`."""
        grid = self._cells(size)
        hidden = block_mask(ids, grid, self._count(grid), seed)
        return (torch.from_numpy(of_patches(hidden, grid, repeats_of(self.encoder))),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the hidden patches in fp32, and what was measured, detached.

        Args:
            images: normalised (B, C, H, W).
            hidden: (B, N) bool, the patches to hide and to predict, as many of each image as `draw` chooses.
            codes: (B, N) of the patches, in [0, K).

        Returns:
            The loss, and ``accuracy``, the part of the hidden patches whose code is right.
        """
        images, hidden, codes = inputs
        assert codes.shape == hidden.shape, (codes.shape, hidden.shape)
        chosen = self._chosen(images, hidden)
        logits, labels = self._predict(images, hidden, chosen), codes.flatten()[chosen]  # (n, K), (n,)
        return F.cross_entropy(logits, labels), {"accuracy": (logits.detach().argmax(1) == labels).float().mean()}

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """``masked``, the images with the hidden patches grey; where codes can be drawn also ``codes``, the images as these tell
        them, and ``predicted``, the same with the codes that are predicted in place of the hidden ones."""
        images, hidden, codes = inputs
        size = (images.shape[2], images.shape[3])
        patches = cut(images, self.encoder.config.patch_size)  # (B, N, C, P, Q)
        shown = {"masked": joined(patches.masked_fill(hidden[..., None, None, None], 0.0), size)}
        if self.drawn is None:
            return shown
        chosen = self._chosen(images, hidden)
        answers = codes.flatten().scatter(0, chosen, self._predict(images, hidden, chosen).argmax(1)).view_as(codes)
        return {**shown, "codes": self.drawn(codes, size), "predicted": self.drawn(answers, size)}
