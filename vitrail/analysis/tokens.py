"""Norms of the patches after each block, and the outliers among them, which attention uses as registers (Darcet et al. 2024,
"Vision Transformers Need Registers").

The norms are those of the blocks' raw output: the last norm hides the outliers.

B images, h x w = N cells of a map, D channels, M hidden neurons of an MLP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.analysis.equivariance import Model
from vitrail.models.backbone import eval_mode

OUTLIER, NEAR = 3.0, 2.0  # times the median: norms above are outliers, norms between the two are near them
RARE = (0.001, 0.1)  # share of the patches that outliers may be
GAP = 0.1  # of the number of outliers, below which that of the norms near them must stay
LEAST = 10  # outliers, the fewest of which `GAP` is a patch
STANDS_OUT = 5.0  # times the next neuron


@dataclass(frozen=True)
class MapNorms:
    """The norms of the patches of one feature map, (B, h, w). They are compared within the map only."""

    norms: np.ndarray

    @cached_property
    def ratios(self) -> np.ndarray:
        """The norms relative to their median, (B, h, w); zeros if that is zero."""
        return np.divide(self.norms, self.median, out=np.zeros_like(self.norms), where=self.median > 0)

    @cached_property
    def median(self) -> float:
        return float(np.median(self.norms))

    @property
    def high(self) -> float:
        """The 98th percentile."""
        return float(np.quantile(self.norms, 0.98))

    @property
    def largest(self) -> float:
        return float(self.norms.max())

    @property
    def outliers(self) -> float:
        """Share of the patches whose norm is more than `OUTLIER` times the median."""
        return float((self.ratios > OUTLIER).mean())

    @property
    def near(self) -> float:
        """Share of the patches whose norm is from `NEAR` to `OUTLIER` times the median."""
        return float(((self.ratios > NEAR) & (self.ratios <= OUTLIER)).mean())

    @property
    def places(self) -> np.ndarray:
        """Share of the images with an outlier in each cell, (h, w)."""
        return (self.ratios > OUTLIER).mean(0)

    @property
    def is_bimodal(self) -> bool:
        """Whether a few patches have norms of their own, far from those of all others."""
        is_rare = RARE[0] <= self.outliers <= RARE[1] and self.outliers * self.norms.size >= LEAST
        return is_rare and self.near < GAP * self.outliers


class Neuron(NamedTuple):
    """The hidden neuron of the MLP of a block that makes the outliers, with its mean |activation|."""

    index: int
    at_outliers: float
    elsewhere: float
    next_at_outliers: float  # of the neuron with the second largest value


def measure_norms(model: Model, batches: Iterable[Tensor]) -> list[MapNorms]:
    """Measures the norms of the patches of each of the `feature_maps`, on normalised images (B, C, H, W) of one size; none
    without images.
    """
    parts: list[list[np.ndarray]] = []
    with eval_mode(model):
        for images in batches:
            maps = model.feature_maps(images)
            parts.append([map_.float().norm(dim=1).cpu().numpy() for map_ in maps])
    return [MapNorms(np.concatenate(norms)) for norms in zip(*parts)]


def find_onset(maps: Sequence[MapNorms]) -> int | None:
    """Returns the index of the first bimodal map, or None."""
    return next((index for index, map_ in enumerate(maps) if map_.is_bimodal), None)


def find_neuron(model: Model, images: Tensor, block: int) -> Neuron | None:
    """Returns the hidden neuron of the MLP of a ``block`` that has by far the largest mean |activation| at the outliers of the
    block's output (Jiang et al. 2025, "Vision Transformers Don't Need Trained Registers"); None if none stands out, or if
    the model has no such block.
    """
    if (means := measure_neurons(model, images, block)) is None:
        return None
    at, elsewhere = means[:, block]  # (M,) each
    (first, second_largest), (index, _) = (each.tolist() for each in at.topk(2))
    found = Neuron(index, first, elsewhere[index].item(), second_largest)
    return found if first > STANDS_OUT * max(second_largest, found.elsewhere) else None


def measure_neurons(model: Model, images: Tensor, block: int, median: float | None = None) -> Tensor | None:
    """Returns the mean |activation| of the hidden neurons of the MLPs of the first L blocks, up to ``block``, at the outliers of
    its output and at the other patches: (2, L, M). None without outliers, or if the model has no such blocks.

    ``median`` is that of the norms, by default of these images.
    """
    layers = {name.removeprefix("backbone."): layer for name, layer in model.named_modules()}
    seconds = [layers.get(f"blocks.{index}.mlp.fc2") for index in range(block + 1)]
    if None in seconds:
        return None
    means: list[Tensor] = []
    with eval_mode(model) as device:
        images = images.to(device)
        norms = model.feature_maps(images)[block].float().norm(dim=1).flatten(1)  # (B, N)
        is_outlier = norms > OUTLIER * (norms.median() if median is None else median)
        if not is_outlier.any():
            return None

        def observe(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            strength = inputs[0][:, -norms.shape[1] :].float().abs()  # (B, N, M)
            means.append(torch.stack([strength[is_outlier].mean(0), strength[~is_outlier].mean(0)]))  # (2, M)

        hooks = [layer.register_forward_pre_hook(observe) for layer in seconds if layer is not None]
        try:
            model.feature_maps(images)
        finally:
            for hook in hooks:
                hook.remove()
    return torch.stack(means, 1)
