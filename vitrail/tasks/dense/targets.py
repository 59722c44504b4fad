"""Targets that lie in the picture: what all of them have in common, and a value for every pixel.

B images, H x W pixels as they were read, h x w of the model's input, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.geometry import resample_maps
from vitrail.data.augment.placement import Placement
from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.pixel_maps import PixelMaps
from vitrail.data.sources.source import Source
from vitrail.data.to_device import to_device
from vitrail.errors import ConfigError, DataError
from vitrail.images.pixel_format import PixelFormat
from vitrail.tasks.targets import TargetKind


@dataclass(frozen=True)
class PlacedTargets(TargetKind):
    """Targets that lie in the picture.

    Args:
        annotations: how data hold them.
        needs: what they are, for messages.
    """

    annotations: type[Annotations]
    needs: str

    def check(self, source: Source, task: str) -> None:
        if not isinstance(source.targets, self.annotations):
            has = f"classes of {source.counted}" if source.labelled else "no labels"
            remedy = {"objects": "--task detect", "pixels": "--task segment"}.get(source.counted, "--task classify")
            what = f"the data have {has}, and {task} needs {self.needs}"
            raise DataError(what, f"give annotated data, or train with {remedy}")


def check_placed(placement: Placement) -> None:
    """Raises `ConfigError` for images that a transform of the user's own made, which targets cannot follow."""
    if not math.isfinite(placement.matrices.sum()):
        what = "boxes and masks cannot follow a transform of your own, which does not say where its pixels come from"
        raise ConfigError(what, "leave the transform out; the settings augment.* change images and targets alike")


@dataclass(frozen=True)
class PixelTargets(PlacedTargets):
    """A value for every pixel, stored and resampled as the format of its annotations says.

    Args:
        class_weights: the weight of a pixel of each class in the loss; by default all are equal.
    """

    annotations: type[PixelMaps]
    class_weights: tuple[float, ...] | None = None

    @property
    def format(self) -> PixelFormat:
        return self.annotations.pixel_format

    def collate(self, rows: Sequence[NDArray[Any]]) -> Tensor:
        """Collates maps (H, W) to (B, H, W); smaller ones are filled on the right and at the bottom with what is ignored."""
        height, width = np.max([each.shape for each in rows], axis=0).tolist()
        made = np.full((len(rows), height, width), self.format.ignored, self.format.dtype)
        for filled, each in zip(made, rows):
            filled[: each.shape[0], : each.shape[1]] = each
        return torch.from_numpy(made)

    def move(self, targets: Tensor, placement: Placement) -> tuple[Tensor, Tensor]:
        """Returns maps (B, h, w) of the images, and the weight (B,) of each image: images per weight of all pixels of the batch.

        ``targets`` (B, H, W) were read with the same crops as the images. Pixels of which an image shows nothing are ignored.
        """
        check_placed(placement)
        maps = resample_maps(targets, placement.sampling, size=placement.size, pixel_format=self.format)
        return maps, (len(maps) / self._sum_weights(maps)).expand(len(maps))

    def _sum_weights(self, maps: Tensor) -> Tensor:
        """Returns the weight of all pixels that are not ignored, a scalar."""
        if self.class_weights is None:
            return self.format.is_known(maps).sum().float().clamp(min=1)
        weights = F.pad(
            self.weights_on(maps.device), (0, 256 - len(self.class_weights))
        )  # (256,), 0 for ignored pixels
        classes = maps.flatten().long()
        # not `bincount`, for whose size the host waits for a GPU
        counts = torch.zeros_like(weights, dtype=torch.int64).scatter_add_(0, classes, torch.ones_like(classes))
        return (counts * weights).sum().clamp(min=min(weight for weight in self.class_weights if weight > 0))

    def weights_on(self, device: torch.device) -> Tensor:
        """Returns ``class_weights`` on a device, (K,) in fp32."""
        return to_device(torch.tensor(self.class_weights), device)
