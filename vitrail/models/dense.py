"""Necks and heads of dense tasks: maps of one width at several strides, classes for every cell of a map, and boxes.

B images, D width of a map, h x w cells, N cells of all levels, K classes. A level is a stride in pixels; with patches of 14
pixels the levels 4, 8, 16 and 32 are maps of strides 3.5, 7, 14 and 28.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.config import Config
from vitrail.models.initialise import fill_truncated
from vitrail.models.layers import Conv, GroupNorm, LayerNorm, as_tokens, by_hand

Stride = tuple[Fraction, Fraction]  # (height, width) in pixels


class ChannelNorm(LayerNorm):
    """Layer normalisation over the channels of each cell of a map."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, D, h, w) to the same."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class SharedBias(Conv):
    """A dense layer to four cells with one bias (D',) for them, which is a transposed convolution of 2 x 2 cells."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, 4 * outputs, 1)
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        """(B, D, h, w) to (B, 4 D', h, w)."""
        assert self.bias is not None
        return self.apply_kernel(input, self.weight, gelu, self.bias[:, None].expand(-1, 4).flatten())


class Upscale(nn.Module):
    """Doubles the rows and columns of a map: a transposed convolution of 2 x 2 cells, GELU, a depthwise convolution and a norm.

    The transposed convolution, whose windows do not overlap, is a dense layer to four cells. The depthwise convolution removes
    the pattern of 2 x 2 cells that it leaves. Each cell has a bias of its own, and the depthwise convolution another; without
    ``bias`` the four cells share theirs and the depthwise convolution has none, and the norm's eps is 1e-6, as in EoMT.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.expand = Conv(inputs, 4 * outputs, 1) if bias else SharedBias(inputs, outputs)
        self.depthwise = Conv(outputs, outputs, 3, padding=1, groups=outputs, bias=bias)
        self.norm = ChannelNorm(outputs, eps=1e-5 if bias else 1e-6)
        fill_truncated(self)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, h, w) to (B, D', 2 h, 2 w)."""
        return self.norm(self.depthwise(F.pixel_shuffle(self.expand(x, "exact"), 2)))


class ScaledMaps(nn.Module):
    """Maps at several strides from those of a plain network: finer ones by `Upscale`, coarser ones by max pooling.

    Each doubling of rows and columns halves the width. Of several maps each level has its own, the finest the first, as in BEiT's
    UPerNet (Bao et al. 2021) and DPT (Ranftl et al. 2021, section 3); levels beyond their number are made from the last.

    Args:
        inputs: width of the maps.
        cell: their stride (height, width) in pixels.
        levels: strides of the results in pixels, nearest to which a power of two of ``cell`` is taken.
    """

    def __init__(self, inputs: int, cell: tuple[int, int], levels: Sequence[int]) -> None:
        super().__init__()
        doublings = [round(math.log2(math.sqrt(cell[0] * cell[1]) / level)) for level in levels]
        self.strides: list[Stride] = [_divide(cell, times) for times in doublings]
        self.widths = [max(inputs >> max(times, 0), 1) for times in doublings]
        self.levels = nn.ModuleList(self._make_level(inputs, times) for times in doublings)

    @staticmethod
    def _make_level(inputs: int, doublings: int) -> nn.Module:
        if doublings < 0:
            return nn.MaxPool2d(2**-doublings, ceil_mode=True)
        widths = [max(inputs >> times, 1) for times in range(doublings + 1)]
        return nn.Sequential(*(Upscale(*pair) for pair in pairwise(widths)))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B, D, h, w), one or several, to one for each level, of the width of the level."""
        return [level(maps[min(place, len(maps) - 1)]) for place, level in enumerate(self.levels)]


class SimplePyramid(nn.Module):
    """The simple feature pyramid of ViTDet (Li et al. 2022, section 3): `ScaledMaps` brought to one width."""

    def __init__(self, inputs: int, cell: tuple[int, int], levels: Sequence[int], width: int) -> None:
        super().__init__()
        self.scaled = ScaledMaps(inputs, cell, levels)
        self.strides = self.scaled.strides
        self.smooth = nn.ModuleList(
            nn.Sequential(Conv(own, width, 1), ChannelNorm(width), Conv(width, width, 3, padding=1), ChannelNorm(width))
            for own in self.scaled.widths
        )
        fill_truncated(self.smooth)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B, D, h, w), one or several, to one of ``width`` for each level."""
        return [smooth(x) for smooth, x in zip(self.smooth, self.scaled(maps))]


