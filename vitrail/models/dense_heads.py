"""Heads of dense tasks: classes for every cell of a map, and boxes.

B images, D width of a map, h x w cells, N cells of all levels, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.models.layers import Conv, by_hand
from vitrail.models.pyramid import ChannelNorm, Stride, fill_dense, fit, upsample
from vitrail.models.standardise import GroupNorm

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
    """A linear layer on each cell of the last map.

    Args:
        width: of that map.
        classes: number of outputs.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.classifier = LastLayer(width, classes)
        fill_dense(self)
        nn.init.zeros_(self.classifier.weight)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, D, h, w) to logits (B, K, h, w) of the cells of the last."""
        return self.classifier(maps[-1])


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
        fill_dense(self)
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
    """

    def __init__(self, strides: Sequence[Stride], width: int, classes: int) -> None:
        super().__init__()
        self.strides = [(float(height), float(across)) for height, across in strides]
        layers: list[nn.Module] = []
        for _ in range(2):
            norm = GroupNorm(width, eps=1e-5, relu=False, groups=TOWER_GROUPS)
            layers += [Conv(width, width, 3, padding=1), norm, nn.GELU()]
        self.tower = nn.Sequential(*layers)
        self.classifier = LastLayer(width, classes)
        self.distances = LastLayer(width, 4)
        self.scales = nn.Parameter(torch.empty(len(strides)))
        fill_dense(self)
        for layer in (self.classifier, self.distances):
            nn.init.normal_(layer.weight, std=0.01)
        assert self.classifier.bias is not None
        nn.init.constant_(self.classifier.bias, -math.log((1 - PRIOR) / PRIOR))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, D, h, w) to (B, N, 7 + K).

        The columns are the box (left, top, right, bottom) in pixels of the input, the centre (x, y) of the cell, its stride
        (the geometric mean of height and width), and the logits of the classes.
        """
        return torch.cat([self._answer(*level) for level in zip(maps, self.strides, self.scales)], 1)

    def _answer(self, x: Tensor, stride: tuple[float, float], scale: Tensor) -> Tensor:
        batch, _, rows, columns = x.shape  # not len(x), which would fix the batch of an exported graph
        x = self.tower(x)
        logits, reach = (layer(x).flatten(2).mT for layer in (self.classifier, self.distances))  # (B, h w, K or 4)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        down = (torch.arange(rows, device=x.device, dtype=dtype) + 0.5) * stride[0]
        right = (torch.arange(columns, device=x.device, dtype=dtype) + 0.5) * stride[1]
        centres = torch.stack([right.expand(rows, -1), down[:, None].expand(-1, columns)], -1).flatten(0, 1)  # (h w, 2)
        sides = torch.tensor([stride[1], stride[0]], dtype=dtype).to(x.device, non_blocking=True)
        reach = (scale.to(dtype) * reach.to(dtype).clamp(-STEEPEST, STEEPEST)).exp() * (REACH * sides.repeat(2))
        boxes = [centres - reach[..., :2], centres + reach[..., 2:]]  # each (B, h w, 2)
        size = torch.full_like(reach[..., :1], math.sqrt(stride[0] * stride[1]))
        return torch.cat([*boxes, centres.expand(batch, -1, -1), size, logits.to(dtype)], -1)
