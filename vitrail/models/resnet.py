"""Big Transfer's ResNet (BiT, Kolesnikov et al. 2020), the ViT paper's baseline: ResNet-v2 (He et al. 2016) with group norm
instead of batch norm, and standardised kernels.

B images, C channels, H x W pixels, h x w = N cells of a map, D its channels, M = D / 4 channels inside a bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.attention import AttentionGrid, OnAttention
from vitrail.models.backbone import Backbone, block_number
from vitrail.models.config import STANDARDISATIONS, Config
from vitrail.models.initialise import fill_lecun_normal, fills
from vitrail.models.layers import Patches, Tokens, add_branch, residual_stream, stage_drop_rates
from vitrail.models.standardise import GroupNorm, Shape, Stage, StdConv, shapes

STEM_WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(Config):
    """The fields of a BiT ResNet; the defaults are R50x1.

    Args:
        depths: number of blocks per stage; each stage except the first halves the map and doubles the width.
        width_factor: factor of all widths, the "x3" of R50x3.
        standardise: rule of kernel standardisation, one of `config.STANDARDISATIONS`.
        group_norm_eps: added to the variance in each group norm.
        drop_path: rate of the last block; increases linearly from 0 at the first. BiT uses 0.
    """

    architecture: ClassVar[str] = "bit"
    about: ClassVar[str] = "a BiT ResNet"
    attention: ClassVar[str] = "none"
    LEAST: ClassVar = {**Config.LEAST, "width_factor": 1}
    STAGES: ClassVar = ("depths",)
    POSITIVE: ClassVar = ("group_norm_eps",)
    CHOICES: ClassVar = {"standardise": tuple(STANDARDISATIONS)}

    depths: tuple[int, ...] = (3, 4, 6, 3)
    width_factor: int = 1
    standardise: str = "bit"
    group_norm_eps: float = 1e-5

    @property
    def patch_size(self) -> tuple[int, int]:
        """Stride of the stem's map."""
        return 4, 4

    @property
    def cell(self) -> tuple[int, int]:
        side = 4 * 2 ** (len(self.depths) - 1)
        return side, side

    @property
    def blocks(self) -> int:
        return sum(self.depths)

    @property
    def stem_width(self) -> int:
        return STEM_WIDTH * self.width_factor

    @property
    def width(self) -> int:
        """Width of the last map."""
        return 4 * self.stem_width * 2 ** (len(self.depths) - 1)


class Stem(nn.Module):
    """A convolution and max pooling: (B, C, H, W) to (B, D, H / 4, W / 4), rounded up.

    The pooling is padded with zeros, which are the maximum among negative numbers.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        rule = config.standardise
        self.conv = StdConv(config.in_channels, config.stem_width, 7, stride=2, padding=3, rule=rule)

    def forward(self, images: Tensor) -> Tensor:
        return F.max_pool2d(_pad_with_zeros(self.conv(images)), 3, stride=2)


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
    """Bottleneck with norms before convolutions (He et al. 2016, figure 4e), and the stride in the 3 x 3 convolution.

    If the width changes, the shortcut is a convolution of the normalised map, the input of the branch.
    """

    def __init__(self, config: ResNetConfig, shape: Shape, drop_path: float) -> None:
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
        self.conv2 = StdConv(inner, inner, 3, stride=stride, padding=1, rule=rule)
        self.norm3 = GroupNorm(inner, eps=eps)
        self.conv3 = StdConv(inner, outputs, 1, rule=rule)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, h, w) to (B, D', h / stride, w / stride), rounded up."""
        y = self.norm1(x)
        shortcut = x if self.downsample is None else residual_stream(self.downsample(y))

        def branch(_: Tensor) -> Tensor:
            return self.conv3(self.norm3(self.conv2(self.norm2(self.conv1(y)))))

        # the branch uses the normalised map instead of its argument, so it cannot run on a subset
        return add_branch(shortcut, branch, drop=self.drop_path if self.training else 0.0, skip=False)