class FeaturePyramid(nn.Module):
    """A feature pyramid network (Lin et al. 2017) on the stages of a pyramid: coarse maps are added to finer ones.

    Levels coarser than the last map are its maximum over squares of cells.

    Args:
        widths, cells: those of the maps, from fine to coarse, each half as large as the one before.
        levels: strides of the results in pixels, from fine to coarse.
        width: width of the results.

    Raises:
        ConfigError: a level is finer than the first map.
    """

    def __init__(
        self, widths: Sequence[int], cells: Sequence[tuple[int, int]], levels: Sequence[int], width: int
    ) -> None:
        super().__init__()
        side = math.sqrt(cells[0][0] * cells[0][1])
        places = [round(math.log2(level / side)) for level in levels]
        if min(places) < 0:
            what = f"a level of {min(levels)} pixels, and the finest map has a stride of {side:g}"
            raise ConfigError(what, f"levels = strides from {side:g} pixels")
        self.strides: list[Stride] = [_divide(cells[0], -place) for place in places]
        self.first, self.places = min(*places, len(widths) - 1), places
        self.lateral = nn.ModuleList(
            nn.Sequential(Conv(inputs, width, 1), ChannelNorm(width)) for inputs in widths[self.first :]
        )
        self.smooth = nn.ModuleList(nn.Sequential(Conv(width, width, 3, padding=1), ChannelNorm(width)) for _ in levels)
        fill_truncated(self)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B, D, h, w) of all stages to one of ``width`` for each level."""
        summed: list[Tensor] = []
        for lateral, x in zip(reversed(self.lateral), reversed(maps)):
            y = lateral(x)
            summed.insert(0, y + fit(F.interpolate(summed[0], scale_factor=2.0), y) if summed else y)
        last = len(summed) - 1
        chosen = []
        for smooth, place in zip(self.smooth, self.places):
            x, beyond = summed[min(place - self.first, last)], place - self.first - last
            chosen.append(smooth(F.max_pool2d(x, 2**beyond, ceil_mode=True) if beyond > 0 else x))
        return chosen


class StageNorms(nn.Module):
    """A norm for each map of a pyramid, whose stages differ in scale; widths and strides stay as they are."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(map(ChannelNorm, widths))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B, D, h, w) to the same, normalised."""
        return [norm(x) for norm, x in zip(self.norms, maps)]


def create_pyramid(config: Config, levels: Sequence[int], width: int) -> SimplePyramid | FeaturePyramid:
    """Returns the neck for `Backbone.dense_maps` of a network of ``config``. Raises `ConfigError` as `FeaturePyramid` does."""
    if len(config.dense_layers) == 1:
        return SimplePyramid(config.widths[-1], config.cells[-1], levels, width)
    return FeaturePyramid(config.widths, config.cells, levels, width)


def to_strides(cells: Iterable[tuple[int, int]]) -> list[Stride]:
    """Returns the strides of maps with these cells."""
    return [_divide(cell, 0) for cell in cells]


def _divide(cell: tuple[int, int], doublings: int) -> Stride:
    height, width = (Fraction(length) / Fraction(2) ** doublings for length in cell)
    return height, width


