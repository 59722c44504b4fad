"""The Vision Transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words").

B images, C channels, H x W pixels, h x w = N patches, P prefix tokens, R registers, T = P + R + N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models import positions
from vitrail.models.attention import Attention, AttentionGrid, OnAttention, Relative
from vitrail.models.backbone import Backbone
from vitrail.models.config import changed, grid_of
from vitrail.models.grid_windows import GridWindows
from vitrail.models.heads import AttentionPool, Head, Heads
from vitrail.models.hybrid import HybridEmbed
from vitrail.models.initialise import initialise
from vitrail.models.layers import (
    LayerNorm,
    LayerScale,
    Mlp,
    PatchEmbed,
    Patches,
    Tokens,
    add_branch,
    drop_patches,
    drop_rates,
    residual_stream,
    whole_patches,
)
from vitrail.models.vit_config import ViTConfig


class Block(nn.Module):
    """Equations (2) and (3): z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z'; optionally without the skips "+ z"."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        width, scaled = config.width, config.layer_scale is not None
        self.drop_path = drop_path
        self.skips = config.skips
        self.norm1 = LayerNorm(width, eps=config.norm_eps)
        self.attn = Attention(width, config.heads, qkv_bias=config.qkv_bias, dropout=config.attention_dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.ls1 = LayerScale(width) if scaled else nn.Identity()
        self.norm2 = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, config.mlp_width, gelu=config.gelu, dropout=config.dropout)
        self.ls2 = LayerScale(width) if scaled else nn.Identity()

    def forward(
        self,
        x: Tensor,
        relative: Relative | None = None,
        queries: int | None = None,
        windows: GridWindows | None = None,
        on_attention: OnAttention | None = None,
    ) -> Tensor:
        """(B, T, D) to (B, T, D), or to (B, Q, D) where only the first Q tokens are needed afterwards."""

        def attention(x: Tensor) -> Tensor:
            return self.ls1(self.dropout(self.attn(self.norm1(x), relative, queries, windows, on_attention)))

        def mlp(x: Tensor) -> Tensor:
            return self.ls2(self.mlp(self.norm2(x)))

        if not self.skips:
            return mlp(attention(x))
        drop = self.drop_path if self.training else 0.0
        # attention is recorded for all images, and a subset of images would need a subset of their indices
        skip = False if on_attention is not None or (relative is not None and relative.index.ndim == 3) else None
        x = add_branch(x, attention, drop=drop, skip=skip, queries=queries)
        return add_branch(x, mlp, drop=drop, skip=skip)


