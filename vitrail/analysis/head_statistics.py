"""Statistics of attention heads: mean distance, entropy, and the share of attention to prefix tokens.

B images, H heads, Q queries, K keys, R of the queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.analysis.attention import Lift
from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, AttentionRecord
from vitrail.models.backbone import eval_mode


@dataclass(frozen=True)
class HeadFigures:
    """Statistics of the heads of one layer, (H,) each, averaged over spatial queries and images; NaN without such queries.

    The entropy over the K keys of a query is divided by log K: 0 if all attention is on one key, 1 if it is uniform. The maximum
    is lower where shifted windows mask keys.
    """

    distance: Tensor  # mean attention distance in input pixels (ViT paper, section 4.5, figures 7 and 11)
    uniform: float  # the distance of uniform attention over all keys of the layer
    entropy: Tensor
    prefix: Tensor  # share of attention to prefix tokens (class token, registers)


class HeadStatistics:
    """Accumulates the `HeadFigures` of each layer over any number of images of one size, in the memory of one batch.

    Args:
        model: a task model or a backbone with attention.
        renormalise: exclude attention to prefix tokens and renormalise the rest. Otherwise it counts as distance 0. The paper
            does not specify this.
    """

    def __init__(self, model: Any, *, renormalise: bool = True) -> None:
        self.model = model
        self.renormalise = renormalise
        self.images = 0
        self.size: tuple[int, int] | None = None
        self.sums: list[Tensor] = []  # (3, H) per layer: distance, entropy, prefix
        self.lifts: list[Lift] = []

    def add(self, images: Tensor) -> Tensor:
        """Adds normalised images (B, C, H, W); returns their logits. Raises `ConfigError` if the image size changes."""
        size = (images.shape[2], images.shape[3])
        self.size = self.size or size
        if self.size != size:
            fact = "images of {}x{} pixels after images of {}x{}".format(*size, *self.size)
            raise ConfigError(fact, "use separate statistics for each size")
        self.lifts = self.lifts or [Lift(grid, images.device) for grid in self.model.attention_grids(size)]
        sums_by_layer: list[Tensor] = []
        with eval_mode(self.model):
            logits = self.model.forward_recording(
                images, lambda record: sums_by_layer.append(self._sum_figures(record, self.lifts[len(sums_by_layer)]))
            )
        self.sums = [sum + new for sum, new in zip(self.sums, sums_by_layer)] if self.sums else sums_by_layer
        self.images += len(images)
        return logits

    def _sum_figures(self, record: AttentionRecord, lift: Lift) -> Tensor:
        """Returns distance, entropy and prefix share, averaged over spatial queries and summed over images: (3, H)."""
        _, heads, _, keys = record.shape
        sums, queries = torch.zeros(3, heads, device=lift.device), 0
        for rows in record.slices():
            weights = record.weights(rows)  # (B, H, R, K)
            is_place = (lift.rows[rows] >= lift.prefix) & (lift.rows[rows] < lift.tokens)
            queries += int(is_place.sum())
            on_map = lift.mask_outside(weights, rows)[..., lift.prefix :]
            far = (on_map * lift.distances(rows)).sum(-1)  # (B, H, R)
            if self.renormalise:
                far = far / on_map.sum(-1).clamp(min=torch.finfo(far.dtype).tiny)
            entropy = torch.special.entr(weights).sum(-1) / math.log(max(keys, 2))
            prefix = weights[..., : lift.prefix].sum(-1)
            sums += (torch.stack([far, entropy, prefix]) * is_place).sum((1, 3))
        return sums / (queries or math.nan)

    def figures(self) -> list[HeadFigures]:
        """Returns the statistics of each layer, in the order of `attention_grids`. Raises `ConfigError` without images."""
        if self.size is None:
            raise ConfigError("no images have been added", "call add(images) first")
        means = [(sums / self.images).float().cpu() for sums in self.sums]
        return [
            HeadFigures(distance=mean[0], uniform=compute_uniform_distance(lift.grid), entropy=mean[1], prefix=mean[2])
            for mean, lift in zip(means, self.lifts, strict=True)
        ]


def compute_uniform_distance(grid: AttentionGrid) -> float:
    """Returns the mean distance of uniform attention in pixels, 116.49 for 14 x 14 patches of 16; NaN without spatial queries."""
    lift, distances = Lift(grid, torch.device("cpu")), []
    if not lift.all_ask:
        return math.nan
    for start in range(lift.prefix, len(lift.rows), 256):
        rows = slice(start, start + 256)
        is_place = lift.rows[rows] < lift.tokens
        inside = torch.ones_like(lift.distances(rows)) if lift.columns is None else (lift.columns[rows] < lift.tokens)
        distances.append(((lift.distances(rows) * inside).sum(1) / inside.sum(1))[is_place])
    return float(torch.cat(distances).double().mean())
