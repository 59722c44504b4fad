"""The Pyramid Vision Transformer (Wang et al. 2021, "A Versatile Backbone for Dense Prediction without Convolutions").

B images, C channels, H x W pixels, h x w = N cells of a stage's map, T tokens, D width of a stage, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.models import positions
from vitrail.models.backbone import Backbone, block_number, first_token
from vitrail.models.config import Config, check_divides
from vitrail.models.initialise import fill_truncated, fill_uniform, fills
from vitrail.models.layers import (
    LayerNorm,
    Mlp,
    PatchEmbed,
    Patches,
    ResidualBlock,
    Tokens,
    residual_stream,
    stage_drop_rates,
    whole_patches,
)
from vitrail.models.recording import AttentionGrid, OnAttention
from vitrail.models.spatial_reduction import Grid, PyramidConfig, SpatialReductionAttention, as_map


@dataclass(frozen=True, kw_only=True)
class PVTConfig(PyramidConfig):
    """The fields of a PVT in addition to those of `PyramidConfig`; the defaults are PVT-Tiny.

    Args:
        position_resize: interpolation of tables for other image sizes; one of `positions.RESIZES`.
        pad: pad images and maps to whole patches in every stage, with zeros at the bottom and on the right.
    """

    architecture: ClassVar[str] = "pvt"
    about: ClassVar[str] = "a PVT"
    CHOICES: ClassVar = {**PyramidConfig.CHOICES, "position_resize": tuple(positions.RESIZES)}

    position_resize: str = "bilinear"
    pad: bool = False

    def _check_together(self) -> None:
        super()._check_together()
        remedy = "1 in the last stage, where the class token is not part of the map"
        self._check("reductions", self.reductions[-1] == 1, remedy)
        self.check_size(self.image_size)

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("cls",)

    def prefixes(self, stage: int) -> int:
        """Returns the number of tokens without a cell in stage 0, 1, ..."""
        return len(self.prefix) if stage == len(self.depths) - 1 else 0

    def check_size(self, size: Sequence[int]) -> None:
        """Raises `ConfigError` for an image size (height, width) that is invalid in some stage."""
        if not self.pad:
            check_divides(size, [length * 2 ** (len(self.depths) - 1) for length in self.patch_size])
        self.check_reduces(size)


class StageEmbed(PatchEmbed):
    """Linear projection of the patches of a map, followed by a norm (section 3.2)."""

    def __init__(self, config: PVTConfig, stage: int) -> None:
        before = config.widths[stage - 1] if stage else config.in_channels
        size = (2, 2) if stage else config.patch_size
        super().__init__(before, config.widths[stage], size)
        self.size = size
        self.norm = LayerNorm(config.widths[stage], eps=config.conv_norm_eps)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h P, w Q) to (B, h w, D)."""
        return self.norm(super().forward(images))

    def cut(self, images: Tensor, *, pad: bool) -> Patches:
        """Embeds images of any size that is divisible into patches or padded."""
        images = whole_patches(images, self.size, pad=pad)
        return Patches(self(images), (images.shape[2] // self.size[0], images.shape[3] // self.size[1]))


class Block(ResidualBlock):
    """x' = SRA(LN(x)) + x, then MLP(LN(x')) + x' (section 3.3)."""

    def __init__(self, config: PVTConfig, stage: int, drop_path: float) -> None:
        super().__init__()
        width = config.widths[stage]
        hidden = width * config.mlp_ratios[stage]
        self.drop_path = drop_path
        self.norm1 = LayerNorm(width, eps=config.norm_eps)
        self.attn = SpatialReductionAttention(config, stage)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, hidden, gelu=config.gelu, dropout=config.dropout)

    def forward(self, x: Tensor, grid: Grid, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D)."""

        def attention(x: Tensor) -> Tensor:
            return self.dropout(self.attn(self.norm1(x), grid, on_attention))

        return self.add_branches(x, attention, lambda x: self.mlp(self.norm2(x)), whole=on_attention is not None)


class Stage(nn.Module):
    """The parameters of one stage; the patch embedding of the first is that of the model."""

    def __init__(self, config: PVTConfig, stage: int, drops: list[float]) -> None:
        super().__init__()
        rows, columns = config.grids(config.image_size)[stage]
        self.downsample = StageEmbed(config, stage) if stage else None
        self.pos_embed = nn.Parameter(torch.empty(1, config.prefixes(stage) + rows * columns, config.widths[stage]))
        self.blocks = nn.ModuleList(Block(config, stage, drop) for drop in drops)


class PVT(Backbone):
    """PVT: four stages, each of which halves the map. The class token is added in the last stage."""

    config: PVTConfig
    stages: Any  # each a Stage

    def __init__(self, config: PVTConfig) -> None:
        super().__init__(config)
        self.patch_embed = StageEmbed(config, 0)
        rates = enumerate(stage_drop_rates(config.drop_path, config.depths))
        self.stages = nn.ModuleList(Stage(config, stage, drops) for stage, drops in rates)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.width))
        self.dropout = nn.Dropout(config.dropout)
        self.norm = LayerNorm(self.width, eps=config.norm_eps)
        self.head = self._make_head()
        initialise(self, config)

    @property
    def width(self) -> int:
        return self.config.widths[-1]

    @property
    def patch_width(self) -> int:
        return self.config.widths[0]

    def patchify(self, images: Tensor) -> Patches:
        """Projects and normalises the patches of stage 1: (B, C, H, W) to (B, N, D)."""
        self._check(images)
        self.config.check_size(images.shape[2:])
        return self.patch_embed.cut(images, pad=self.config.pad)

    def _add_positions(self, patches: Patches) -> Patches:
        """Adds the positions of stage 1; those of later stages are added in `encode`."""
        return patches._replace(x=patches.x + self._positions(0, patches.grid)[1].to(patches.x))

    def _positions(self, stage: int, grid: Grid) -> tuple[Tensor, Tensor]:
        """Returns the positions of the class token, (1, 1, D) or empty before the last stage, and of the map, (1, N, D)."""
        config, table = self.config, self.stages[stage].pos_embed
        prefix, old = config.prefixes(stage), config.grids(config.image_size)[stage]
        return table[:, :prefix], positions.resize(table[:, prefix:], old, grid, config.position_resize)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies all stages and the last norm: (B, N, D) of stage 1 to (B, 1 + N, D) of the last."""
        x, grid = self._stages(patches, on_attention)[-1]
        return Tokens(self.norm(x), grid)

    def _stages(self, patches: Patches, on_attention: OnAttention | None = None) -> list[tuple[Tensor, Grid]]:
        """Yields the tokens after each stage and the grid of its map."""
        self._check_subset(patches)
        x, grid, _ = patches
        passed: list[tuple[Tensor, Grid]] = []
        for number, stage in enumerate(self.stages):
            if number:
                x, grid, _ = stage.downsample.cut(as_map(x, grid), pad=self.config.pad)
                x = x + self._positions(number, grid)[1].to(x)
            if self.config.prefixes(number):
                token = (self.cls_token + self._positions(number, grid)[0]).to(x)
                x = torch.cat([token.expand(x.shape[0], -1, -1), x], 1)
            x = self.dropout(residual_stream(x))
            for block in stage.blocks:
                x = self._run(block, x, grid, on_attention=on_attention)
            passed.append((x, grid))
        return passed

    def pool(self, tokens: Tokens) -> Tensor:
        """Returns the class token: (B, T, D) to (B, D)."""
        return tokens.x[:, 0]

    def pooling_shares(self, tokens: int) -> Tensor:
        return first_token(tokens)

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        return {"cls": self.head(features)}

    def feature_maps(self, images: Tensor, on_attention: OnAttention | None = None) -> list[Tensor]:
        """Returns the map of each stage, before the last norm and without the class token: (B, D, h, w)."""
        passed = self._stages(self.place(self.patchify(images)), on_attention)
        return [as_map(x[:, x.shape[1] - grid[0] * grid[1] :], grid) for x, grid in passed]

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grid of each matrix of `forward_with_attention` for images of ``size`` (height, width).

        With reduction R, the key (r, c) covers the R x R cells of the map from row R r and column R c.
        """
        return [
            block.attn.attention_grid(grid, cell)._replace(prefix=self.config.prefixes(number))
            for number, (grid, cell) in enumerate(zip(self.config.grids(size), self.config.cells))
            for block in self.stages[number].blocks
        ]

    def _layer(self, name: str) -> int:
        if name.startswith(("norm.", "head.")):
            return -1
        if name.startswith("patch_embed.") or name == "stages.0.pos_embed":
            return 0
        if name == "cls_token":
            return block_number(len(self.stages) - 1, 0, self.config.depths)
        _, stage, part, *rest = name.split(".")
        return block_number(int(stage), int(rest[0]) if part == "blocks" else 0, self.config.depths)

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: PVTConfig, new: PVTConfig) -> dict[str, Tensor]:
        resized = dict(tensors)
        for stage, grids in enumerate(zip(old.grids(old.image_size), new.grids(new.image_size))):
            name = f"stages.{stage}.pos_embed"
            prefix, table = new.prefixes(stage), {"pos_embed": tensors[name]}
            resized[name] = positions.resize_tables(table, *grids, prefix=prefix, rule=new.position_resize)["pos_embed"]
        return resized


@fills
def initialise(model: nn.Module, config: PVTConfig) -> None:
    """Initialises every parameter in place with torch's default generator, as in the authors' code.

    | parameter | initial value |
    |-|-|
    | dense layers, head | normal, std 0.02; biases 0, ``head_bias`` for the head |
    | patch projections, reductions | weight and bias uniform, +-sqrt(1 / inputs) |
    | class token, positions | normal, std 0.02 |
    | layer norm | 1 and 0 |
    """
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        if owner.endswith(("patch_embed.proj", "downsample.proj", "attn.sr")):
            fill_uniform(model, name, parameter)
        else:
            fill_truncated(name, parameter, config.head_bias)


def _pvt(*depths: int) -> PVTConfig:
    return PVTConfig(depths=depths)


# Table 1 of the paper; the depths of Large are those in the authors' code
PVTS: dict[str, Config] = {
    "pvt-tiny": _pvt(2, 2, 2, 2),
    "pvt-small": _pvt(3, 4, 6, 3),
    "pvt-medium": _pvt(3, 4, 18, 3),
    "pvt-large": _pvt(3, 8, 27, 3),
}