class ViT(Backbone):
    """The paper's backbone, optionally with DeiT's distillation token or registers."""

    config: ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        width, depth = config.width, config.depth
        if config.stem is None:
            self.patch_embed = PatchEmbed(config.in_channels, width, config.patch_size)
        else:
            self.patch_embed = HybridEmbed(config)
        for name in config.prefix:
            self.register_parameter(f"{name}_token", nn.Parameter(torch.empty(1, 1, width)))
        if config.registers:
            self.reg_token = nn.Parameter(torch.empty(1, config.registers, width))
        for name, shape in positions.table_shapes(config).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, drop) for drop in drop_rates(config.drop_path, depth))
        self.norm = nn.Identity() if config.pool_norm else LayerNorm(width, eps=config.norm_eps)
        self.fc_norm = LayerNorm(width, eps=config.norm_eps) if config.pool_norm else nn.Identity()
        self.attn_pool = AttentionPool(config) if config.pool == "map" else None
        self.head = self._make_head()
        initialise(self, config)

    def _make_head(self) -> nn.Module:
        config = self.config
        if not config.classes:
            return nn.Identity()
        width = self.width * (2 if config.pool == "cls+gap" else 1)
        make = partial(Head, width, config.classes, pre_logits=config.pre_logits)
        two = config.pool == "cls" and len(self.prefix) > 1
        return Heads({name: make() for name in self.prefix}) if two else make()

    @property
    def first_layer(self) -> str:
        if self.config.stem is None:
            return super().first_layer
        return "patch_embed.backbone.stem.conv.weight" if self.config.stem else "patch_embed.backbone.conv.weight"

    def features(self, images: Tensor) -> Tensor:
        """Returns features (B, F). The last block is computed only for the tokens that pooling uses."""
        return self.pool(self._encode(self.place(self.patchify(images)), self._reads))

    @property
    def _reads(self) -> int | None:
        """Number of leading tokens that pooling uses; None for all."""
        return {"cls": len(self.prefix), "cls-only": 1}.get(self.config.pool)

    def patchify(self, images: Tensor) -> Patches:
        """Splits images into patches and projects them, x_p E of equation (1): (B, C, H, W) to (B, N, D)."""
        self._check(images)
        images = whole_patches(images, self.config.patch_size, pad=self.config.pad)
        hybrid = isinstance(self.patch_embed, HybridEmbed)
        x = self.patch_embed(images, self._run) if hybrid else self.patch_embed(images)
        return Patches(x, grid_of(images.shape[2:], self.config.patch_size))

    def place(self, patches: Patches) -> Patches:
        """Adds E_pos of the patches (those of ``ids`` for a subset), and applies patch dropout in training."""
        return drop_patches(self._place_all(patches), self.config.patch_dropout if self.training else 0.0)

    def _place_all(self, patches: Patches) -> Patches:
        self._check_subset(patches)
        if not self._is_placed_at_stem:
            return patches
        x, grid, ids = patches
        _, places = self._embeddings(0, grid, x)
        return Patches(x + positions.take(places, ids), grid, ids)

    @property
    def _is_placed_at_stem(self) -> bool:
        return self.config.positions not in ("none", "relative") and self.config.positions_at == "stem"

    def _embeddings(self, table: int, grid: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the positions of the prefix tokens (1, P, D) and of the patches (1, N, D), from one of the tables."""
        # by attribute: in a replica of DataParallel they are plain tensors, which named_parameters does not list
        named = {name: getattr(self, name) for name in positions.table_shapes(self.config)}
        prefix, places = positions.embeddings(self.config, named, table, grid, like.device)
        return prefix.to(like), places.to(like)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies prefix tokens, blocks and norm, equations (1) to (4): (B, K, D) to (B, P + R + K, D).

        Raises `ConfigError` for a subset of the patches if blocks attend in windows.
        """
        self._check_subset(patches)
        return self._encode(patches, on_attention=on_attention)

    def _encode(self, patches: Patches, reads: int | None = None, on_attention: OnAttention | None = None) -> Tokens:
        """Same as `encode`, but the last block computes only the first ``reads`` tokens."""
        x, layers = self._begin(patches), self._layers(patches)
        for block, added, relative, windows in layers:
            x = x if added is None else x + added
            queries = reads if block is self.blocks[-1] else None
            x = self._run(block, x, relative, queries, windows, on_attention=on_attention)
        return Tokens(self.norm(x), patches.grid, patches.ids)

    def _begin(self, patches: Patches) -> Tensor:
        """Returns z_0: prefix tokens with positions, registers and patches, after dropout: (B, T, D)."""
        x = patches.x
        before = [getattr(self, f"{name}_token").to(x.dtype) for name in self.prefix]
        if before and self._is_placed_at_stem:
            before = [torch.cat(before, 1) + self._embeddings(0, patches.grid, x)[0]]
        if self.config.registers:
            before.append(self.reg_token.to(x.dtype))
        x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in before), x], 1)
        return self.dropout(residual_stream(x))

    def _layers(self, patches: Patches) -> list[tuple[Any, Tensor | None, Relative | None, GridWindows | None]]:
        """Returns each block with the positions added to its input (B or 1, T, D), its relative positions and its windows, if
        any.
        """
        config, (x, grid, ids), depth = self.config, patches, self.config.depth
        added: list[Tensor | None] = [None]
        relative: list[Relative | None] = [None]
        if config.positions == "relative":
            tables = positions.relative_tables(config, self.get_parameter("pos_embed_relative"), grid)  # (L, R, E)
            index = positions.relative_index(config, grid, ids, x.device)
            relative = [Relative(table, index) for table in tables]
        elif config.positions != "none" and config.positions_at != "stem":
            tables = range(depth if config.positions_at == "every" else 1)
            added = [self._slots(patches, table) for table in tables]
        # one for all layers, or one per layer
        return list(zip(self.blocks, (added * depth)[:depth], (relative * depth)[:depth], self._windows(grid)))

    def _windows(self, grid: tuple[int, int]) -> list[GridWindows | None]:
        """Returns the windows of each block, None for global attention."""
        config = self.config
        if not config.window:
            return [None] * config.depth
        windows = GridWindows.over(len(self.prefix) + config.registers, grid, config.window)
        return [None if is_global else windows for is_global in config.attends_globally]

    def _slots(self, patches: Patches, table: int) -> Tensor:
        """Returns the positions of a table for the whole sequence, zero for registers: (B or 1, T, D)."""
        prefix, places = self._embeddings(table, patches.grid, patches.x)
        places = positions.take(places, patches.ids)
        prefix = F.pad(prefix, (0, 0, 0, self.config.registers)).expand(places.shape[0], -1, -1)
        return torch.cat([prefix, places], 1)

    def pool(self, tokens: Tokens) -> Tensor:
        """Pools tokens (B, T, D) to (B, D), y of equation (4); to (B, P D) if each prefix token has a head, or (B, 2 D) for the
        class token and the mean.
        """
        x, pool = tokens.x, self.config.pool
        if self.attn_pool is not None:
            return self.attn_pool(x)
        if self._reads is not None:
            return x[:, : self._reads].flatten(1)
        mean = x[:, len(self.prefix) + self.config.registers :].mean(1)
        return self.fc_norm(mean) if pool == "gap" else torch.cat([x[:, 0], mean], 1)

    def pooling_shares(self, tokens: int) -> Tensor:
        """Returns the weights of the tokens in `pool`, (T,). For attention pooling, whose weights depend on the image, the mean
        of the patches.
        """
        before = len(self.prefix) + self.config.registers
        shares = torch.zeros(tokens)
        if self._reads is not None:
            shares[: self._reads] = 1 / self._reads
            return shares
        shares[before:] = 1 / (tokens - before)
        if self.config.pool == "cls+gap":
            shares[0] = 1
        return shares / shares.sum()

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        if isinstance(self.head, Heads):
            return self.head.compute_logits(features)
        return {"cls" if self.config.pool == "cls-only" else self.config.pool: self.head(features)}

    def feature_maps(self, images: Tensor, on_attention: OnAttention | None = None) -> list[Tensor]:
        """Returns the patches after each block, before the last norm, as images: depth times (B, D, h, w)."""
        patches = self._place_all(self.patchify(images))
        x, maps = self._begin(patches), []
        for block, added, relative, windows in self._layers(patches):
            x = self._run(block, x if added is None else x + added, relative, None, windows, on_attention=on_attention)
            maps.append(x[:, -patches.x.shape[1] :].mT.unflatten(2, patches.grid))
        return maps

    @property
    def _last_norm(self) -> nn.Module:
        return self.fc_norm if self.config.pool_norm else self.norm

    def forward_recording(self, images: Tensor, on_attention: OnAttention) -> Tensor:
        patches = self._place_all(self.patchify(images))
        return self.head(self.pool(self._encode(patches, self._reads, on_attention)))

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grid of each matrix of `forward_with_attention` for images of ``size`` (height, width)."""
        grid = grid_of(size, self.config.patch_size)
        prefix = len(self.prefix) + self.config.registers
        return [AttentionGrid(prefix, grid, grid, self.config.patch_size)] * self.config.depth

    def new_head(self, classes: int) -> None:
        """Returns a linear head of zeros for other classes, without the hidden layer (paper, appendix B.1.1)."""
        self.config = changed(self.config, pre_logits=False)
        super().new_head(classes)

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        return positions.resize_tables(tensors, old.grid, new.grid, prefix=new.prefix_slots, rule=new.position_resize)