def upsample(x: Tensor, height: Fraction, width: Fraction) -> Tensor:
    """Enlarges a map (B, D, h, w) by these factors, bilinearly."""
    # in whole numbers, which an exported graph can compute from sizes that it does not know
    size = [side * by.numerator // by.denominator for side, by in zip(x.shape[2:], (height, width))]
    return F.interpolate(x, size, mode="bilinear", align_corners=False)


def fit(x: Tensor, like: Tensor) -> Tensor:
    """Cuts a map (B, D, h, w) at the bottom and right to the size of another, which may end with part of a cell."""
    return x[..., : like.shape[2], : like.shape[3]]


TOWER_GROUPS = 16
PRIOR = 0.01  # probability of every class in a cell before training (RetinaNet, Lin et al. 2017, section 4.1)
REACH = 2  # initial distance from the centre of a cell to each side of its box, in strides
STEEPEST = 6.0  # limit of the logarithm of a distance in strides, before its scale


class LastLayer(Conv):
    """A linear layer on each cell, in the type of its weights even under autocast, because bf16 has only two digits.

    It is a convolution, which an export to int8 leaves in fp32.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        """(B, D, h, w) to (B, K, h, w)."""
        with by_hand(input):
            return super().forward(input, gelu)


class LinearHead(nn.Module):
    """A linear layer on each cell of the last map, or of the last ``maps``, concatenated along channels as in the linear heads of
    DINOv2 (Oquab et al. 2023, section 7.4) and DINOv3. Their batch norm is left out; `Backbone.dense_maps` applies the last norm
    to each map, as their ``get_intermediate_layers`` does by default.
    """

    def __init__(self, width: int, classes: int, maps: int = 1) -> None:
        super().__init__()
        self.maps = maps
        self.classifier = LastLayer(width * maps, classes)
        fill_truncated(self)
        nn.init.zeros_(self.classifier.weight)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, D, h, w) to logits (B, K, h, w) of the cells of the last."""
        return self.classifier(torch.cat([*maps[-self.maps :]], 1) if self.maps > 1 else maps[-1])


class FusedHead(nn.Module):
    """The all-MLP head of SegFormer (Xie et al. 2021, section 3.2): all maps at the stride of the finest, fused by a dense layer.

    SegFormer projects each map, upsamples it, and fuses the concatenation. All three are linear, so each map is multiplied by
    the product of both matrices before it is upsampled, which costs a fraction, and the results are added. Layer norm takes
    the place of batch norm, whose statistics would depend on the size of the micro-batch.

    Args:
        widths, strides: of the maps, from fine to coarse.
        width: width of the fused map.
        classes: number of outputs.
        dropout: rate of channels before the last layer.
    """

    def __init__(
        self, widths: Sequence[int], strides: Sequence[Stride], width: int, classes: int, *, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.factors = [tuple(own / finest for own, finest in zip(stride, strides[0])) for stride in strides]
        # one bias is enough for a sum
        self.project = nn.ModuleList(Conv(inputs, width, 1, bias=not place) for place, inputs in enumerate(widths))
        self.norm = ChannelNorm(width)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = LastLayer(width, classes)
        fill_truncated(self)
        nn.init.zeros_(self.classifier.weight)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, D, h, w) to logits (B, K, h, w) of the cells of the first."""
        fused = self.project[0](maps[0])  # (B, D, h, w)
        for project, x, factors in zip(self.project[1:], maps[1:], self.factors[1:]):
            fused = fused + fit(upsample(project(x), *factors), fused)
        return self.classifier(self.dropout(self.activation(self.norm(fused))))


class BoxHead(nn.Module):
    """A box and the logits of all classes for every cell of every level, by convolutions that the levels share.

    A box is given by the distances from the centre of its cell to its sides, 2 exp(s t) strides for outputs t and a learned
    scale s for each level (FCOS, Tian et al. 2019, section 3.2). Boxes and logits are computed in fp32 at least.

    Args:
        strides: those of the maps.
        width: of the maps, a multiple of 32.
        classes: number of classes.
        coefficients: further numbers for each cell, with which a mask is made of the maps of `Prototypes`.
    """

    def __init__(self, strides: Sequence[Stride], width: int, classes: int, coefficients: int = 0) -> None:
        super().__init__()
        self.strides = [(float(height), float(across)) for height, across in strides]
        layers: list[nn.Module] = []
        for _ in range(2):
            norm = GroupNorm(width, eps=1e-5, relu=False, groups=TOWER_GROUPS)
            layers += [Conv(width, width, 3, padding=1), norm, nn.GELU()]
        self.tower = nn.Sequential(*layers)
        self.classifier = LastLayer(width, classes)
        self.distances = LastLayer(width, 4)
        self.coefficients = LastLayer(width, coefficients) if coefficients else None
        self.scales = nn.Parameter(torch.empty(len(strides)))
        fill_truncated(self)
        for layer in (self.classifier, self.distances):
            nn.init.normal_(layer.weight, std=0.01)
        assert self.classifier.bias is not None
        nn.init.constant_(self.classifier.bias, -math.log((1 - PRIOR) / PRIOR))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, D, h, w) to (B, N, 7 + K + P).

        The columns are the box (left, top, right, bottom) in pixels of the input, the centre (x, y) of the cell, its stride
        (the geometric mean of height and width), the logits of the classes, and the coefficients of a mask.
        """
        return torch.cat([self._answer(*level) for level in zip(maps, self.strides, self.scales)], 1)

    def _answer(self, x: Tensor, stride: tuple[float, float], scale: Tensor) -> Tensor:
        batch, _, rows, columns = x.shape  # not len(x), which would fix the batch of an exported graph
        x = self.tower(x)
        layers = filter(None, (self.distances, self.classifier, self.coefficients))
        reach, logits, *mask = (as_tokens(layer(x)) for layer in layers)  # (B, h w, 4, K or P)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        down = (torch.arange(rows, device=x.device, dtype=dtype) + 0.5) * stride[0]
        right = (torch.arange(columns, device=x.device, dtype=dtype) + 0.5) * stride[1]
        centres = torch.stack([right.expand(rows, -1), down[:, None].expand(-1, columns)], -1).flatten(0, 1)  # (h w, 2)
        sides = torch.tensor([stride[1], stride[0]], dtype=dtype).to(x.device, non_blocking=True)
        reach = (scale.to(dtype) * reach.to(dtype).clamp(-STEEPEST, STEEPEST)).exp() * (REACH * sides.repeat(2))
        boxes = [centres - reach[..., :2], centres + reach[..., 2:]]  # each (B, h w, 2)
        size = torch.full_like(reach[..., :1], math.sqrt(stride[0] * stride[1]))
        return torch.cat([*boxes, centres.expand(batch, -1, -1), size, *(x.to(dtype) for x in (logits, *mask))], -1)


class Prototypes(nn.Module):
    """Maps of which the mask of every object is a sum, at twice the resolution of the finest map (YOLACT, Bolya et al. 2019,
    section 3.1): two convolutions, sub-pixel upsampling, and a linear layer on each cell, in fp32 at least.
    """

    def __init__(self, width: int, prototypes: int) -> None:
        super().__init__()
        self.smooth = Conv(width, width, 3, padding=1)
        self.norm = ChannelNorm(width)
        self.expand = Conv(width, 2 * width, 1)
        self.last = LastLayer(width // 2, prototypes)
        fill_truncated(self)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, h, w) to (B, P, 2 h, 2 w)."""
        x = self.expand(F.gelu(self.norm(self.smooth(x))))
        return self.last(F.gelu(F.pixel_shuffle(x, 2)))
