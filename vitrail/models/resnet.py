"""Big Transfer's ResNet (BiT, Kolesnikov et al. 2020), the ViT paper's baseline: ResNet-v2 (He et al. 2016) with group norm
instead of batch norm, and standardised kernels; and the AxialResNet (Wang et al. 2020), the baseline of the ViT paper's
appendix D.6: the same with axial attention instead of 3 x 3 convolutions.

The ViT paper names Wang et al. and their code, and leaves open widths, norms and initialisation of the AxialResNet. Here all
but the middle of its blocks is BiT's. Queries and keys have half the width of values, and the stride is an average of cells
after both attentions, as in the authors' code. Instead of its batch norm, queries, keys and values have BiT's group norm, and
logits are divided by sqrt(E / 2), the root of the width of queries.

B images, C channels, H x W pixels, h x w = N cells of a map, D its channels, M = D / 4 channels inside a bottleneck,
A heads, E = M / A, L lines (columns or rows) of T cells, S cells in the lines of the config's image size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.attention import (
    ALL,
    AttentionGrid,
    GroupedAttentionRecord,
    OnAttention,
    attention_weights,
    concatenate_groups,
)
from vitrail.models.axial import line_grids
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import GROUPS, STANDARDISATIONS, Config, Pair, Positive, StagedConfig, Stages, grid_of
from vitrail.models.hybrid import Shape, Stage, shapes
from vitrail.models.initialise import fill_lecun_normal, fills
from vitrail.models.layers import (
    GroupNorm,
    Patches,
    StdConv,
    Tokens,
    add_branch,
    as_map,
    as_tokens,
    by_hand,
    residual_stream,
    stage_drop_rates,
)
from vitrail.models.positions import resize

STEMS = {"paper": (7, 2), "small": (3, 1)}  # kernel and stride of the stem's convolution


@dataclass(frozen=True, kw_only=True)
class BottleneckConfig(StagedConfig):
    """The common fields of ResNets with BiT's bottlenecks; the defaults are those of R50x1.

    Args:
        depths: number of blocks per stage; each stage except the first halves the map and doubles the width.
        stem: "paper", a convolution of 7 x 7 with stride 2 and max pooling; or "small", one of 3 x 3 with stride 1 and no
            pooling, as in He et al. 2016 for images of 32 pixels (CIFAR). All maps then have 4 times as many rows and columns.
        stem_width: number of channels of the stem at ``width_factor`` 1, a multiple of 32; those of the stages are 4, 8, 16 ...
            times as many.
        width_factor: factor of all widths, the "x3" of R50x3.
        standardise: rule of kernel standardisation, one of `config.STANDARDISATIONS`.
        group_norm_eps: added to the variance in each group norm.
    """

    CHOICES: ClassVar = {"stem": tuple(STEMS), "standardise": tuple(STANDARDISATIONS)}

    depths: Stages = (3, 4, 6, 3)
    stem: str = "paper"
    stem_width: int = 64
    width_factor: int = 1
    standardise: str = "bit"
    group_norm_eps: Positive = 1e-5

    def _check_together(self) -> None:
        self._check("stem_width", self.stem_width % GROUPS == 0, f"a multiple of {GROUPS}, the groups of the norms")

    @property
    def patch_size(self) -> tuple[int, int]:
        """Stride of the stem's map."""
        return (4, 4) if self.stem == "paper" else (1, 1)

    @property
    def root_width(self) -> int:
        """Width of the stem's map."""
        return self.stem_width * self.width_factor

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(4 * self.root_width * 2**stage for stage in range(len(self.depths)))


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(BottleneckConfig):
    """The fields of a BiT ResNet, those of `BottleneckConfig`; the defaults are R50x1."""

    architecture: ClassVar[str] = "bit"
    about: ClassVar[str] = "a BiT ResNet"
    attention: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class AxialResNetConfig(BottleneckConfig):
    """The fields of an AxialResNet, those of `BottleneckConfig` and the heads; the defaults are AxialResNet-50.

    Args:
        heads: number of heads in all attention; 8 in Wang et al.
    """

    architecture: ClassVar[str] = "axial-resnet"
    about: ClassVar[str] = "an AxialResNet"
    attention: ClassVar[str] = "N (h + w)"

    heads: int = 8

    def _check_together(self) -> None:
        super()._check_together()
        what = f"a divisor of {self.root_width // 2}, the width of the narrowest queries"
        self._check("heads", self.root_width // 2 % self.heads == 0, what)

    def map_cell(self, stage: int, block: int) -> tuple[int, int]:
        """Returns the size (height, width) in pixels of a cell of the map on which a block attends.

        The first block of a stage attends on the map of the previous stage, before its stride.
        """
        return self.cells[stage - (stage > 0 and block == 0)]


def width_fields(width: int) -> dict[str, Any]:
    """Returns the fields of a config whose stem has ``width`` channels: the factor of published models, if it is one."""
    factor, rest = divmod(width, BottleneckConfig.stem_width)
    return {"stem_width": width} if rest else {"width_factor": factor}


class Stem(nn.Module):
    """A convolution and max pooling: (B, C, H, W) to (B, D, H / 4, W / 4), rounded up; or, if "small", a convolution alone, to
    (B, D, H, W).

    The pooling is padded with zeros, which are the maximum among negative numbers.
    """

    def __init__(self, config: BottleneckConfig) -> None:
        super().__init__()
        self.pools = config.stem == "paper"
        (kernel, stride), rule = STEMS[config.stem], config.standardise
        widths = config.in_channels, config.root_width
        self.conv = StdConv(*widths, kernel, stride=stride, padding=kernel // 2, rule=rule)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        return F.max_pool2d(_pad_with_zeros(x), 3, stride=2) if self.pools else x


def _pad_with_zeros(x: Tensor) -> Tensor:
    """Pads with zeros on all sides: (B, D, h, w) to (B, D, h + 2, w + 2)."""
    if not torch.compiler.is_exporting():
        return F.pad(x, (1, 1, 1, 1))
    # onnxruntime's Pad_Fusion would replace zero padding by the padding of max pooling, which is minus infinity
    for axis in (2, 3):
        zeros = torch.zeros_like(x.narrow(axis, 0, 1))
        x = torch.cat([zeros, x, zeros], axis)
    return x


class Bottleneck(nn.Module):
    """Bottleneck with norms before convolutions (He et al. 2016, figure 4e). The middle is BiT's 3 x 3 convolution, or attention.

    If the width changes, the shortcut is a convolution of the normalised map, the input of the branch.
    """

    def __init__(self, config: BottleneckConfig, shape: Shape, drop_path: float, attn: nn.Module | None) -> None:
        super().__init__()
        (inputs, outputs, stride), rule, eps = shape, config.standardise, config.group_norm_eps
        inner = outputs // 4
        self.drop_path = drop_path
        self.downsample = None
        if inputs != outputs:
            self.downsample = nn.Sequential()
            self.downsample.add_module("conv", StdConv(inputs, outputs, 1, stride=stride, rule=rule))
        self.norm1 = GroupNorm(inputs, eps=eps)
        self.conv1 = StdConv(inputs, inner, 1, rule=rule)
        self.norm2 = GroupNorm(inner, eps=eps)
        if attn is None:
            self.conv2 = StdConv(inner, inner, 3, stride=stride, padding=1, rule=rule)
        self.attn = attn
        self.norm3 = GroupNorm(inner, eps=eps)
        self.conv3 = StdConv(inner, outputs, 1, rule=rule)

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, D, h, w) to (B, D', h / stride, w / stride), rounded up."""
        y = self.norm1(x)
        shortcut = x if self.downsample is None else residual_stream(self.downsample(y))

        middle = self.conv2 if self.attn is None else partial(self.attn, on_attention=on_attention)

        def branch(_: Tensor) -> Tensor:
            return self.conv3(self.norm3(middle(self.norm2(self.conv1(y)))))

        # the branch uses the normalised map instead of its argument, so it cannot run on a subset
        return add_branch(shortcut, branch, drop=self.drop_path if self.training else 0.0, skip=False)


class Positions(NamedTuple):
    """Relative positions of one axis for lines of T cells, shared by all heads: the vectors of queries r^q and of keys r^k,
    (T, T, E / 2) each, and of values r^v, (T, T, E), by the place of the query, then that of the key.
    """

    of_queries: Tensor
    of_keys: Tensor
    of_values: Tensor

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns the scaled relative logits q_o r^q_{p - o} + k_p r^k_{p - o}: (B, L, A, T, T)."""
        logits = torch.einsum("blaoe,ope->blaop", q, self.of_queries)
        logits = logits + torch.einsum("blape,ope->blaop", k, self.of_keys)
        return logits * q.shape[-1] ** -0.5

    def values(self, weights: Tensor) -> Tensor:
        """Returns the sum of r^v_{p - o} weighted by attention: (B, L, A, T, T) to (B, L, A, T, E)."""
        return torch.einsum("blaop,ope->blaoe", weights, self.of_values)


class LineRecord(GroupedAttentionRecord):
    """Position-sensitive attention of all lines, whose output also has positions of values."""

    def __init__(
        self, split: Callable[[], tuple[Tensor, Tensor, Tensor]], output: Tensor, positions: Callable[[], Positions]
    ) -> None:
        super().__init__(split, output)
        self.positions = positions

    def weights(self, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        q, k, _ = (part[:, groups] for part in self.parts)
        with by_hand(q):
            bias = self.positions().bias(q, k)
        return concatenate_groups(attention_weights(q, k, bias))[:, :, inside]

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        of_output = of_output.float()[:, groups]
        with by_hand(of_output):
            gradient = of_output @ self.parts[2][:, groups].mT
            gradient = gradient + torch.einsum("blaoe,ope->blaop", of_output, self.positions().of_values)
        return concatenate_groups(gradient)[:, :, inside]


class LineAttention(nn.Module):
    """Position-sensitive self-attention along one axis (Wang et al. 2020, equation 4), without an output layer.

    Args:
        width: M.
        span: S, the length of the lines for the config's image size.
        axis: 2 for columns, 3 for rows of a map (B, M, h, w).
    """

    def __init__(self, config: AxialResNetConfig, width: int, span: int, axis: int) -> None:
        super().__init__()
        self.heads, self.axis = config.heads, axis
        self.qkv = StdConv(width, 2 * width, 1, rule=config.standardise)
        self.norm = GroupNorm(2 * width, eps=config.group_norm_eps, relu=False)
        self.relative = nn.Parameter(torch.empty(2 * span - 1, 2 * width // config.heads))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, M, h, w) to q and k, (B, L, A, T, E / 2) each, and v, (B, L, A, T, E)."""
        qkv = self.norm(self.qkv(x)).unflatten(1, (self.heads, -1))  # (B, A, 2 E, h, w)
        across = 5 - self.axis  # the axis along which lines are counted
        lines = qkv.permute(0, across + 1, 1, self.axis + 1, 2)  # (B, L, A, T, 2 E)
        q, k, v = _split_channels(lines)
        return q, k, v

    def positions(self, length: int, dtype: torch.dtype) -> Positions:
        """Returns the relative positions of lines of T = ``length`` cells: the vector of offset p - o is row p - o + T - 1."""
        table = resize(self.relative[None], (1, len(self.relative)), (1, 2 * length - 1), "paper")[0].to(dtype)
        places = torch.arange(length, device=table.device)
        return Positions(*_split_channels(table[places - places[:, None] + length - 1]))

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, M, h, w) to (B, M, h, w)."""
        q, k, v = self.split(x)
        length = x.shape[self.axis]
        positions = self.positions(length, q.dtype)
        weights = attention_weights(q, k, positions.bias(q, k))
        output = weights @ v + positions.values(weights)  # (B, L, A, T, E)
        if on_attention is not None:
            on_attention(LineRecord(partial(self.split, x), output, partial(self.positions, length, torch.float32)))
        columns_or_rows = (0, 2, 4, 3, 1) if self.axis == 2 else (0, 2, 4, 1, 3)
        return output.permute(columns_or_rows).flatten(1, 2)


def _split_channels(x: Tensor) -> tuple[Tensor, ...]:
    """Splits (..., 2 E) into the parts of queries and keys, (..., E / 2) each, and values, (..., E)."""
    width = x.shape[-1] // 4
    return x.split([width, width, 2 * width], -1)


class AxialAttention(nn.Module):
    """Attention along columns, then along rows of a map of width M, and an average of stride x stride cells.

    Args:
        grid: rows and columns of the map for the config's image size.
    """

    def __init__(self, config: AxialResNetConfig, shape: Shape, grid: Pair) -> None:
        super().__init__()
        self.column = LineAttention(config, shape.outputs // 4, grid[0], 2)
        self.row = LineAttention(config, shape.outputs // 4, grid[1], 3)
        self.stride = shape.stride

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, M, h, w) to (B, M, h / stride, w / stride), rounded up."""
        x = self.row(self.column(x, on_attention), on_attention)
        # squares at the border of an odd map are averaged over the cells that they have
        return x if self.stride == 1 else F.avg_pool2d(x, self.stride, ceil_mode=True)


class BottleneckNet(Backbone):
    """Stem, stages of bottlenecks, norm and head. Its tokens are the cells of a map: `patchify` returns those of the stem,
    `encode` those of the last stage.
    """

    def __init__(self, config: BottleneckConfig) -> None:
        super().__init__(config)
        self.stem = Stem(config)
        stages = zip(shapes(config.depths, config.root_width), stage_drop_rates(config.drop_path, config.depths))
        self.stages = nn.ModuleList(
            Stage(
                Bottleneck(config, shape, drop, self._make_attention(number, block, shape))
                for block, (shape, drop) in enumerate(zip(*stage))
            )
            for number, stage in enumerate(stages)
        )
        self.norm = GroupNorm(self.width, eps=config.group_norm_eps)
        self.head = self._make_head()
        initialise(self, config)

    def _make_attention(self, stage: int, block: int, shape: Shape) -> nn.Module | None:
        """Returns the attention of a block; None for a convolution in its place."""
        return None

    @property
    def first_layer(self) -> str:
        return "stem.conv.weight"

    @property
    def patch_width(self) -> int:
        return self.config.root_width

    def patchify(self, images: Tensor) -> Patches:
        """Applies the stem: (B, C, H, W) to the cells of its map, (B, N, D), for images of any size."""
        self._check(images)
        x = self.stem(images)
        return Patches(as_tokens(x), (x.shape[2], x.shape[3]))

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies the stages, the last norm and ReLU: (B, N, D) to the cells of the last map, (B, T, F).

        Raises `ConfigError` if ``on_attention`` is given and there is no attention.
        """
        if on_attention is not None and self.config.attention == "none":
            remedy = "use feature_maps(images), or choose an architecture with attention, such as vit-b16"
            raise ConfigError(f"{self.config.about} has no attention", remedy)
        x, grid = last(self._outputs(patches, on_attention))
        return Tokens(as_tokens(self.norm(as_map(x, grid))), grid)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Pair]]:
        self._check_subset(patches)
        x = residual_stream(as_map(patches.x, patches.grid))  # (B, D, h, w)
        for stage in self.stages:
            x = stage(x, partial(self._run, on_attention=on_attention))
            yield as_tokens(x), (x.shape[2], x.shape[3])

    def _norm_map(self, x: Tensor) -> Tensor:
        return self.norm(x) if x.shape[1] == self.width else x


class ResNet(BottleneckNet):
    """BiT."""

    config: ResNetConfig

    def attention_grids(self, size: Pair) -> list[AttentionGrid]:
        """Returns an empty list, because there is no attention."""
        return []


class AxialResNet(BottleneckNet):
    """A ResNet with axial attention. Each block has one skip connection around its two attentions."""

    config: AxialResNetConfig

    def __init__(self, config: AxialResNetConfig) -> None:
        super().__init__(config)
        fill_positions(self)

    def _make_attention(self, stage: int, block: int, shape: Shape) -> nn.Module:
        grid = grid_of(self.config.image_size, self.config.map_cell(stage, block))
        return AxialAttention(self.config, shape, grid)

    def attention_grids(self, size: Pair) -> list[AttentionGrid]:
        """Returns the grids of the two matrices of each block: (B, A, N, h), cells in column-major order and those of their
        column; (B, A, N, w), cells in row-major order and those of their row.
        """
        grids = []
        for stage, depth in enumerate(self.config.depths):
            for block in range(depth):
                cell = self.config.map_cell(stage, block)
                of_row, of_column = line_grids(grid_of(size, cell), cell)
                grids += [of_column, of_row]
        return grids

    @classmethod
    def resize_tensors(
        cls, tensors: Mapping[str, Tensor], old: AxialResNetConfig, new: AxialResNetConfig
    ) -> dict[str, Tensor]:
        """Resizes position tables linearly, so that the first and last offset of the longest line keep their vectors."""
        with torch.device("meta"):
            shapes = {name: tensor.shape for name, tensor in cls(new).state_dict().items()}

        tables = {name: table for name, table in tensors.items() if name.endswith(".relative")}
        fit = {name: resize(t[None], (1, len(t)), (1, shapes[name][0]), "paper")[0] for name, t in tables.items()}
        return {**tensors, **fit}


@fills
def initialise(model: nn.Module, config: BottleneckConfig) -> None:
    """Initialises every parameter as BiT in big_vision: kernels LeCun normal, group norm 1 and 0, head 0 and ``head_bias``."""
    for name, parameter in model.named_parameters():
        if name.startswith("head"):
            parameter.fill_(config.head_bias if name.endswith("bias") else 0)
        elif parameter.ndim > 1:
            fill_lecun_normal(parameter)
        else:
            parameter.fill_(1 if name.endswith("weight") else 0)


@fills
def fill_positions(model: AxialResNet) -> None:
    """Initialises position tables as in Wang et al.: normal, std sqrt(1 / E)."""
    for name, parameter in model.named_parameters():
        if name.endswith(".relative"):
            parameter.normal_(std=(2 / parameter.shape[1]) ** 0.5)


def _bit(layers: str, width_factor: int) -> ResNetConfig:
    depths = {"r50": (3, 4, 6, 3), "r101": (3, 4, 23, 3), "r152": (3, 8, 36, 3), "r200": (3, 24, 36, 3)}
    return ResNetConfig(depths=depths[layers], width_factor=width_factor)


# Kolesnikov et al. 2020, section 3.1; and R50x2, R152x1 and R200x3, which are the ViT paper's (table 6), with the blocks of
# the ResNet-200 of He et al. 2016
RESNETS: dict[str, Config] = {
    "bit-r50x1": _bit("r50", 1),
    "bit-r50x2": _bit("r50", 2),
    "bit-r50x3": _bit("r50", 3),
    "bit-r101x1": _bit("r101", 1),
    "bit-r101x3": _bit("r101", 3),
    "bit-r152x1": _bit("r152", 1),
    "bit-r152x2": _bit("r152", 2),
    "bit-r152x4": _bit("r152", 4),
    "bit-r200x3": _bit("r200", 3),
}
# the depths of the ResNet-50 of the ViT paper, and of the smallest model of the authors' code, at the widths of R50x1
AXIAL_RESNETS: dict[str, Config] = {
    "axial-resnet26": AxialResNetConfig(depths=(1, 2, 4, 1)),
    "axial-resnet50": AxialResNetConfig(),
}
