"""Measures the locality of feature maps, which convolutions have by construction and a ViT learns (Dosovitskiy et al. 2021,
section 3.1, "Inductive bias").

B images, C channels, H x W pixels, h x w cells of a map, D its channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.analysis.equivariance import Model, Pair, check_images
from vitrail.models.backbone import eval_mode

AT_ONCE = 4  # images per pass; small, as gradients need all activations


class Locality(NamedTuple):
    """The mean distance of the pixels that a cell of a feature map depends on, in pixels, averaged over images: from the centre
    of the cell, and from their weighted mean position. Strided convolutions of odd size are centred on the first pixel of a cell,
    so in a deep pyramid ``distance`` includes an offset of half a stride, ``spread`` does not.
    """

    stride: Pair  # from one cell of the map to the next
    distance: float | None  # None, as the spread, if the cell depends on no pixel of any image
    spread: float | None
    uniform: float  # the distance if the cell depended equally on all pixels


def measure_locality(model: Model, images: Tensor) -> list[Locality]:
    """Measures the effective receptive field of the central cell of each of the `feature_maps` (Luo et al. 2016, section 2): the
    mean distance of the pixels it depends on, weighted by the squared gradient.

    The gradient is that of a random linear combination of the channels of the cell, with normally distributed factors for
    each image and map. Its expected square is the sum of the squared gradients of all channels.
    """
    generator, (height, width) = torch.Generator().manual_seed(0), check_images(images).shape[2:]
    measured, strides, uniforms = [], model.config.cells, []
    with eval_mode(model, gradients=True) as device:
        for part in images.split(AT_ONCE):
            pixels = part.detach().to(device, copy=True).requires_grad_()
            maps = model.feature_maps(pixels)
            centres = [_find_centre(map_, stride) for map_, stride in zip(maps, strides)]
            uniforms = [_compute_distance(torch.ones(1, height, width), centre).item() for centre in centres]
            weights = (_compute_dependence(map_, pixels, generator) for map_ in maps)
            measured.append(
                torch.stack([_compute_distances(map_weights, centre) for map_weights, centre in zip(weights, centres)])
            )
    means = torch.cat(measured, 1).nanmean(1)  # (maps, 2), ignoring images on which a cell does not depend
    distances, spreads = ([None if math.isnan(mean) else mean for mean in column.tolist()] for column in means.T)
    return [Locality(*figures) for figures in zip(strides, distances, spreads, uniforms)]


def _find_centre(map_: Tensor, stride: Pair) -> Tensor:
    """Returns the centre of the central cell of a map, as (down, right) in pixels of the image: (1, 2)."""
    places = [(side // 2 + 0.5) * pixels for side, pixels in zip(map_.shape[2:], stride)]
    return torch.tensor([places], dtype=torch.float64)


def _compute_dependence(map_: Tensor, pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the squared gradient of the central cell with respect to each pixel: (B, H, W)."""
    cell = map_[:, :, map_.shape[2] // 2, map_.shape[3] // 2]  # (B, D)
    factors = torch.randn(cell.shape, generator=generator).to(cell)
    (gradient,) = torch.autograd.grad((cell * factors).sum(), pixels, retain_graph=True)
    return gradient.cpu().double().square().sum(1)


def _compute_distances(weights: Tensor, centre: Tensor) -> Tensor:
    """Returns the mean distances from ``centre`` and from the weighted mean position: (B, 2), NaN for weights of zero."""
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in weights.shape[1:])
    own = torch.stack([weights.sum(2) @ rows, weights.sum(1) @ columns], 1) / weights.sum((1, 2))[:, None]
    return torch.stack([_compute_distance(weights, centre), _compute_distance(weights, own)], 1)


def _compute_distance(weights: Tensor, centres: Tensor) -> Tensor:
    """Returns the mean distance of pixels with weights (B, H, W) from centres (1, 2) or (B, 2): (B,)."""
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in weights.shape[1:])
    far = torch.hypot(rows[:, None] - centres[:, 0, None, None], columns - centres[:, 1, None, None])
    return (weights * far).sum((1, 2)) / weights.sum((1, 2))
