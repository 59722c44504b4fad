"""A visual tokenizer: a small convolutional autoencoder that maps an image to one discrete code per patch, and back.

The bottleneck is finite scalar quantisation, FSQ (Mentzer et al. 2024, "Finite Scalar Quantization: VQ-VAE Made Simple"): a
few values per patch are bounded and rounded to a fixed number of levels, and the combination of levels is the code. BEiT's
targets are from a discrete VAE with a Gumbel softmax (Ramesh et al. 2021), which needs a temperature schedule and a weight of
the KL divergence, and whose codebook can collapse. FSQ has no schedule, no codebook and a single loss.

B images, C channels, P x Q pixels a patch, h x w patches, D width, S levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.config import CheckedConfig, Count, Pair, Positive, Stages
from vitrail.models.initialise import fill_lecun_normal, fills
from vitrail.models.layers import Conv, Dense, LayerNorm, PatchEmbed, residual_stream, whole_patches

MAX_CODES = 2**16


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(CheckedConfig):
    """The fields of a tokenizer.

    Args:
        in_channels: number of image channels.
        patch_size: (height, width) in pixels of a code, or one number for a square.
        width: number of hidden channels.
        depth: number of blocks in the encoder and in the decoder; each extends the receptive field by one patch.
        levels: number of levels of each quantised value, at least 2; their product is the number of codes.
        norm_eps: added to the variance in each norm.
    """

    architecture: ClassVar[str] = "tokenizer"
    about: ClassVar[str] = "a tokenizer"

    in_channels: int = 3
    patch_size: Pair = (16, 16)
    width: int = 128
    depth: Count = 2
    levels: Stages = (8, 8, 8)
    norm_eps: Positive = 1e-6

    def _check_together(self) -> None:
        self._check("levels", min(self.levels) > 1, "integers of at least 2, such as (8, 8, 8)")
        self._check("levels", self.vocabulary <= MAX_CODES, f"numbers whose product is {MAX_CODES:,} or less")

    @property
    def vocabulary(self) -> int:
        """Number of codes."""
        return math.prod(self.levels)

    @property
    def blocks(self) -> int:
        return 2 * self.depth


class Block(nn.Module):
    """z' = W GELU(3 x 3 convolution (LN(z))) + z."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        self.conv = Conv(config.width, config.width, 3, padding=1)
        self.proj = Dense(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) to (B, h, w, D)."""
        y = self.conv(self.norm(x).movedim(3, 1), "exact")
        return x + self.proj(y.movedim(1, 3))


class Tokenizer(nn.Module):
    """Maps images to codes with `encode`, and codes to images with `decode`, for any size of whole patches.

    Raises:
        ConfigError: by every method with images as input, for an unsupported size or number of channels; by `decode` for
            invalid codes.
    """

    blocks: Any  # a list of `Block`, those of the encoder first

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        width, (rows, columns) = config.width, config.patch_size
        self.patch_embed = PatchEmbed(config.in_channels, width, config.patch_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        # no norm before the codes or the pixels: it would remove the brightness of a patch, most of the information
        self.to_levels = Dense(width, len(config.levels))
        self.from_levels = Dense(len(config.levels), width)
        self.pixels = Dense(width, rows * columns * config.in_channels)
        _initialise(self)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the reconstructions (B, C, H, W) of normalised images, and their codes (B, h, w).

        The gradient of the rounding is the straight-through estimator.
        """
        bounded = self._compute_bounded(images)
        rounded = bounded + (bounded.round() - bounded).detach()
        return self._draw(rounded), self._compute_codes(rounded)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encodes normalised images (B, C, H, W) to codes (B, h, w), int64 in [0, `TokenizerConfig.vocabulary`)."""
        return self._compute_codes(self._compute_bounded(images).round())

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes (B, h, w) to normalised images (B, C, H, W)."""
        if codes.ndim != 3 or codes.is_floating_point():
            raise ConfigError(f"codes of shape {tuple(codes.shape)} and {codes.dtype}", "give (B, h, w) integers")
        if codes.numel() and not 0 <= codes.min() <= codes.max() < self.config.vocabulary:
            what = f"codes from {codes.min()} to {codes.max()} for a tokenizer of {self.config.vocabulary:,} codes"
            raise ConfigError(what, "give codes of this tokenizer")
        levels = self._levels(codes.device)
        rounded = codes[..., None] // self._steps(codes.device) % levels  # (B, h, w, S)
        return self._draw(rounded.to(self.pixels.weight.dtype))

    def _compute_bounded(self, images: Tensor) -> Tensor:
        """Returns the values to be rounded, in at least fp32: (B, h, w, S), value i from 0 to levels[i] - 1."""
        config = self.config
        if images.ndim != 4 or images.shape[1] != config.in_channels:
            what = f"images of shape {tuple(images.shape)} for a tokenizer of {config.in_channels} channels"
            raise ConfigError(what, "give (B, C, H, W), or create a tokenizer with in_channels=C")
        images = whole_patches(images, config.patch_size, pad=False)
        rows = images.shape[2] // config.patch_size[0]
        x = residual_stream(self.patch_embed(images)).unflatten(1, (rows, -1))  # (B, h, w, D)
        for block in self.blocks[: config.depth]:
            x = block(x)
        levels = self.to_levels(x)
        levels = levels.float() if levels.dtype in (torch.float16, torch.bfloat16) else levels
        return (self._levels(images.device) - 1) * levels.sigmoid()

    def _draw(self, rounded: Tensor) -> Tensor:
        """Decodes levels (B, h, w, S) to images (B, C, H, W)."""
        x = residual_stream(self.from_levels(2 * rounded / (self._levels(rounded.device) - 1) - 1))  # (B, h, w, D)
        for block in self.blocks[self.config.depth :]:
            x = block(x)
        cells = self.pixels(x).unflatten(3, (-1, *self.config.patch_size))  # (B, h, w, C, P, Q)
        return cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)

    def _compute_codes(self, rounded: Tensor) -> Tensor:
        return (rounded.detach().round().long() * self._steps(rounded.device)).sum(3)

    def _levels(self, device: torch.device) -> Tensor:
        return torch.tensor(self.config.levels).to(device, non_blocking=True)

    def _steps(self, device: torch.device) -> Tensor:
        """Returns the place value of each quantised value in the code: (S,)."""
        levels = self.config.levels
        return torch.tensor([math.prod(levels[:place]) for place in range(len(levels))]).to(device, non_blocking=True)

    def layers(self) -> list[dict[str, nn.Parameter]]:
        """Groups all parameters by depth: projection; each block, with the codes in the last of the encoder; pixels."""
        depth = self.config.depth
        around = {"patch_embed": 0, "to_levels": depth, "from_levels": depth}
        groups: list[dict[str, nn.Parameter]] = [{} for _ in range(self.config.blocks + 2)]
        for name, parameter in self.named_parameters():
            part, _, rest = name.partition(".")
            groups[int(rest.split(".")[0]) + 1 if part == "blocks" else around.get(part, -1)][name] = parameter
        return groups

    def no_decay(self) -> set[str]:
        """Returns the names of parameters without weight decay: biases and norms."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim == 1}


@fills
def _initialise(model: Tokenizer) -> None:
    """Initialises every parameter: last layer of each block 0, other matrices LeCun normal, norms 1 and 0, other biases 0."""
    for name, parameter in model.named_parameters():
        # initially, a code is a projection of its patch only; with random blocks fewer codes are used
        if name.endswith(".proj.weight") and name.startswith("blocks."):
            parameter.zero_()
        elif parameter.ndim > 1:
            fill_lecun_normal(parameter)
        else:
            parameter.fill_(name.endswith(".weight"))
