"""The configs of BiT's ResNets and of AxialResNets, and the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vitrail.models.config import GROUPS, STANDARDISATIONS, Config, stage_cells

STEMS = {"paper": (7, 2), "small": (3, 1)}  # kernel and stride of the stem's convolution


@dataclass(frozen=True, kw_only=True)
class BottleneckConfig(Config):
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
        drop_path: rate of the last block; increases linearly from 0 at the first. BiT uses 0.
    """

    LEAST: ClassVar = {**Config.LEAST, "stem_width": 1, "width_factor": 1}
    STAGES: ClassVar = ("depths",)
    POSITIVE: ClassVar = ("group_norm_eps",)
    CHOICES: ClassVar = {"stem": tuple(STEMS), "standardise": tuple(STANDARDISATIONS)}

    depths: tuple[int, ...] = (3, 4, 6, 3)
    stem: str = "paper"
    stem_width: int = 64
    width_factor: int = 1
    standardise: str = "bit"
    group_norm_eps: float = 1e-5

    def _check_together(self) -> None:
        self._check("stem_width", self.stem_width % GROUPS == 0, f"a multiple of {GROUPS}, the groups of the norms")

    @property
    def patch_size(self) -> tuple[int, int]:
        """Stride of the stem's map."""
        return (4, 4) if self.stem == "paper" else (1, 1)

    @property
    def cells(self) -> list[tuple[int, int]]:
        return stage_cells(self.patch_size, len(self.depths))

    @property
    def blocks(self) -> int:
        return sum(self.depths)

    @property
    def root_width(self) -> int:
        """Width of the stem's map."""
        return self.stem_width * self.width_factor

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(4 * self.root_width * 2**stage for stage in range(len(self.depths)))

    @property
    def width(self) -> int:
        """Width of the last map."""
        return self.widths[-1]


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
    LEAST: ClassVar = {**BottleneckConfig.LEAST, "heads": 1}

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
