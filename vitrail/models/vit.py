"""The Vision Transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"): its config, block, network and sizes.

B images, C channels, H x W pixels, h x w = N patches, P prefix tokens, R registers, T = P + R + N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models import positions
from vitrail.models.attention import EVERYWHERE, Attention, Context, GridWindows, OnAttention, Relative, attend
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import (
    GROUPS,
    STANDARDISATIONS,
    Count,
    IsotropicConfig,
    Pair,
    Positive,
    Share,
    changed,
    grid_of,
    is_whole,
)
from vitrail.models.hybrid import HybridEmbed
from vitrail.models.initialise import initialise
from vitrail.models.layers import (
    NORMS,
    Dense,
    Head,
    LayerScale,
    Mlp,
    PatchEmbed,
    Patches,
    ResidualBlock,
    SwiGLU,
    Tokens,
    drop_rates,
    residual_stream,
    whole_patches,
)
from vitrail.models.rope import ROPES, Frequencies, Rotation, change_coordinates, coordinates, make_rotations

# in which later models differ from the paper
LATER_FIELDS = (
    "rope", "norm", "norm_at", "pre_norm", "patch_norm", "final_norm", "mlp", "mlp_norm", "attention_norm", "qkv_bias", "bias",
    "pool_heads", "pool_mlp_width", "projection",
)  # fmt: skip
ROPE_FIELDS = ("rope", "rope_theta", "rope_grid", "rope_shift", "rope_jitter", "rope_rescale")
PREFIXES = ((), ("cls",), ("cls", "dist"))


@dataclass(frozen=True, kw_only=True)
class ViTConfig(IsotropicConfig):
    """The fields of a ViT in addition to those of `IsotropicConfig`; the defaults are ViT-B/16 as in the paper.

    Args:
        stem: number of blocks per stage of a ResNet whose map is split into patches, see `vitrail.models.hybrid`. The map has
            stride 4 with (), i.e. only the root, or with one stage; each further stage doubles it. None for no stem.
        stem_width: number of channels of the root; those of the stages are 4, 8, 16 ... times as many.
        standardise: rule of kernel standardisation in the stem, one of `config.STANDARDISATIONS`.
        group_norm_eps: added to the variance in each group norm of the stem.
        prefix: learned tokens before the patches: none, the class token, or also DeiT's distillation token.
        registers: number of additional learned tokens without position, which pooling ignores (Darcet et al. 2024).
        pool: the prefix tokens ("cls"), only the class token of two ("cls-only"), the mean of the patches, the class token
            concatenated with that mean (DINOv2), or attention with a learned query.
        pool_norm: apply the last norm after the mean of the patches, not before (MAE's fine-tuning).
        positions: see `vitrail.models.positions`.
        positions_at: added at the stem, at every layer from separate tables, or at every layer from one shared table
            (appendix D.4). Relative positions are part of attention: "shared" is one table, otherwise each layer has its own.
        prefix_positions: whether prefix tokens have positions, too; DeiT III has none.
        pre_logits: the head of pretraining, with a hidden layer and tanh.
        initial: initialisation, see `vitrail.models.initialise`: as in the paper; "truncated", as in DeiT; "mimetic", which
            learns faster from little data; or "identity", which networks without skips need.
        window: longest side, in patches, of the windows in which blocks attend (ViTDet, Li et al. 2022); 0 for global attention
            in every block. There are as few windows as this allows, all of one size. Patches also attend to the prefix tokens
            and registers, and these to all tokens, so no parameter depends on the windows.
        global_blocks: number of blocks that attend globally where others attend in windows: evenly spaced, and the last one.
        skips: whether branches are added to their input; without skips they replace it (an ablation).
        layer_scale: initial value of LayerScale; None disables it.
        dropout: rate after every dense layer except q, k, v, and after adding positions; ``attention_dropout`` is that of the
            attention matrices.
        patch_dropout: fraction of patches dropped in training, the same number for each image.
        rope: rotation of q and k by the place of a patch, one of `vitrail.models.rope.ROPES`, in addition to ``positions``.
        rope_theta: replaces theta of that rule.
        rope_grid: (rows, columns) to which the indices of patches are scaled at every image size; None for no scaling.
        rope_shift, rope_jitter, rope_rescale: largest shift of the coordinates, in halves of the image, and largest factors of
            each axis and of both, drawn in training once for all images of a batch; None for no change.
        norm: "layer", or "rms", which has no bias (Zhang & Sennrich 2019).
        norm_at: "pre", before attention and MLP as in the paper, or "post", after each, within the residual.
        pre_norm: a norm before the first block (CLIP, Radford et al. 2021); the patch projection then has no bias.
        patch_norm: a norm of the patches before positions are added.
        final_norm: whether there is a norm after the last block.
        mlp: "gelu", or "swiglu", W2 (silu(W x) * (V x)) with ``mlp_width`` rows in W and in V (Shazeer 2020).
        mlp_norm, attention_norm: a norm of the MLP's hidden layer, and of the joined heads, before the layer that follows.
        qkv_bias: whether q, k and v have biases; "qv" for q and v only.
        bias: whether the output layer of attention and the MLP have biases.
        pool_heads, pool_mlp_width: of attention pooling; by default those of the blocks.
        projection: width of a linear layer without bias between pooling and head, as of CLIP, whose output are the features;
            0 for none.
    """

    architecture: ClassVar[str] = "vit"
    about: ClassVar[str] = "a ViT"
    attention: ClassVar[str] = "N^2"
    CHOICES: ClassVar = {
        **IsotropicConfig.CHOICES,
        "pool": ("cls", "cls-only", "gap", "cls+gap", "map"),
        "positions": ("learned", "learned2d", "sincos2d", "relative", "none"),
        "positions_at": ("stem", "every", "shared"),
        "initial": ("paper", "truncated", "mimetic", "identity"),
        "standardise": tuple(STANDARDISATIONS),
        "rope": ("none", *ROPES),
        "norm": ("layer", "rms"),
        "norm_at": ("pre", "post"),
        "mlp": ("gelu", "swiglu"),
        "qkv_bias": (True, False, "qv"),
    }

    stem: tuple[int, ...] | None = None
    stem_width: int = 64
    standardise: str = "vit"
    group_norm_eps: Positive = 1e-6
    prefix: tuple[str, ...] = ("cls",)
    registers: Count = 0
    pool: str = "cls"
    pool_norm: bool = False
    positions: str = "learned"
    positions_at: str = "stem"
    prefix_positions: bool = True
    pre_logits: bool = False
    qkv_bias: bool | str = True
    initial: str = "paper"
    window: Count = 0
    global_blocks: int = 4
    skips: bool = True
    layer_scale: float | None = None
    dropout: Share = 0.0
    attention_dropout: Share = 0.0
    patch_dropout: Share = 0.0
    rope: str = "none"
    rope_theta: float | None = None
    rope_grid: Pair | None = None
    rope_shift: float | None = None
    rope_jitter: float | None = None
    rope_rescale: float | None = None
    norm: str = "layer"
    norm_at: str = "pre"
    pre_norm: bool = False
    patch_norm: bool = False
    final_norm: bool = True
    mlp: str = "gelu"
    mlp_norm: bool = False
    attention_norm: bool = False
    bias: bool = True
    pool_heads: int | None = None
    pool_mlp_width: int | None = None
    projection: Count = 0

    def _check_together(self) -> None:
        learned = 4 if self.initial in ("mimetic", "identity") else 1
        parts = {"sincos2d": 4, "learned2d": 2, "learned": learned}.get(self.positions, 1)
        what = f"a multiple of {parts}, for positions={self.positions!r} and initial={self.initial!r}"
        self._check("width", self.width % parts == 0, what)
        self._check("prefix", self.prefix in PREFIXES, "one of " + ", ".join(map(str, PREFIXES)))
        what = "('cls',), as required by pool='cls'; or set pool='gap'"
        self._check("prefix", self.prefix != () or self.pool not in ("cls", "cls+gap"), what)
        what = "'cls', unless there is a second token that the head ignores"
        self._check("pool", self.pool != "cls-only" or len(self.prefix) > 1, what)
        what = "False, or pool = 'gap': it normalises the mean of the patches"
        self._check("pool_norm", not self.pool_norm or self.pool == "gap", what)
        what = "0 without skips, because a dropped branch would have no output"
        self._check("drop_path", self.skips or self.drop_path == 0, what)
        what = "False, because with classes=0 there is no head"
        self._check("pre_logits", not self.pre_logits or self.classes > 0, what)
        self._check("final_norm", self.final_norm or not self.pool_norm, "True, or pool_norm = False: one of two")
        is_paper = (self.mlp, self.norm_at, self.rope) == ("gelu", "pre", "none")
        what = "'paper' or 'truncated' with mlp, norm_at or rope other than the paper's"
        self._check("initial", is_paper or self.initial in ("paper", "truncated"), what)
        is_shared = self.pool == "cls" and len(self.prefix) > 1
        self._check("projection", not self.projection or not is_shared, "0, because each of two tokens has a head")
        what = f"a divisor of width={self.width}"
        self._check("pool_heads", self.pool_heads is None or self.width % self.pool_heads == 0, what)
        if self.window:
            self._check_windows()
        if self.stem is not None:
            self._check_stem(self.stem)
        super()._check_together()
        if any(getattr(self, name) != getattr(type(self), name) for name in ROPE_FIELDS):
            self._check_rope()

    def _check_rope(self) -> None:
        rule, theta = ROPES.get(self.rope), self.rope_theta
        is_index = rule is not None and not rule.is_centred
        is_centred, is_fixed = rule is not None and rule.is_centred, rule is not None and not rule.is_learned
        quarters = f"such that a head has a multiple of 4 channels, for rope={self.rope!r}"
        checks = {
            "heads": (rule is None or self.head_width % 4 == 0, quarters),
            "positions": (rule is None or self.positions != "relative", "other than 'relative', or rope = 'none'"),
            "rope_theta": (theta is None or (is_fixed and theta > 1), "None, or above 1 with fixed frequencies"),
            "rope_grid": (self.rope_grid is None or is_index, "None, or (rows, columns) where coordinates are indices"),
        }
        for name, least in (("rope_shift", 0), ("rope_jitter", 1), ("rope_rescale", 1)):
            value = getattr(self, name)
            is_valid = value is None or (value > least and is_centred)
            checks[name] = (is_valid, f"None, or a number above {least} with rope = 'dinov3'")
        for name, (is_valid, remedy) in checks.items():
            self._check(name, is_valid, remedy)

    def _check_windows(self) -> None:
        what = f"less than depth={self.depth} with window={self.window}, or window=0: no block would attend in windows"
        self._check("global_blocks", self.global_blocks < self.depth, what)
        what = f"other than 'relative' with window={self.window}, because its table is one for all pairs of patches"
        self._check("positions", self.positions != "relative", what)
        what = f"0 with window={self.window}, because windows need every patch of the grid; or window = 0"
        self._check("patch_dropout", self.patch_dropout == 0, what)

    def _check_stem(self, stem: Any) -> None:
        listed = isinstance(stem, tuple) and all(map(is_whole, stem))
        self._check("stem", listed, "None, or the blocks of each stage, such as (3, 4, 9)")
        self._check("stem_width", self.stem_width % GROUPS == 0, f"a multiple of {GROUPS}, the groups of its norms")
        divides = all(length % self.stem_stride == 0 for length in self.patch_size)
        self._check("patch_size", divides, f"multiples of {self.stem_stride}, the stride of stem={stem}")
        self._check("pre_norm", not self.pre_norm, "False with a stem")
        self._check("patch_norm", not self.patch_norm, "False with a stem")

    @property
    def attends_globally(self) -> list[bool]:
        """Whether each block attends to all patches, not only to those of a window."""
        if not self.window:
            return [True] * self.depth
        # the numbers from 1 of the last blocks of ``global_blocks`` equal parts
        parts = [block * self.global_blocks // self.depth for block in range(self.depth + 1)]
        return [before < after for before, after in pairwise(parts)]

    @property
    def is_later(self) -> bool:
        """Whether it has parts that the paper's ViT does not have."""
        return any(getattr(self, name) != getattr(type(self), name) for name in LATER_FIELDS)

    @property
    def prefix_slots(self) -> int:
        """Number of prefix tokens with a position."""
        return len(self.prefix) if self.prefix_positions else 0

    @property
    def stem_stride(self) -> int:
        """Stride in pixels of the map that is split into patches."""
        return 1 if self.stem is None else 4 * 2 ** max(len(self.stem) - 1, 0)

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class Block(ResidualBlock):
    """Equations (2) and (3): z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z'; optionally without the skips "+ z", or with the norms at
    the ends of the branches.
    """

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        width, hidden, scaled = config.width, config.mlp_width, config.layer_scale is not None
        norm = partial(NORMS[config.norm], eps=config.norm_eps)
        self.drop_path = drop_path
        self.skips = config.skips
        self.is_post_norm = config.norm_at == "post"
        self.norm1 = norm(width)
        self.attn = Attention(
            width,
            config.heads,
            qkv_bias=config.qkv_bias,
            dropout=config.attention_dropout,
            bias=config.bias,
            norm=norm(width) if config.attention_norm else None,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.ls1 = LayerScale(width) if scaled else nn.Identity()
        self.norm2 = norm(width)
        parts: dict[str, Any] = {"dropout": config.dropout, "bias": config.bias}
        parts["norm"] = norm(hidden) if config.mlp_norm else None
        is_gated = config.mlp == "swiglu"
        self.mlp = SwiGLU(width, hidden, **parts) if is_gated else Mlp(width, hidden, gelu=config.gelu, **parts)
        self.ls2 = LayerScale(width) if scaled else nn.Identity()

    def forward(self, x: Tensor, context: Context = EVERYWHERE, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D), or to (B, Q, D) where only the first Q tokens are needed afterwards."""

        def attention(x: Tensor) -> Tensor:
            if self.is_post_norm:
                return self.ls1(self.norm1(self.dropout(self.attn(x, context, on_attention))))
            return self.ls1(self.dropout(self.attn(self.norm1(x), context, on_attention)))

        def mlp(x: Tensor) -> Tensor:
            return self.ls2(self.norm2(self.mlp(x)) if self.is_post_norm else self.mlp(self.norm2(x)))

        if not self.skips:
            return mlp(attention(x))
        whole = on_attention is not None or context.is_per_image
        return self.add_branches(x, attention, mlp, whole=whole, queries=context.queries)


class AttentionPool(nn.Module):
    """Attention pooling with one learned query, followed by an MLP: the MAP head of Zhai et al. 2022 (big_vision)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.pool_heads or config.heads
        self.latent = nn.Parameter(torch.empty(1, 1, width))
        self.q = Dense(width, width)
        self.kv = Dense(width, 2 * width)
        self.proj = Dense(width, width)
        self.norm = NORMS[config.norm](width, eps=config.norm_eps)
        self.mlp = Mlp(width, config.pool_mlp_width or config.mlp_width, gelu=config.gelu)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, D)."""
        q = self.q(self.latent.to(x.dtype)).expand(x.shape[0], -1, -1).unflatten(-1, (self.heads, -1))  # (B, 1, H, E)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).unbind(2)  # (B, T, H, E) each
        pooled = attend(*(part.transpose(1, 2) for part in (q, k, v)))  # (B, H, 1, E)
        y = self.proj(pooled.transpose(1, 2).flatten(2))[:, 0]  # (B, D)
        return y + self.mlp(self.norm(y))


class Heads(nn.ModuleDict):
    """A head for each prefix token, averaged (DeiT, Touvron et al. 2021a)."""

    def compute_logits(self, features: Tensor) -> dict[str, Tensor]:
        """Returns the logits of every head by the name of its token."""
        parts = features.chunk(len(self), -1)
        return {name: head(part) for (name, head), part in zip(self.items(), parts)}

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack(list(self.compute_logits(features).values())).mean(0)


class ViT(Backbone):
    """The paper's backbone: patches, prefix tokens and positions, blocks, norm, pooling and head."""

    config: ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        width, depth = config.width, config.depth
        norm = partial(NORMS[config.norm], eps=config.norm_eps)
        if config.stem is not None:
            self.patch_embed = HybridEmbed(config)
        else:
            before = {"bias": not config.pre_norm, "norm": norm(width) if config.patch_norm else None}
            self.patch_embed = PatchEmbed(config.in_channels, width, config.patch_size, **before)
        for name in config.prefix:
            self.register_parameter(f"{name}_token", nn.Parameter(torch.empty(1, 1, width)))
        if config.registers:
            self.reg_token = nn.Parameter(torch.empty(1, config.registers, width))
        for name, shape in positions.table_shapes(config).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        is_learned = config.rope != "none" and ROPES[config.rope].is_learned
        self.rope = Frequencies(config) if is_learned else None
        self.dropout = nn.Dropout(config.dropout)
        self.norm_pre = norm(width) if config.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, drop) for drop in drop_rates(config.drop_path, depth))
        is_last = config.final_norm and not config.pool_norm
        self.norm = norm(width) if is_last else nn.Identity()
        self.fc_norm = norm(width) if config.pool_norm else nn.Identity()
        self.attn_pool = AttentionPool(config) if config.pool == "map" else None
        pooled = width * (2 if config.pool == "cls+gap" else 1)
        self.projection = Dense(pooled, config.projection, bias=False) if config.projection else None
        self.head = self._make_head()
        initialise(self, config)

    def _make_head(self) -> nn.Module:
        config = self.config
        if not config.classes:
            return nn.Identity()
        width = config.projection or self.width * (2 if config.pool == "cls+gap" else 1)
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
        return self.pool(self.encode(self.place(self.patchify(images)), reads=self._reads))

    @property
    def _reads(self) -> int | None:
        return {"cls": len(self.prefix), "cls-only": 1}.get(self.config.pool)

    @property
    def leading(self) -> int:
        """Number of tokens before the patches: prefix tokens and registers."""
        return len(self.prefix) + self.config.registers

    def patchify(self, images: Tensor) -> Patches:
        """Splits images into patches and projects them, x_p E of equation (1): (B, C, H, W) to (B, N, D)."""
        self._check(images)
        images = whole_patches(images, self.config.patch_size, pad=self.config.pad)
        x = self.patch_embed(images) if self.config.stem is None else self.patch_embed(images, self._run)
        return Patches(x, grid_of(images.shape[2:], self.config.patch_size))

    @property
    def _is_placed_at_stem(self) -> bool:
        return self.config.positions not in ("none", "relative") and self.config.positions_at == "stem"

    def _add_positions(self, patches: Patches) -> Patches:
        """Adds E_pos of the patches, where positions are added at the stem."""
        return patches._replace(x=patches.x + self._positions(patches)[1]) if self._is_placed_at_stem else patches

    def _positions(self, patches: Patches, table: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the positions of the prefix tokens (1, P, D) and of the patches (B or 1, K, D), from one of the tables."""
        # by attribute: in a replica of DataParallel they are plain tensors, which named_parameters does not list
        named = {name: getattr(self, name) for name in positions.table_shapes(self.config)}
        x, grid, ids = patches
        prefix, places = positions.embeddings(self.config, named, table, grid, x.device)
        return prefix.to(x), positions.take(places.to(x), ids)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None, *, reads: int | None = None) -> Tokens:
        """Applies prefix tokens, blocks and norm, equations (1) to (4): (B, K, D) to (B, P + R + K, D).

        The last block computes only the first ``reads`` tokens, by default all. Raises `ConfigError` for a subset of the patches
        if blocks attend in windows.
        """
        self._check_subset(patches)
        x, grid = last(self._outputs(patches, on_attention, reads))
        return Tokens(self.norm(x), grid, patches.ids)

    def encode_queries(
        self,
        images: Tensor,
        queries: Tensor,
        blocks: int,
        close: Callable[[Tokens], Tensor] | None = None,
        on_attention: OnAttention | None = None,
    ) -> Tokens:
        """Encodes images (B, C, H, W) with further tokens ``queries`` (S, D), which come before all others and enter before the
        last ``blocks`` (EoMT, Kerssies et al. 2025): (B, S + P + R + N, D).

        ``close`` is called with the tokens before each of these blocks, after the last norm, and returns which tokens the queries
        do not attend to in it, (B, S, S + P + R + N). ``on_attention`` is called as in `forward_recording`, with ``close`` None.
        """
        patches = self._add_positions(self.patchify(images))
        x, entry = self._begin(patches), self.config.depth - blocks
        layers = self._layers(patches, None, is_recorded=on_attention is not None)
        for index, (block, added, context) in enumerate(layers):
            if index == entry:
                x = torch.cat([queries.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)
            if index >= entry:
                assert added is None and context.relative is None and context.windows is None, "checked by the caller"
                rotation = context.rotation and context.rotation.follow(len(queries))
                closed = None if close is None else close(Tokens(self.norm_tokens(x), patches.grid))
                context = context._replace(rotation=rotation, closed=closed)
            x = self._run(block, x if added is None else x + added, context, on_attention=on_attention)
        return Tokens(self.norm_tokens(x), patches.grid)

    def _outputs(
        self, patches: Patches, on_attention: OnAttention | None = None, reads: int | None = None
    ) -> Iterator[tuple[Tensor, Pair]]:
        x = self._begin(patches)
        for block, added, context in self._layers(patches, reads, is_recorded=on_attention is not None):
            x = self._run(block, x if added is None else x + added, context, on_attention=on_attention)
            yield x, patches.grid

    def _begin(self, patches: Patches) -> Tensor:
        """Returns z_0: prefix tokens with positions, registers and patches, after dropout: (B, T, D)."""
        x = patches.x
        before = [getattr(self, f"{name}_token").to(x.dtype) for name in self.prefix]
        if before and self._is_placed_at_stem:
            before = [torch.cat(before, 1) + self._positions(patches)[0]]
        if self.config.registers:
            before.append(self.reg_token.to(x.dtype))
        x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in before), x], 1)
        return residual_stream(self.norm_pre(self.dropout(x)))

    def _layers(
        self, patches: Patches, reads: int | None, *, is_recorded: bool = False
    ) -> list[tuple[nn.Module, Tensor | None, Context]]:
        """Returns each block with the positions added to its input (B or 1, T, D), if any, and the context of its attention."""
        config, (x, grid, ids), depth = self.config, patches, self.config.depth
        # one for all layers, or one per layer
        added: list[Tensor | None] = [None]
        relative: list[Relative | None] = [None]
        if config.positions == "relative":
            tables = positions.relative_tables(config, self.get_parameter("pos_embed_relative"), grid)  # (L, R, E)
            index = positions.relative_index(config, grid, ids, x.device)
            relative = [Relative(table, index) for table in tables]
        elif config.positions != "none" and config.positions_at != "stem":
            added = [self._slots(patches, table) for table in range(depth if config.positions_at == "every" else 1)]
        rotations: list[Rotation | None] = [None]
        if config.rope != "none":
            rotations = self._rotations(patches, is_recorded=is_recorded)
        windows: list[GridWindows | None] = [None]
        if config.window:
            cut = GridWindows.over(self.leading, grid, config.window)
            windows = [None if is_global else cut for is_global in config.attends_globally]
        contexts = [
            Context(offsets, window, rotation=rotation)
            for offsets, window, rotation in zip(*((each * depth)[:depth] for each in (relative, windows, rotations)))
        ]
        contexts[-1] = contexts[-1]._replace(queries=reads)
        return list(zip(self.blocks, (added * depth)[:depth], contexts))

    def _rotations(self, patches: Patches, *, is_recorded: bool) -> list[Rotation | None]:
        """Returns the rotation of q and k in each layer, or one for all."""
        x, grid, ids = patches
        places = coordinates(self.config, grid, x.device)
        if self.training and not is_recorded and not torch.compiler.is_exporting():
            places = change_coordinates(self.config, places)
        frequencies = None if self.rope is None else self.rope.freqs
        return [*make_rotations(self.config, frequencies, ids, self.leading, places)]

    def _slots(self, patches: Patches, table: int) -> Tensor:
        """Returns the positions of a table for the whole sequence, zero for registers: (B or 1, T, D)."""
        prefix, places = self._positions(patches, table)
        prefix = F.pad(prefix, (0, 0, 0, self.config.registers)).expand(places.shape[0], -1, -1)
        return torch.cat([prefix, places], 1)

    def pool(self, tokens: Tokens) -> Tensor:
        """Pools tokens (B, T, D) to (B, D), y of equation (4); to (B, P D) if each prefix token has a head, or (B, 2 D) for the
        class token and the mean; to (B, F) with a projection of width F.
        """
        x = tokens.x
        if self.attn_pool is not None:
            pooled = self.attn_pool(x)
        elif self._reads is not None:
            pooled = x[:, : self._reads].flatten(1)
        else:
            mean = x[:, self.leading :].mean(1)
            pooled = self.fc_norm(mean) if self.config.pool == "gap" else torch.cat([x[:, 0], mean], 1)
        return pooled if self.projection is None else self.projection(pooled)

    def pooling_shares(self, tokens: int) -> Tensor:
        """Returns the weights of the tokens in `pool`, (T,); for attention pooling, which depends on the image, the mean."""
        shares = super().pooling_shares(tokens)
        if self.config.pool == "cls+gap":
            shares[0] = 1
        return shares / shares.sum()

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        if isinstance(self.head, Heads):
            return self.head.compute_logits(features)
        return {"cls" if self.config.pool == "cls-only" else self.config.pool: self.head(features)}

    def forward_recording(self, images: Tensor, on_attention: OnAttention) -> Tensor:
        patches = self._add_positions(self.patchify(images))
        return self.head(self.pool(self.encode(patches, on_attention, reads=self._reads)))

    def reset_head(self, classes: int) -> None:
        """Replaces the head, and an image-text projection before it, by a zero-initialised linear one for other classes (paper,
        appendix B.1.1).
        """
        self.config, self.projection = changed(self.config, pre_logits=False, projection=0), None
        super().reset_head(classes)

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        return positions.resize_tables(tensors, old.grid, new.grid, prefix=new.prefix_slots, rule=new.position_resize)
