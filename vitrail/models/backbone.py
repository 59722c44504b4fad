"""The interface of every architecture: methods with one implementation for all, and abstract ones.

B images, C channels, H x W pixels, h x w = N patches, T tokens, D width, F width of what the head reads, K classes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import ConfigError
from vitrail.models.attention import AttentionGrid, OnAttention, processor
from vitrail.models.config import Config, changed, grid_of
from vitrail.models.heads import Head
from vitrail.models.layers import Patches, Tokens, whole_patches

TAKE_SUBSETS = ("vit", "beit", "cait")  # architectures whose `place` and `encode` take patches with ``ids``


class Backbone(nn.Module):
    """Base class of the architectures, in the steps `patchify`, `place`, `encode`, `pool` and `head`.

    ``head`` is a module: features (B, F) to logits (B, K).

    Raises:
        ConfigError: from every method that takes images, for an unsupported size or number of channels.
    """

    config: Any
    patch_embed: Any
    head: nn.Module

    def __init__(self, config: Config) -> None:
        super().__init__()
        processor()
        self.config = config

    @property
    def about(self) -> str:
        """What it is, in words for a message."""
        return self.config.about

    @property
    def width(self) -> int:
        """Of the tokens that `encode` gives."""
        return self.config.width

    @property
    def patch_width(self) -> int:
        """Of the patches that `patchify` gives."""
        return self.config.width

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.config.prefix

    @property
    def first_layer(self) -> str:
        """Name of the parameter, (D, C, P, Q), that sees the channels of the image."""
        return "patch_embed.proj.weight"

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) to logits (B, K)."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the head reads, (B, F): `pool` of `forward_features`, where nothing is computed that pooling does not read."""
        return self.pool(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tokens:
        """Every token after the last norm."""
        return self.encode(self.place(self.patchify(images)))

    def patchify(self, images: Tensor) -> Patches:
        """Cuts and projects: (B, C, H, W) to (B, N, D)."""
        self._check(images)
        images = whole_patches(images, self.config.patch_size, pad=self.config.pad)
        return Patches(self.patch_embed(images), grid_of(images.shape[2:], self.config.patch_size))

    def place(self, patches: Patches) -> Patches:
        """Adds positions, where there are any that are added to patches."""
        self._check_subset(patches)
        return patches

    def _place_all(self, patches: Patches) -> Patches:
        """`place`, but in training too no patch is dropped."""
        return self.place(patches)

    @abstractmethod
    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Prefix tokens, blocks and the last norm: (B, N, D) to (B, T, D); for ``on_attention`` see `forward_recording`."""

    @abstractmethod
    def pool(self, tokens: Tokens) -> Tensor:
        """What the head reads: (B, T, D) to (B, F)."""

    def pooling_shares(self, tokens: int) -> Tensor:
        """How much each of the T ``tokens`` of the last layer counts in what `pool` gives: (T,), summing to one.

        The mean of the patches, unless the architecture says otherwise.
        """
        shares = torch.zeros(tokens)
        shares[len(self.prefix) :] = 1 / (tokens - len(self.prefix))
        return shares

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        """The logits of each head by the name of what it reads; more than one where DeiT's "dist" has its own."""
        return {"gap": self.head(features)}

    @abstractmethod
    def feature_maps(self, images: Tensor) -> list[Tensor]:
        """Features as images (B, D, h, w), before the last norm: after each block, or after each stage of a pyramid."""

    def forward_recording(self, images: Tensor, on_attention: OnAttention) -> Tensor:
        """Logits (B, K) as `forward` gives them, bit for bit; ``on_attention`` is given the `AttentionRecord` of each layer, in
        the order of `attention_grids`. No patch is dropped, and in training stochastic depth masks.
        """
        return self.head(self.pool(self.encode(self._place_all(self.patchify(images)), on_attention)))

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, K) and the attention of each layer, (B, heads, queries, keys) in fp32, in the order of
        `attention_grids`, which says what rows and columns are. The logits come the fast way; the matrices are computed
        again from q and k. Their memory grows with the square of the tokens; `forward_recording` is for large images.
        """
        matrices: list[Tensor] = []
        logits = self.forward_recording(images, lambda record: matrices.append(record.weights()))
        return logits, matrices

    @abstractmethod
    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """For each matrix of `forward_with_attention` on images of ``size`` (height, width): what its rows and columns are."""

    def layers(self) -> list[dict[str, nn.Parameter]]:
        """All parameters by depth: projection, tokens and positions; each block; norm, pooling and head."""
        groups: list[dict[str, nn.Parameter]] = [{} for _ in range(self.config.blocks + 2)]
        for name, parameter in self.named_parameters():
            groups[self._layer(name)][name] = parameter
        return groups

    def _layer(self, name: str) -> int:
        """Where a parameter stands in `layers`: 0, the number of its block from 1, or -1. Here by the ViT's names."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.split(".")[0]) + 1
        return -1 if part in ("norm", "fc_norm", "attn_pool", "head") else 0

    def no_decay(self) -> set[str]:
        """Names of all that is no kernel: biases, norms, tokens, positions, factors of LayerScale."""
        return {name for name, tensor in self.named_parameters() if tensor.ndim == 1 or not name.endswith(".weight")}

    def new_head(self, classes: int) -> None:
        """A linear head of zeros for other classes (paper, appendix B.1.1)."""
        self.config = changed(self.config, classes=classes, head_bias=0.0)
        like = list(self.parameters())[-1]
        head = self._make_head().to(like)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        self.head = head

    def _make_head(self) -> nn.Module:
        """The head that the config asks for, its memory not filled yet."""
        return Head(self.width, self.config.classes) if self.config.classes else nn.Identity()

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: Any, new: Any) -> dict[str, Tensor]:
        """The tensors of a model of config ``old`` for one of ``new``: tables of positions follow the size of the image."""
        return dict(tensors)

    def _check(self, images: Tensor) -> None:
        """Raises `ConfigError` for what is no batch of images with the channels of the model."""
        if images.ndim != 4 or images.shape[1] != self.config.in_channels:
            what = f"images of shape {tuple(images.shape)} for a model of {self.config.in_channels} channels"
            raise ConfigError(what, "give (B, C, H, W), or create the model with in_channels=C")

    def _check_subset(self, patches: Patches) -> None:
        """Raises `ConfigError` for a subset of the patches; for architectures that need the whole grid."""
        if patches.ids is not None:
            what = f"{self.config.about} works on the whole grid of patches, {patches.x.shape[1]} of them were kept"
            raise ConfigError(what, f"take an architecture that can: {', '.join(TAKE_SUBSETS)}")

    def _run(self, block: nn.Module, *inputs: Any, on_attention: OnAttention | None = None) -> Any:
        """A block's answer; in training with ``checkpoint`` its inner activations are computed again for the gradient, unless
        their attention is recorded, which would record it twice.
        """
        if on_attention is not None:
            return block(*inputs, on_attention=on_attention)
        if self.config.checkpoint and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)


def device_of(model: nn.Module) -> torch.device:
    """Where the parameters of ``model`` lie; the CPU for one that has none, as an exported graph."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def block_number(stage: int, block: int, depths: Sequence[int]) -> int:
    """The number, from 1, of a block of a pyramid whose stages have ``depths`` blocks."""
    return sum(depths[:stage]) + block + 1


def first_token(tokens: int) -> Tensor:
    """`Backbone.pooling_shares` where the class token alone is read."""
    return F.one_hot(torch.tensor(0), tokens).float()


@contextmanager
def at_rest(model: nn.Module, *, gradients: bool = False) -> Iterator[torch.device]:
    """The model in evaluation mode, without gradients unless they are asked for, and afterwards as it was.

    Yields the device of its parameters.
    """
    was_training = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        # the caller may be in inference mode, where no gradient can be computed
        with torch.inference_mode(False) if gradients else nullcontext(), torch.set_grad_enabled(gradients):
            yield device_of(model)
    finally:
        for name, module in model.named_modules():
            module.training = was_training[name]
