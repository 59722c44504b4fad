"""The objective of a visual tokenizer: images are reconstructed from their codes.

B images, C channels, h x w patches, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.objective import Objective


class Reconstruction(Objective):
    """The mean squared error of the pixels that a tokenizer reconstructs.

    Args:
        encoder: a tokenizer.
        std: of the normalisation of the images, one number per channel; the PSNR is computed on the scale of [0, 1].

    Raises:
        ConfigError: ``encoder`` is a backbone; or a wrong number of channels in ``std``.
    """

    about = (
        "An image is encoded as one discrete code per patch and reconstructed from the codes (Mentzer et al. 2024); BEiT "
        "predicts these codes."
    )
    carried_by = ("tokenizer",)
    encoder: Tokenizer

    def __init__(self, encoder: Tokenizer, *, std: Sequence[float]) -> None:
        super().__init__(encoder)
        if len(std) != encoder.config.in_channels:
            what = f"std has {len(std)} numbers for a tokenizer of {encoder.config.in_channels} channels"
            raise ConfigError(what, "give the std of the preprocessing, one number per channel")
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Returns the mean squared error of normalised images (B, C, H, W), in fp32; ``psnr`` of the batch in decibels; and
        ``perplexity``, the effective number of codes in use.
        """
        made, codes = self.encoder(images)
        error = made.float() - images.float()
        return error.square().mean(), {
            "psnr": psnr(error.detach() * self.std),
            "perplexity": perplexity(codes, self.encoder.config.vocabulary),
        }

    @torch.no_grad()
    def show(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Returns ``reconstructed``: the images reconstructed from their codes."""
        return {"reconstructed": self.encoder(images)[0].float()}


def psnr(error: Tensor) -> Tensor:
    """Returns the peak signal-to-noise ratio in decibels, a scalar, of errors of any shape on the scale of [0, 1]."""
    return -10 * error.square().mean().log10()


def perplexity(codes: Tensor, vocabulary: int) -> Tensor:
    """Returns exp of the entropy of the frequencies of V codes, for codes of any shape: a scalar in fp32 from 1 to V."""
    ones = torch.ones(codes.numel(), device=codes.device)
    shares = ones.new_zeros(vocabulary).index_add_(0, codes.flatten(), ones) / codes.numel()  # (V,)
    return torch.special.entr(shares).sum().exp()
