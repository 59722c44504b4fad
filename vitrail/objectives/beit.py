"""Masked image modelling (Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers"): the tokenizer's codes of hidden
patches are predicted from the visible patches.

B images, N patches, n hidden patches of the batch, K codes.
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
from vitrail.objectives.masking import (
    Grid,
    Masked,
    block_mask,
    cut_patches,
    expand_cells,
    join_patches,
    patches_per_cell,
)

Drawn = Callable[[Tensor, Grid], Tensor]


class MaskedCodes(Masked):
    """Rectangles of patches are replaced by the mask embedding; the loss is the cross-entropy of the codes of these patches.

    Args:
        encoder: a backbone.
        vocabulary: number of codes of the tokenizer; the paper's has 8192.
        share: fraction of the cells that is hidden. The authors' code hides 75 of 196, "40 %" in the paper.
        drawn: decodes codes (B, N) for a size of the images to (B, C, H, W), normalised for the encoder; for the report.

    Raises:
        ConfigError: as in `Masked`, or an invalid vocabulary.
    """

    about = "Blocks of patches are hidden, and the codes that a visual tokenizer gives them are predicted (Bao et al. 2022)."

    def __init__(
        self, encoder: Backbone, vocabulary: int = 8192, *, share: float = 75 / 196, drawn: Drawn | None = None
    ) -> None:
        if not is_whole(vocabulary, 2):
            raise ConfigError(f"vocabulary is {vocabulary!r}", "vocabulary = the number of codes, from 2")
        super().__init__(encoder, vocabulary, share)
        self.drawn = drawn

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor]:
        """Draws ``hidden`` of `forward`, with the same number of patches per image; see `masking.block_mask`."""
        grid = self._cell_grid(size)
        hidden = block_mask(ids, grid, self._count_hidden(grid), seed)
        return (torch.from_numpy(expand_cells(hidden, grid, patches_per_cell(self.encoder))),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the hidden patches in fp32, and detached measurements.

        Args:
            images: normalised (B, C, H, W).
            hidden: (B, N) bool, the patches to hide and predict; `draw` chooses the same number for each image.
            codes: (B, N) of the patches, in [0, K).

        Returns:
            The loss, and ``accuracy``: the fraction of the hidden patches whose code is predicted correctly.
        """
        images, hidden, codes = inputs
        assert codes.shape == hidden.shape, (codes.shape, hidden.shape)
        chosen = self._chosen_patches(images, hidden)
        logits, labels = self._predict(images, hidden, chosen), codes.flatten()[chosen]  # (n, K), (n,)
        return F.cross_entropy(logits, labels), {"accuracy": (logits.detach().argmax(1) == labels).float().mean()}

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """``masked``: the images with the hidden patches grey. If codes can be decoded, also ``codes``: the decoded codes, and
        ``predicted``: the same with the predicted codes of the hidden patches."""
        images, hidden, codes = inputs
        size = (images.shape[2], images.shape[3])
        patches = cut_patches(images, self.encoder.config.patch_size)  # (B, N, C, P, Q)
        shown = {"masked": join_patches(patches.masked_fill(hidden[..., None, None, None], 0.0), size)}
        if self.drawn is None:
            return shown
        chosen = self._chosen_patches(images, hidden)
        answers = codes.flatten().scatter(0, chosen, self._predict(images, hidden, chosen).argmax(1)).view_as(codes)
        return {**shown, "codes": self.drawn(codes, size), "predicted": self.drawn(answers, size)}
