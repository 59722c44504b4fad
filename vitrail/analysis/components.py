"""The principal components of the patches of the last feature map, over several images, as colours (Oquab et al. 2023, "DINOv2",
figure 1; Siméoni et al. 2025, "DINOv3").

B images, D channels, h x w cells of the map, K components.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.equivariance import Model
from vitrail.analysis.render import to_uint8
from vitrail.models.backbone import eval_mode

COMPONENTS = 3  # red, green, blue
SHARPNESS = 2.0  # of the sigmoid from components to colours
SMALLEST = 1e-10  # variance of a component that is not rounding error, relative to the mean square of the tokens


@dataclass(frozen=True)
class Components:
    """One fit over all images: ``maps`` (B, h, w, K) with mean 0 and variance 1, the share of the variance that each component
    explains, and the share of its own variance that lies between the means of images, (K,) each.
    """

    maps: np.ndarray
    explained: np.ndarray
    between: np.ndarray

    def pictures(self) -> np.ndarray:
        """Returns the maps as uint8 (B, h, w, 3); mid grey is the mean of all patches."""
        return to_uint8(1 / (1 + np.exp(-SHARPNESS * self.maps)))


def measure_components(model: Model, batches: Iterable[Tensor]) -> Components | None:
    """Returns the components of the last of the `dense_maps`, which are normed, on normalised images (B, C, H, W); None if
    `compute_components` has none.
    """
    with eval_mode(model):
        maps = [model.dense_maps(images)[-1].float().cpu() for images in batches]
    return compute_components(torch.cat(maps)) if maps else None


def compute_components(tokens: Tensor) -> Components | None:
    """Returns the first components of tokens (B, D, h, w); None for a single image, fewer than three channels, or equal tokens.

    The sign of the first component is such that the mean over the borders of all images is negative, of the others, and of
    maps without an inside, such that the largest |loading| is positive. The order of the images does not matter.
    """
    images = tokens.permute(0, 2, 3, 1)  # (B, h, w, D)
    if len(images) < 2 or images.shape[3] < COMPONENTS:
        return None
    mean = torch.stack([image.double().mean((0, 1)) for image in images]).mean(0)
    centred = [(image.double() - mean).flatten(0, 1) for image in images]  # B of (N, D)
    covariance = torch.stack([image.T @ image for image in centred]).sum(0) / images[..., 0].numel()
    values, vectors = (each.flip(-1) for each in torch.linalg.eigh(covariance))  # in falling order
    total, values, vectors = values.sum(), values[:COMPONENTS], vectors[:, :COMPONENTS]
    if values[-1] <= SMALLEST * (total + mean.square().sum()):
        return None
    scores = torch.stack(centred) @ (vectors / values.sqrt())  # (B, N, K)
    signs = vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()[0]
    maps = scores.unflatten(1, images.shape[1:3])
    if min(maps.shape[1:3]) > 2:
        inside = maps[:, 1:-1, 1:-1, 0].sum()
        signs[0] = inside.sign()  # the sum over all cells is zero
    between = scores.mean(1).square().mean(0)
    return Components((maps * signs).numpy(), (values / total).numpy(), between.numpy())
