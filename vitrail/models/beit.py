"""BEiT's encoder (Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers"): a ViT with relative position bias.

B images, C channels, H x W pixels, h x w = N patches, T = 1 + N tokens, D width, A heads, E = D / A,
L tables of relative position bias: one value per head and offset between two tokens, R = (2 h - 1)(2 w - 1) + 3 rows each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models import positions
from vitrail.models.attention import AttentionRecord, OnAttention, attend
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import RESIZES, Config, IsotropicConfig, Share
from vitrail.models.initialise import fills
from vitrail.models.layers import (
    Dense,
    LayerNorm,
    Mlp,
    PatchEmbed,
    Patches,
    ResidualBlock,
    Tokens,
    dense,
    drop_rates,
    residual_stream,
    scale_channels,
    working_dtype,
)
from vitrail.models.positions import Grid, is_kept, resample, resize

CLASS_ROWS = 3  # class token to patch, patch to class token, class token to itself

# interpolation of a table for another grid: at offsets in a geometric progression, linear (timm) or with a cubic spline
# (the authors), or at uniform offsets by any rule for positions (transformers: "bilinear")
BIAS_RESIZES = ("geometric", "geometric-cubic", *RESIZES)


@dataclass(frozen=True, kw_only=True)
class BEiTConfig(IsotropicConfig):
    """The fields of a BEiT in addition to those of `IsotropicConfig`; the defaults are BEiT-B/16 as it is fine-tuned.

    Args:
        pool: "gap", the mean of the patches followed by a norm, or "cls", a norm followed by the class token.
        relative_bias: a table for "every" block, as in fine-tuning, one "shared" by all, as in pretraining, or "none".
        bias_resize: interpolation of these tables for other image sizes; one of `BIAS_RESIZES`.
        positions: whether learned positions are added at the stem; BEiT has none.
        layer_scale: initial value of LayerScale; None disables it.
        patch_dropout: fraction of patches dropped in training, the same number for each image.
    """

    architecture: ClassVar[str] = "beit"
    about: ClassVar[str] = "a BEiT"
    attention: ClassVar[str] = "N^2"
    CHOICES: ClassVar = {
        **IsotropicConfig.CHOICES,
        "pool": ("gap", "cls"),
        "relative_bias": ("every", "shared", "none"),
        "bias_resize": BIAS_RESIZES,
    }

    pool: str = "gap"
    relative_bias: str = "every"
    bias_resize: str = "geometric"
    positions: bool = False
    position_resize: str = "bicubic"
    gelu: str = "exact"
    layer_scale: float | None = 0.1
    patch_dropout: Share = 0.0

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("cls",)


def count_rows(grid: Grid) -> int:
    """Returns R, the number of rows of a table for ``grid``."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + CLASS_ROWS


def bias_index(grid: Grid, ids: Tensor | None, device: torch.device) -> Tensor:
    """Returns the table row of each pair of tokens: (T, T), or (B, T, T) for a subset of patches with ``ids`` (B, K).

    The row of a query at (y, x) and a key at (y', x') is (y - y' + h - 1)(2 w - 1) + x - x' + w - 1.
    """
    (rows, columns), last = grid, count_rows(grid) - 1
    ids = torch.arange(rows * columns, device=device) if ids is None else ids
    places = F.pad(ids, (1, 0), value=-1)  # (T,) or (B, T), without the class token
    y = places // columns
    x = places - y * columns  # the remainder; the ONNX exporter does not support it for a dynamic number of columns
    down, right = (axis.unsqueeze(-1) - axis.unsqueeze(-2) for axis in (y, x))
    index = (down + rows - 1) * (2 * columns - 1) + right + columns - 1
    is_class = places < 0
    index = torch.where(is_class.unsqueeze(-1), last - 2, index)
    index = torch.where(is_class.unsqueeze(-2), last - 1, index)
    return torch.where(is_class.unsqueeze(-1) & is_class.unsqueeze(-2), last, index)


def gather_bias(table: Tensor, index: Tensor) -> Tensor:
    """Returns the bias of the logits from a table (R, A) and `bias_index`: (1, A, T, T), or (B, A, T, T) per image."""
    taken = table.mT.contiguous().index_select(1, index.flatten())  # (A, T T) or (A, B T T)
    return taken.unflatten(1, (-1, *index.shape[-2:])).transpose(0, 1)


def resize_bias(tables: Tensor, old: Grid, new: Grid, rule: str) -> Tensor:
    """Resizes tables (L, R, A) to another grid, (L, R', A), by one of `BIAS_RESIZES`. Rows of the class token are kept.

    The geometric progression (BEiT's code) keeps the spacing of near offsets at one patch and increases that of far ones: 0,
    1, 1 + q, 1 + q + q^2, ..., with q between 1.01 and 1.5 such that the last offset is the last of ``new``.
    """
    if is_kept(old, new):
        return tables
    of_patches, of_class = tables[:, :-CLASS_ROWS], tables[:, -CLASS_ROWS:]
    old, new = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (old, new))
    if rule in RESIZES:
        of_patches = resize(of_patches, old, new, rule)
    else:
        draw = interpolate_cubic if rule == "geometric-cubic" else interpolate_linearly
        of_rows, of_columns = (_resample_progression(*lengths, draw, tables.device) for lengths in zip(old, new))
        of_patches = resample(of_patches, old, of_rows, of_columns)
    return torch.cat([of_patches, of_class], 1)


