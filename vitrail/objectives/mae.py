"""Masked autoencoders (He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners"): most patches are hidden, and their
pixels are predicted from the few visible ones.

B images, C channels, P x Q pixels per patch, h x w = N patches, K of them visible and M hidden, A = P Q C values per patch,
D width of the encoder, E of the decoder.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.data.rng import uniforms
from vitrail.errors import ConfigError
from vitrail.models import Backbone, Patches, Tokens, ViTConfig
from vitrail.models.attention import EVERYWHERE, Context
from vitrail.models.backbone import TAKE_SUBSETS, takes_subsets
from vitrail.models.config import grid_of, is_number
from vitrail.models.initialise import fills
from vitrail.models.layers import (
    Dense,
    LayerNorm,
    cut_patches,
    gather_rows,
    join_patches,
    residual_stream,
    whole_patches,
)
from vitrail.models.positions import sincos2d, take
from vitrail.models.vit import Block
from vitrail.objectives.objective import Objective

EPS = 1e-6  # added to the variance of a patch
SHARED = ("image_size", "patch_size", "in_channels", "norm_eps", "pad", "checkpoint")  # fields of encoder and decoder


class MAE(Objective):
    """The encoder sees only the visible patches; a small decoder predicts the pixels of the hidden ones (section 3).

    Prefix tokens go through the decoder with the patches; registers do not. The encoder keeps its own position embeddings (the
    paper's are fixed). If the last norm of the encoder comes after pooling, the decoder gets the tokens without this norm.
    Padding by ``pad`` is predicted like other pixels.

    Args:
        encoder: a backbone that accepts subsets of patches.
        mask_ratio: fraction of the patches that is hidden.
        norm_pix: normalise the target pixels by the mean and standard deviation of their patch.
        decoder_width, decoder_depth, decoder_heads: sizes of the decoder; its MLP is four times as wide.

    Raises:
        ConfigError: the architecture is not supported, or has a stem or patch dropout; invalid sizes.
    """

    about = (
        "Three quarters of the patches are hidden, and a small decoder predicts their pixels from the encoded visible ones "
        "(He et al. 2022)."
    )
    carried_by = TAKE_SUBSETS
    encoder: Backbone

    def __init__(
        self,
        encoder: Backbone,
        *,
        mask_ratio: float = 0.75,
        norm_pix: bool = True,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
    ) -> None:
        super().__init__(encoder)
        config = encoder.config
        _check(encoder, mask_ratio, norm_pix)
        sizes = {"width": decoder_width, "depth": decoder_depth, "heads": decoder_heads, "mlp_width": 4 * decoder_width}
        shared = {name: getattr(config, name) for name in SHARED}
        self.mask_ratio, self.norm_pix = mask_ratio, norm_pix
        self.decoder = Decoder(encoder.width, ViTConfig(**sizes, **shared, gelu="exact", positions="sincos2d"))

    def draw(self, ids: NDArray[np.int64], size: tuple[int, int], seed: int) -> tuple[Tensor, ...]:
        """Draws noise (B, N); the K lowest values are at the visible patches."""
        rows, columns = grid_of(size, self.encoder.config.patch_size)
        return (torch.from_numpy(uniforms(seed, "mae", *ids.T, count=rows * columns)).float(),)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Returns the mean squared error of the pixels of hidden patches of normalised images (B, C, H, W), given the noise
        (B, N) of `draw`; and ``explained``, the fraction of the variance within hidden patches that the decoder explains:
        predicting the mean of each patch gives 0.
        """
        pixels = self._cut(images)
        predicted, hidden = self._predict(images, noise)
        predicted, target = predicted.to(pixels.dtype), gather_rows(pixels, hidden)  # (B, M, A) each
        if self.norm_pix:
            target = (target - target.mean(2, keepdim=True)) / _deviation(target)
        loss = (predicted - target).square().mean()
        around_mean = (target - target.mean(2, keepdim=True)).square().mean()
        return loss, {"explained": 1 - loss.detach() / around_mean.clamp(min=EPS)}

    @torch.no_grad()
    def show(self, images: Tensor, noise: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Returns ``visible``: the hidden patches in grey; ``reconstructed``: the predicted pixels in their place."""
        pixels = self._cut(images)
        predicted, hidden = self._predict(images, noise)
        predicted = predicted.to(pixels.dtype)
        if self.norm_pix:  # the decoder does not predict the mean and deviation of a patch: use the true ones
            target = gather_rows(pixels, hidden)
            predicted = predicted * _deviation(target) + target.mean(2, keepdim=True)
        places = hidden[..., None].expand_as(predicted)
        size = (images.shape[2], images.shape[3])
        return {
            "visible": self._join(pixels.scatter(1, places, 0.0), size),
            "reconstructed": self._join(pixels.scatter(1, places, predicted), size),
        }

    def _predict(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the predictions for hidden patches (B, M, A), and the indices of these patches (B, M)."""
        patches = self.encoder.place(self.encoder.patchify(images))
        visible, hidden = split(noise, self.mask_ratio)
        tokens = self.encoder.encode(Patches(gather_rows(patches.x, visible), patches.grid, visible))
        return self.decoder(tokens, hidden, len(self.encoder.prefix)), hidden

    def _cut(self, images: Tensor) -> Tensor:
        """Returns the values of each patch, ordered by row, column and channel: (B, C, H, W) to (B, N, A) in fp32 or better."""
        config = self.encoder.config
        images = whole_patches(images, config.patch_size, pad=config.pad)
        pixels = cut_patches(images, config.patch_size).movedim(2, -1).flatten(2)
        return pixels.float() if pixels.dtype in (torch.float16, torch.bfloat16) else pixels

    def _join(self, pixels: Tensor, size: tuple[int, int]) -> Tensor:
        """Inverts `_cut`: images (B, C, H, W) of ``size``, without the padding."""
        p, q = self.encoder.config.patch_size
        patches = pixels.unflatten(2, (p, q, -1)).movedim(-1, 2)  # (B, N, C, P, Q)
        return join_patches(patches, size)[:, :, : size[0], : size[1]]


class Decoder(nn.Module):
    """ViT blocks over all patches; hidden patches are a mask token plus fixed positions.

    Hidden patches come first, so that the last block and the projection compute only them. Attention ignores the order.
    """

    def __init__(self, width: int, config: ViTConfig) -> None:
        super().__init__()
        (rows, columns), channels = config.patch_size, config.in_channels
        self.checkpoint = config.checkpoint
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.embed = Dense(width, config.width)
        self.blocks = nn.ModuleList(Block(config, 0.0) for _ in range(config.depth))
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        self.pred = Dense(config.width, rows * columns * channels)
        _initialise(self)

    def forward(self, tokens: Tokens, hidden: Tensor, prefix: int) -> Tensor:
        """Maps the encoder's tokens of K patches (B, T, D) and the indices (B, M) of the others to their pixels (B, M, A).

        The first ``prefix`` tokens are included, without a position.
        """
        assert tokens.ids is not None
        x = self.embed(torch.cat([tokens.x[:, -tokens.ids.shape[1] :], tokens.x[:, :prefix]], 1))  # (B, K + prefix, E)
        places = sincos2d(tokens.grid, x.shape[2], x.device, endpoint=False).to(x.dtype)[None]  # (1, N, E)
        before = self.mask_token.to(x.dtype) + take(places, hidden)  # (B, M, E)
        seen = torch.cat([take(places, tokens.ids), x.new_zeros(len(x), prefix, x.shape[2])], 1)
        x = residual_stream(torch.cat([before, x + seen], 1))
        for block in self.blocks:
            context = Context(queries=hidden.shape[1]) if block is self.blocks[-1] else EVERYWHERE
            again = self.checkpoint and self.training and torch.is_grad_enabled()
            x = checkpoint(block, x, context, use_reentrant=False) if again else block(x, context)
        return self.pred(self.norm(x))


def split(noise: Tensor, mask_ratio: float) -> tuple[Tensor, Tensor]:
    """Returns the indices of visible patches (B, K), those with the lowest K = int(N (1 - mask_ratio)) values of ``noise``
    (B, N), at least one and at most N - 1, and of hidden patches (B, M). Raises `ConfigError` if N is 1.
    """
    patches = noise.shape[1]
    if patches < 2:
        raise ConfigError("an image of 1 patch cannot be masked", "use larger images or smaller patches")
    kept = min(max(int(patches * (1 - mask_ratio)), 1), patches - 1)
    order = noise.argsort(dim=1, stable=True)  # stable: the same order on every device
    return order[:, :kept], order[:, kept:]


def _deviation(pixels: Tensor) -> Tensor:
    """Returns sqrt(variance + `EPS`) of each patch, with the unbiased variance: (B, M, A) to (B, M, 1)."""
    return (pixels.var(2, keepdim=True) + EPS).sqrt()


def _check(encoder: Backbone, mask_ratio: float, norm_pix: bool) -> None:
    """Raises `ConfigError` for invalid arguments or encoders of `MAE`."""
    config = encoder.config
    if not is_number(mask_ratio) or not 0 < mask_ratio < 1:
        raise ConfigError(f"mask_ratio is {mask_ratio!r}", "give a number between 0 and 1, such as mask_ratio=0.75")
    if config.patch_dropout:
        what = f"patch_dropout is {config.patch_dropout} in the encoder, but a masked autoencoder hides patches itself"
        raise ConfigError(what, "create the encoder with patch_dropout=0")
    if not takes_subsets(config):
        what = f"the encoder has window={config.window}: windows need every patch, but a masked autoencoder drops hidden ones"
        raise ConfigError(what, "create the encoder with window=0; a training from its weights can set windows")
    if getattr(config, "stem", None) is not None:
        what = f"the encoder has the stem {config.stem}, which sees beyond its patch: visible patches would reveal hidden ones"
        raise ConfigError(what, "choose an encoder without a stem, such as vit-b16")
    if norm_pix and config.patch_size == (1, 1) and config.in_channels == 1:
        what = "patches of one value have no variance to normalise by"
        raise ConfigError(what, "use larger patches, or norm_pix=False")


@fills
def _initialise(decoder: Decoder) -> None:
    """Initialises every parameter as in the authors' code: matrices Xavier uniform, q, k and v as one; the mask token normal,
    0.02; norms 1 and 0; other biases 0.
    """
    for name, parameter in decoder.named_parameters():
        if name == "mask_token":
            parameter.normal_(std=0.02)
        elif parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            parameter.fill_(name.endswith(".weight"))