class ResNet(Backbone):
    """BiT. Its tokens are the cells of a map: `patchify` returns those of the stem, `encode` those of the last stage."""

    config: ResNetConfig

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        self.stem = Stem(config)
        stages = zip(shapes(config.depths, config.stem_width), stage_drop_rates(config.drop_path, config.depths))
        self.stages = nn.ModuleList(
            Stage(Bottleneck(config, shape, drop) for shape, drop in zip(*stage)) for stage in stages
        )
        self.norm = GroupNorm(self.width, eps=config.group_norm_eps)
        self.head = self._make_head()
        initialise(self, config)

    @property
    def first_layer(self) -> str:
        return "stem.conv.weight"

    @property
    def patch_width(self) -> int:
        return self.config.stem_width

    def patchify(self, images: Tensor) -> Patches:
        """Applies the stem: (B, C, H, W) to the cells of its map, (B, H / 4 x W / 4, D), for images of any size."""
        self._check(images)
        x = self.stem(images)
        return Patches(x.flatten(2).mT, (x.shape[2], x.shape[3]))

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies the stages, the last norm and ReLU: (B, N, D) to the cells of the last map, (B, T, F).

        Raises `ConfigError` if ``on_attention`` is given: there is no attention.
        """
        if on_attention is not None:
            remedy = "use feature_maps(images), or choose an architecture with attention, such as vit-b16"
            raise ConfigError(f"{self.config.about} has no attention", remedy)
        self._check_subset(patches)
        x = self.norm(self._maps(patches)[-1])
        return Tokens(x.flatten(2).mT, (x.shape[2], x.shape[3]))

    def _maps(self, patches: Patches) -> list[Tensor]:
        """Yields the map after each stage: (B, D, h, w)."""
        x, maps = residual_stream(patches.x.mT.unflatten(2, patches.grid)), []
        for stage in self.stages:
            x = stage(x, self._run)
            maps.append(x)
        return maps

    def pool(self, tokens: Tokens) -> Tensor:
        """Averages all cells: (B, T, F) to (B, F)."""
        return tokens.x.mean(1)

    def feature_maps(self, images: Tensor) -> list[Tensor]:
        """Returns the map after each stage, before the last norm: (B, D, h, w)."""
        return self._maps(self.place(self.patchify(images)))

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns an empty list, because there is no attention."""
        return []

    def _layer(self, name: str) -> int:
        part, *rest = name.split(".")
        if part == "stages":
            return block_number(int(rest[0]), int(rest[2]), self.config.depths)
        return 0 if part == "stem" else -1


@fills
def initialise(model: ResNet, config: ResNetConfig) -> None:
    """Initialises every parameter with torch's default generator, as BiT in big_vision.

    | parameter | initial value |
    |-|-|
    | kernels | LeCun normal, std sqrt(1 / inputs), corrected for truncation at 2 sigma |
    | group norm | 1 and 0 |
    | head | weight 0, bias ``head_bias`` |
    """
    for name, parameter in model.named_parameters():
        if name.startswith("head"):
            parameter.fill_(config.head_bias if name.endswith("bias") else 0)
        elif parameter.ndim > 1:
            fill_lecun_normal(parameter)
        else:
            parameter.fill_(1 if name.endswith("weight") else 0)


def _bit(layers: str, width_factor: int) -> ResNetConfig:
    depths = {"r50": (3, 4, 6, 3), "r101": (3, 4, 23, 3), "r152": (3, 8, 36, 3)}
    return ResNetConfig(depths=depths[layers], width_factor=width_factor)


# models with published weights (Kolesnikov et al. 2020, section 3.1)
RESNETS: dict[str, Config] = {
    "bit-r50x1": _bit("r50", 1),
    "bit-r50x3": _bit("r50", 3),
    "bit-r101x1": _bit("r101", 1),
    "bit-r101x3": _bit("r101", 3),
    "bit-r152x2": _bit("r152", 2),
    "bit-r152x4": _bit("r152", 4),
}