def _resample_progression(old: int, new: int, draw: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> Tensor:
    """Returns the matrix (new, old) that resamples a line of offsets; the identity if the length is unchanged."""
    where = torch.device("cpu") if device.type == "mps" else device  # which has no fp64
    length = torch.full((), new, dtype=torch.float64, device=where)
    steps = torch.arange(-(old // 2), old // 2 + 1, dtype=torch.float64, device=where)  # (old,)
    q = solve_progression(old // 2, length // 2)
    places = torch.where(length == old, steps, steps.sign() * _sum(q, steps.abs()))
    wanted = torch.arange(new, dtype=torch.float64, device=where) - new // 2
    matrix = draw(places, wanted.clamp(places[0], places[-1]))
    return matrix.to(device, torch.float32)


def solve_progression(terms: int, last: Tensor) -> Tensor:
    """Finds q by bisection of [1.01, 1.5] to 1e-6, such that its first ``terms`` powers sum to ``last``."""
    low, high = torch.full_like(last, 1.01), torch.full_like(last, 1.5)
    q = low
    for _ in range(19):
        q = (low + high) / 2
        is_beyond = _sum(q, terms) > last
        low, high = torch.where(is_beyond, low, q), torch.where(is_beyond, q, high)
    return q


def _sum(q: Tensor, terms: Tensor | int) -> Tensor:
    """1 + q + ... + q^(terms - 1)."""
    return (q**terms - 1) / (q - 1)


def interpolate_linearly(places: Tensor, wanted: Tensor) -> Tensor:
    """Returns the matrix (new, old) of linear interpolation from ``places`` (old,) to ``wanted`` (new,)."""
    gaps = places.diff()
    distance = wanted[:, None] - places
    before, after = F.pad(gaps, (1, 0), value=1.0), F.pad(gaps, (0, 1), value=1.0)
    return (1 - torch.where(distance < 0, -distance / before, distance / after)).clamp(min=0)


def interpolate_cubic(places: Tensor, wanted: Tensor) -> Tensor:
    """Returns the matrix of a not-a-knot cubic spline: its third derivative is continuous at the second place from each end."""

    def basis(x: Tensor) -> Tensor:  # (X, old)
        x = x[:, None] / places[-1].clamp(min=1)
        knots = places[2:-2] / places[-1].clamp(min=1)
        powers = [x**power for power in range(min(len(places), 4))]
        return torch.cat([*powers, (x - knots).abs() ** 3], 1)

    return torch.linalg.solve(basis(places), basis(wanted), left=False)


class RelativeBias(nn.Module):
    """One table for all blocks."""

    def __init__(self, config: BEiTConfig) -> None:
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.empty(count_rows(config.grid), config.heads))


class Attention(nn.Module):
    """Multi-head self-attention with biases of q and v, no bias of k, and a bias of the logits."""

    def __init__(self, config: BEiTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.qkv = Dense(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.empty(width))
        self.v_bias = nn.Parameter(torch.empty(width))
        if config.relative_bias == "every":
            self.relative_position_bias_table = nn.Parameter(torch.empty(count_rows(config.grid), config.heads))
        self.proj = Dense(width, width)

    def forward(self, x: Tensor, bias: Tensor | None, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D), ``bias`` (B or 1, A, T, T)."""
        q, k, v = self._split(x)
        output = attend(q, k, v, bias=bias)
        if on_attention is not None:
            rows_of_bias = None if bias is None else lambda q, rows: bias[:, :, rows]
            on_attention(AttentionRecord(partial(self._split, x), output, rows_of_bias))
        return self.proj(output.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, T, D) to q, k and v: (B, A, T, E) each."""
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        q, k, v = dense(x, self.qkv.weight, bias).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v


class Block(ResidualBlock):
    """z' = gamma_1 attention(LN(z)) + z, z = gamma_2 MLP(LN(z')) + z'."""

    def __init__(self, config: BEiTConfig, drop_path: float) -> None:
        super().__init__()
        width, scaled = config.width, config.layer_scale is not None
        self.drop_path = drop_path
        self.norm1 = LayerNorm(width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.norm2 = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, config.mlp_width, gelu=config.gelu)
        self.gamma_1 = nn.Parameter(torch.empty(width)) if scaled else None
        self.gamma_2 = nn.Parameter(torch.empty(width)) if scaled else None

    def forward(self, x: Tensor, bias: Tensor | None, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D), ``bias`` (B or 1, A, T, T)."""

        def attention(x: Tensor) -> Tensor:
            return scale_channels(self.attn(self.norm1(x), bias, on_attention), self.gamma_1)

        def mlp(x: Tensor) -> Tensor:
            return scale_channels(self.mlp(self.norm2(x)), self.gamma_2)

        whole = on_attention is not None or (bias is not None and bias.shape[0] > 1)
        return self.add_branches(x, attention, mlp, whole=whole)


class BEiT(Backbone):
    """A ViT with relative position bias. With ``pool="gap"`` the last norm is applied to the mean of the tokens."""

    config: BEiTConfig
    blocks: Any  # a list of `Block`

    def __init__(self, config: BEiTConfig) -> None:
        super().__init__(config)
        width, (rows, columns) = config.width, config.grid
        self.patch_embed = PatchEmbed(config.in_channels, width, config.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + rows * columns, width)) if config.positions else None
        self.rel_pos_bias = RelativeBias(config) if config.relative_bias == "shared" else None
        self.blocks = nn.ModuleList(Block(config, drop) for drop in drop_rates(config.drop_path, config.depth))
        is_mean = config.pool == "gap"
        self.norm = nn.Identity() if is_mean else LayerNorm(width, eps=config.norm_eps)
        self.fc_norm = LayerNorm(width, eps=config.norm_eps) if is_mean else nn.Identity()
        self.head = self._make_head()
        _initialise(self)

    def _add_positions(self, patches: Patches) -> Patches:
        if self.pos_embed is None:
            return patches
        x, grid, ids = patches
        places = positions.resize(self.pos_embed[:, 1:], self.config.grid, grid, self.config.position_resize)
        return Patches(x + positions.take(places.to(x), ids), grid, ids)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies class token, blocks and, with ``pool="cls"``, the norm: (B, K, D) to (B, 1 + K, D)."""
        x, grid = last(self._outputs(patches, on_attention))
        return Tokens(self.norm(x), grid, patches.ids)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Grid]]:
        x = patches.x
        token = self.cls_token if self.pos_embed is None else self.cls_token + self.pos_embed[:, :1]
        x = residual_stream(torch.cat([token.to(x.dtype).expand(x.shape[0], -1, -1), x], 1))
        for block, bias in self._layers(patches):
            x = self._run(block, x, bias, on_attention=on_attention)
            yield x, patches.grid

    def _layers(self, patches: Patches) -> Iterable[tuple[Any, Tensor | None]]:
        """Yields each block with the bias of its logits, (B or 1, A, T, T), computed lazily."""
        x, grid, ids = patches
        if self.config.relative_bias == "none":
            return [(block, None) for block in self.blocks]
        owners = [block.attn for block in self.blocks] if self.rel_pos_bias is None else [self.rel_pos_bias]
        tables = torch.stack([owner.relative_position_bias_table for owner in owners])  # (L, R, A)
        tables = resize_bias(tables, self.config.grid, grid, self.config.bias_resize)
        tables = tables.to(working_dtype(x, self.cls_token))
        index = bias_index(grid, ids, x.device)
        if self.rel_pos_bias is not None:
            return zip(self.blocks, [gather_bias(tables[0], index)] * self.config.depth)
        return zip(self.blocks, (gather_bias(table, index) for table in tables))

    @property
    def _reads(self) -> int | None:
        return None if self.config.pool == "gap" else 1

    def pool(self, tokens: Tokens) -> Tensor:
        """Returns the mean of the patches after its norm, or the class token: (B, T, D) to (B, D)."""
        return self.fc_norm(super().pool(tokens))

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: BEiTConfig, new: BEiTConfig) -> dict[str, Tensor]:
        tables = {name: table for name, table in tensors.items() if name.endswith("relative_position_bias_table")}
        fit = {name: resize_bias(t[None], old.grid, new.grid, new.bias_resize)[0] for name, t in tables.items()}
        return positions.resize_tables({**tensors, **fit}, old.grid, new.grid, prefix=1, rule=new.position_resize)


@fills
def _initialise(model: BEiT) -> None:
    """Initialises every parameter in place, as in the authors' code.

    | parameter | initial value |
    |-|-|
    | dense layers, patch projection, class token, positions | normal, std 0.02, truncated at +-0.02 |
    | output layers of attention and MLP in block l, from 1 | the same divided by sqrt(2 l) |
    | head | the same times 0.001, bias ``head_bias`` |
    | relative bias | 0 |
    | layer norm | 1 and 0 |
    | LayerScale | ``layer_scale`` |
    | other biases | 0 |
    """
    for name, parameter in model.named_parameters():
        owner, _, last = name.rpartition(".")
        if last.startswith("gamma"):
            assert model.config.layer_scale is not None
            parameter.fill_(model.config.layer_scale)
        elif last == "relative_position_bias_table" or last.endswith("bias"):
            parameter.fill_(model.config.head_bias if name == "head.bias" else 0)
        elif parameter.ndim == 1:
            parameter.fill_(1)
        else:
            nn.init.trunc_normal_(parameter, std=0.02, a=-0.02, b=0.02)
            if owner.endswith(("attn.proj", "mlp.fc2")):
                parameter.div_(math.sqrt(2 * model._layer(name)))
            elif owner == "head":
                parameter.mul_(0.001)


# fine-tuning on ImageNet, from the authors' table
BEITS: dict[str, Config] = {
    "beit-b16": BEiTConfig(),
    "beit-l16": BEiTConfig(width=1024, depth=24, heads=16, mlp_width=4096, layer_scale=1e-5),
}
