"""What a task learns from: its targets, from the rows of a source to the tensors of the loss (`training/inputs.py` calls `mix`).

B images, C channels, h and w of the model's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.mixing import mix, smooth
from vitrail.data.augment.placement import Placement
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import collate_labels
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError


class TargetKind:
    """Targets of any data, a number or a row of numbers for each image, which augmentation leaves as they are."""

    mixes: ClassVar[bool] = False  # whether `mix` does anything

    def check(self, source: Source, task: str) -> None:
        """Raises `DataError` for data whose targets are not those of ``task``."""

    def check_policy(self, policy: Augment, task: str) -> None:
        """Raises `ConfigError` for augmentation that the targets cannot follow."""
        if not self.mixes and (policy.mixes or policy.smoothing):
            what = f"mixing images and smoothing labels have no meaning for the task {task}"
            raise ConfigError(what, "set augment.mixup, augment.cutmix and augment.smoothing to 0")

    def collate(self, rows: Any) -> Any:
        """Collates rows of a source's targets to those of a batch: a tensor with the images first, or a tuple of such."""
        return collate_labels(rows)

    def move(self, targets: Any, placement: Placement) -> Any:
        """Returns the targets of images that were cropped, flipped and moved as ``placement`` says, as `Task.loss` takes them."""
        return targets

    def mix(
        self, images: Tensor, targets: Any, ids: NDArray[np.int64], policy: Augment, *, seed: int
    ) -> tuple[Tensor, Any]:
        """Mixes images (B, C, h, w) with one another where the policy asks for it, and softens their targets with them."""
        return images, targets


@dataclass(frozen=True)
class LabelTargets(TargetKind):
    """Indices (B,) of ``classes`` classes, or (B, K) numbers in [0, 1]."""

    classes: int = 0
    mixes = True

    def check(self, source: Source, task: str) -> None:
        _ = source.labels  # refuses boxes and maps of classes

    def mix(
        self, images: Tensor, targets: Tensor, ids: NDArray[np.int64], policy: Augment, *, seed: int
    ) -> tuple[Tensor, Tensor]:
        if targets.ndim == 1 and (policy.mixes or policy.smoothing):
            targets = F.one_hot(targets, self.classes).float()
        if policy.smoothing:
            targets = smooth(targets, policy.smoothing)
        return mix(images, targets, ids, policy, seed=seed) if policy.mixes else (images, targets)
