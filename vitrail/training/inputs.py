"""The inputs of an objective: from a batch to the tensors of its forward pass, batch axis first.

B images, V views of each, K classes, C channels, h x w pixels as the network takes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.apply import augment, draw_flips
from vitrail.data.augment.placement import Placement, place
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.to_device import to_device
from vitrail.objectives.objective import Objective
from vitrail.tasks.targets import TargetKind
from vitrail.tasks.task import Task
from vitrail.training.frozen_networks import FrozenNetwork, apply_in_chunks


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """Augments and normalises the images of a batch."""

    policy: Augment
    preprocessing: Preprocessing
    seed: int
    cropped: bool  # they come in the size that the network takes

    def __call__(self, batch: Batch) -> tuple[Tensor, Placement]:
        """Returns the images (B, C, h, w), and where their pixels come from."""
        images, size = batch.images, self.preprocessing.size
        read = images.shape[-2], images.shape[-1]
        made, matrices = augment(images, batch.ids, self.policy, size=size, seed=self.seed, cropped=self.cropped)
        return self.preprocessing.normalise(made), place(batch.frames, read, matrices, size)


@dataclass(frozen=True)
class TaskInputs:
    """Makes the inputs of a supervised objective: images (B, C, h, w), their targets, moved with the pixels, mixed and smoothed,
    and, in a distillation, the outputs (B, K) of a teacher for the same images.
    """

    augmented: Augmented
    task: Task
    frozen: FrozenNetwork | None = None  # the teacher

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        images, placement = self.augmented(batch)
        targets = self.task.targets.move(batch.targets, placement)
        policy, seed = self.augmented.policy, self.augmented.seed
        ids = batch.lead if batch.lead is not None and policy.mix_each == "batch" else batch.ids
        images, targets = self.task.targets.mix(images, targets, ids, policy, seed=seed)
        parts = targets if isinstance(targets, tuple) else (targets,)
        # the halo has been mixed into its neighbour; it belongs to another part of the batch
        images, parts = images[batch.halo :], [to_device(part[batch.halo :], images.device) for part in parts]
        return images, *parts, *([] if self.frozen is None else [apply_in_chunks(self.frozen, images)])


@dataclass(frozen=True, kw_only=True)
class TeacherCache:
    """The outputs of a teacher for all n images, K values each, and, where the policy flips images, for the flipped ones."""

    values: Tensor  # (1 or 2, m, K) float16
    places: NDArray[np.int64]  # (n,) index of each image's outputs among the m
    policy: Augment
    seed: int

    def __call__(self, ids: NDArray[np.int64]) -> Tensor:
        """Returns the outputs (B, K) in fp32 for images with these ids (B, 3), flipped as by `augment`."""
        flipped = draw_flips(self.policy, ids, self.seed).astype(np.int64)
        return self.values[torch.from_numpy(flipped), torch.from_numpy(self.places[ids[:, 1]])].float()


@dataclass(frozen=True)
class ViewInputs:
    """Makes the inputs of an objective without labels: the views of each image, V times (B, C, h, w), the random tensors of the
    objective, and the output of a frozen network for the first view, computed or taken from a cache. The views of an image are
    neighbours in the batch, the last of them those of `LocalViews`.
    """

    augmented: Augmented
    objective: Objective
    frozen: FrozenNetwork | None = None  # which gives the targets
    cache: TeacherCache | None = None  # of its outputs

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        drawn = self.objective.draw(
            batch.ids[:: self.objective.views], self.augmented.preprocessing.size, self.augmented.seed
        )
        views = self._augment(batch)
        return *views, *(to_device(tensor, views[0].device) for tensor in drawn), *self._targets(batch, views[0])

    def _augment(self, batch: Batch) -> list[Tensor]:
        """Returns the views, each (B, C, h, w): whole ones in the size of the network, then local ones in theirs."""
        made, local, views = self.augmented, self.objective.local, self.objective.views
        whole = views if local is None else views - local.count
        ids = batch.ids.reshape(-1, views, 3)
        images, small = batch.images, batch.local
        if local is not None and small is None:  # arrays come as they are, once for each view
            images, small = (part.flatten(0, 1) for part in images.unflatten(0, (-1, views)).tensor_split([whole], 1))
        parts = self._augment_alike(images, ids[:, :whole], made.policy, made.preprocessing.size)
        if local is not None and small is not None:
            parts += self._augment_alike(small, ids[:, whole:], made.policy.local, local.size)
        return parts

    def _augment_alike(
        self, images: Tensor, ids: NDArray[np.int64], policy: Augment, size: tuple[int, int]
    ) -> list[Tensor]:
        """Augments images (B V, C, H, W) with ids (B, V, 3) to V views of one ``size``, each (B, C, h, w)."""
        made, count = self.augmented, ids.shape[1]
        images, _ = augment(images, ids.reshape(-1, 3), policy, size=size, seed=made.seed, cropped=made.cropped)
        images = made.preprocessing.normalise(images)
        return [images[view::count].contiguous() for view in range(count)]

    def _targets(self, batch: Batch, images: Tensor) -> list[Tensor]:
        """Returns the outputs of the frozen network for the first view, if there is one."""
        if self.cache is not None:
            return [to_device(self.cache(batch.ids[:: self.objective.views]), images.device)]
        return [] if self.frozen is None else [apply_in_chunks(self.frozen, images)]


@dataclass(frozen=True)
class FeatureInputs:
    """Makes the inputs of a supervised objective from features: (B, F), and their targets, smoothed by the policy."""

    targets: TargetKind
    policy: Augment
    frozen: None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        features, targets = self.targets.mix(batch.images, batch.targets, batch.ids, self.policy, seed=0)
        return features, to_device(targets, features.device)


Inputs = TaskInputs | ViewInputs | FeatureInputs
