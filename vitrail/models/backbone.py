"""The interface of all architectures: shared and abstract methods.

B images, C channels, H x W pixels, h x w = N patches, T tokens, D width, F features, K classes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import ConfigError
from vitrail.models.attention import AttentionGrid, OnAttention, processor
from vitrail.models.config import Config, Pair, changed, grid_of
from vitrail.models.layers import Head, Patches, Tokens, as_map, drop_patches, whole_patches

T = TypeVar("T")
TAKE_SUBSETS = ("vit", "beit", "cait")  # architectures whose `place` and `encode` support a subset of patches (``ids``)


def takes_subsets(config: Config) -> bool:
    """Whether `place` and `encode` of a model of ``config`` support a subset of patches: windows need the whole grid."""
    return config.architecture in TAKE_SUBSETS and not getattr(config, "window", 0)


class Backbone(nn.Module):
    """Base class of the architectures, with the steps `patchify`, `place`, `encode`, `pool` and `head`.

    ``head`` is a module that maps features (B, F) to logits (B, K).

    Raises:
        ConfigError: by every method with images as input, for an unsupported size or number of channels.
    """

    config: Any
    patch_embed: Any
    norm: Any  # Identity where `fc_norm` normalises the mean of the patches instead
    fc_norm: Any
    head: nn.Module

    def __init__(self, config: Config) -> None:
        super().__init__()
        processor()
        self.config = config

    @property
    def about(self) -> str:
        """Description of the model for messages."""
        return self.config.about

    @property
    def width(self) -> int:
        """Width of the tokens returned by `encode`."""
        return self.config.widths[-1]

    @property
    def patch_width(self) -> int:
        """Width of the patches returned by `patchify`."""
        return self.config.widths[0]

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.config.prefix

    @property
    def leading(self) -> int:
        """Number P of tokens before the patches."""
        return len(self.prefix)

    @property
    def first_layer(self) -> str:
        """Name of the first layer's weight, (D, C, P, Q)."""
        return "patch_embed.proj.weight"

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) to logits (B, K)."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Returns features (B, F): `pool` of `forward_features`, without computing tokens that pooling does not use."""
        return self.pool(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tokens:
        """Returns all tokens after the last norm."""
        return self.encode(self.place(self.patchify(images)))

    def patchify(self, images: Tensor) -> Patches:
        """Splits images into patches and projects them: (B, C, H, W) to (B, N, D)."""
        self._check(images)
        images = whole_patches(images, self.config.patch_size, pad=self.config.pad)
        return Patches(self.patch_embed(images), grid_of(images.shape[2:], self.config.patch_size))

    def place(self, patches: Patches) -> Patches:
        """Adds absolute positions, if any, to the patches (those of ``ids`` for a subset), and drops patches in training."""
        self._check_subset(patches)
        dropped = getattr(self.config, "patch_dropout", 0.0) if self.training else 0.0
        return drop_patches(self._add_positions(patches), dropped)

    def _add_positions(self, patches: Patches) -> Patches:
        """Adds absolute positions to the patches; none by default."""
        return patches

    @abstractmethod
    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies prefix tokens, blocks and the last norm: (B, N, D) to (B, T, D). ``on_attention``: see `forward_recording`."""

    @property
    def _reads(self) -> int | None:
        """Number of leading tokens that `pool` uses; None for all tokens."""
        return 1 if self.prefix else None

    def pool(self, tokens: Tokens) -> Tensor:
        """Pools tokens (B, T, D) to features (B, F): the class token if there is one, otherwise the mean of the patches."""
        return tokens.x[:, self.leading :].mean(1) if self._reads is None else tokens.x[:, 0]

    def pooling_shares(self, tokens: int) -> Tensor:
        """Returns the weights of the T ``tokens`` of the last layer in `pool`: (T,), summing to one."""
        shares = torch.zeros(tokens)
        if self._reads is None:
            shares[self.leading :] = 1 / (tokens - self.leading)
        else:
            shares[: self._reads] = 1 / self._reads
        return shares

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        """Returns the logits of each head by name. Models with DeiT's "dist" token have more than one head."""
        return {"gap" if self._reads is None else "cls": self.head(features)}

    @abstractmethod
    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Pair]]:
        """Yields the output (B, T, D) of each block, or of each stage of a pyramid, and the grid of its patches."""

    def feature_maps(self, images: Tensor, on_attention: OnAttention | None = None) -> list[Tensor]:
        """Returns feature maps (B, D, h, w) before the last norm, after each block, or after each stage of a pyramid.

        ``on_attention`` is called as in `forward_recording`; what comes after the last map has no record.
        """
        outputs = self._outputs(self._add_positions(self.patchify(images)), on_attention)
        return [as_map(x[:, x.shape[1] - math.prod(grid) :], grid) for x, grid in outputs]

    def dense_maps(
        self, images: Tensor, layers: Sequence[int] | None = None, on_attention: OnAttention | None = None
    ) -> list[Tensor]:
        """Returns feature maps for tasks that answer for every place of an image: (B, D, h, w) each.

        Maps of the width of the last go through the last norm; if it normalises pooled features, it is applied to each cell.

        Args:
            images: (B, C, H, W) of any size that the model supports; positions are resized.
            layers: indices of `feature_maps`; by default `Config.dense_layers`, every stage of a pyramid or the last block.
            on_attention: called as in `feature_maps`.
        """
        maps = self.feature_maps(images, on_attention)
        return [self._norm_map(maps[layer]) for layer in (self.config.dense_layers if layers is None else layers)]

    def features_and_map(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features (B, F) and the last of the `dense_maps` (B, D, h, w), from one pass."""
        tokens = self.forward_features(images)
        return self.pool(tokens), self.last_map(tokens)

    def last_map(self, tokens: Tokens) -> Tensor:
        """Returns the last of the `dense_maps` (B, D, h, w) from all tokens of `encode`."""
        x = as_map(tokens.x[:, self.leading :], tokens.grid)
        return self._norm_map(x) if isinstance(getattr(self, "norm", None), nn.Identity) else x

    def _norm_map(self, x: Tensor) -> Tensor:
        """Applies the last norm to a map (B, D, h, w) if it has the width of the last."""
        return self.norm_tokens(x.movedim(1, -1)).movedim(-1, 1) if x.shape[1] == self.width else x

    def norm_tokens(self, x: Tensor) -> Tensor:
        """Applies the last norm to tokens (..., D); if it normalises pooled features, it is applied to each of them."""
        return (self.fc_norm if isinstance(self.norm, nn.Identity) else self.norm)(x)

    def forward_recording(self, images: Tensor, on_attention: OnAttention) -> Tensor:
        """Returns logits (B, K) identical to those of `forward`, and calls ``on_attention`` with the `AttentionRecord` of each
        layer, in the order of `attention_grids`. Patches are not dropped, and stochastic depth uses masks.
        """
        return self.head(self.pool(self.encode(self._add_positions(self.patchify(images)), on_attention)))

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns logits (B, K) and the attention of each layer, (B, heads, queries, keys) in fp32, in the order of
        `attention_grids`, which maps rows and columns to the image. The matrices are recomputed from q and k. Their memory is
        quadratic in the number of tokens; use `forward_recording` for large images.
        """
        matrices: list[Tensor] = []
        logits = self.forward_recording(images, lambda record: matrices.append(record.weights()))
        return logits, matrices

    def attention_grids(self, size: Pair) -> list[AttentionGrid]:
        """Returns the grid of each matrix of `forward_with_attention` for images of ``size`` (height, width).

        The default is attention between all tokens in every block.
        """
        grid, cell = grid_of(size, self.config.patch_size), self.config.patch_size
        return [AttentionGrid(self.leading, grid, grid, cell)] * self.config.depth

    def layers(self) -> list[dict[str, nn.Parameter]]:
        """Groups all parameters by depth: projection, tokens and positions; each block; norm, pooling and head."""
        groups: list[dict[str, nn.Parameter]] = [{} for _ in range(self.config.blocks + 2)]
        for name, parameter in self.named_parameters():
            groups[self._layer(name)][name] = parameter
        return groups

    def _layer(self, name: str) -> int:
        """Returns the index of a parameter in `layers`: 0, its block from 1, or -1; of a stage, its first block."""
        match name.split("."):
            case ["blocks", block, *_]:
                return int(block) + 1
            case ["stages", stage, part, *rest]:
                return sum(self.config.depths[: int(stage)]) + (int(rest[0]) if part == "blocks" else 0) + 1
            case ["norm" | "fc_norm" | "attn_pool" | "projection" | "head", *_]:
                return -1
        return 0

    def no_decay(self) -> set[str]:
        """Returns the names of parameters without weight decay: biases, norms, tokens, positions, LayerScale."""
        return {name for name, tensor in self.named_parameters() if tensor.ndim == 1 or not name.endswith(".weight")}

    def reset_head(self, classes: int) -> None:
        """Replaces the head by a zero-initialised one for other classes (paper, appendix B.1.1)."""
        self.config = changed(self.config, classes=classes, head_bias=0.0)
        like = list(self.parameters())[-1]
        head = self._make_head().to(like)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        self.head = head

    def _make_head(self) -> nn.Module:
        """Returns an uninitialised head as specified by the config."""
        return Head(self.width, self.config.classes) if self.config.classes else nn.Identity()

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: Any, new: Any) -> dict[str, Tensor]:
        """Converts the tensors of a model from config ``old`` to ``new``: position tables are resized to the image size."""
        return dict(tensors)

    def _check(self, images: Tensor) -> None:
        """Raises `ConfigError` unless the input is a batch of images with the channels of the model."""
        if images.ndim != 4 or images.shape[1] != self.config.in_channels:
            what = f"images of shape {tuple(images.shape)} for a model of {self.config.in_channels} channels"
            raise ConfigError(what, "give (B, C, H, W), or create the model with in_channels=C")

    def _check_subset(self, patches: Patches) -> None:
        """Raises `ConfigError` for a subset of the patches, in models that need the whole grid."""
        if patches.ids is None or takes_subsets(self.config):
            return
        what = f"requires the whole grid of patches, but got {patches.x.shape[1]}"
        if self.config.architecture in TAKE_SUBSETS:
            raise ConfigError(f"{self.config.about} with windows {what}", "create it with window=0")
        remedy = f"choose an architecture that supports subsets: {', '.join(TAKE_SUBSETS)}"
        raise ConfigError(f"{self.config.about} {what}", remedy)

    def _run(self, block: nn.Module, *inputs: Any, on_attention: OnAttention | None = None) -> Any:
        """Runs a block. In training with ``checkpoint``, its activations are recomputed in the backward pass, unless attention
        is recorded, which would record it twice.
        """
        if on_attention is not None:
            return block(*inputs, on_attention=on_attention)
        if self.config.checkpoint and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)


def last(outputs: Iterable[T]) -> T:
    """Returns the last of ``outputs``, and keeps no other in memory."""
    *_, output = deque(outputs, maxlen=1)
    return output


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of the parameters of ``model``; the CPU for models without parameters, such as exported graphs."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def eval_mode(model: nn.Module, *, gradients: bool = False) -> Iterator[torch.device]:
    """Sets the model to evaluation mode within the block, without gradients unless requested, and restores its mode.

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
