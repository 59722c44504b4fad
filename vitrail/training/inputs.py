"""The inputs of an objective: from a batch as it was read to the tensors of its forward pass, batch axis first.

B images, V views of each, K classes, C channels, h x w pixels as the network takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vitrail.data.augment.apply import augment
from vitrail.data.augment.placement import Placement, place
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.to_device import to_device
from vitrail.objectives.objective import Objective
from vitrail.tasks.task import Task
from vitrail.training.frozen import FrozenNetwork, apply_in_chunks


class Inputs(Protocol):
    """Makes the inputs of an objective from a batch, in part by a ``frozen`` network."""

    @property
    def frozen(self) -> FrozenNetwork | None: ...

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """The images of a batch, augmented and normalised: (B, C, h, w)."""

    policy: Augment
    preprocessing: Preprocessing
    seed: int
    cropped: bool  # they come in the size that the network takes

    def __call__(self, batch: Batch) -> Tensor:
        return self.place(batch)[0]

    def place(self, batch: Batch) -> tuple[Tensor, Placement]:
        """Returns the images, and where their pixels come from."""
        images, size = batch.images, self.preprocessing.size
        read = images.shape[-2], images.shape[-1]
        made, matrices = augment(images, batch.ids, self.policy, size=size, seed=self.seed, cropped=self.cropped)
        return self.preprocessing.normalise(made), place(batch.frames, read, matrices, size)


@dataclass(frozen=True)
class TaskInputs:
    """Images (B, C, h, w), their targets, moved with the pixels and mixed and smoothed by the policy, and, in a distillation, the
    outputs (B, K) of a teacher for the same images.
    """

    augmented: Augmented
    task: Task
    frozen: FrozenNetwork | None = None  # the teacher

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        images, placement = self.augmented.place(batch)
        targets = self.task.targets.move(batch.targets, placement)
        policy, seed = self.augmented.policy, self.augmented.seed
        ids = batch.lead if batch.lead is not None and policy.mix_each == "batch" else batch.ids
        images, targets = self.task.targets.mix(images, targets, ids, policy, seed=seed)
        parts = targets if isinstance(targets, tuple) else (targets,)
        # the halo has been mixed into its neighbour; it belongs to another part of the batch
        images, parts = images[batch.halo :], [to_device(part[batch.halo :], images.device) for part in parts]
        return images, *parts, *([] if self.frozen is None else [apply_in_chunks(self.frozen, images)])


@dataclass(frozen=True)
class ViewInputs:
    """The views of each image, V times (B, C, h, w), the random tensors of the objective, and the output of a frozen network for
    the first view, where there is one. The views of an image lie next to one another in the batch.
    """

    augmented: Augmented
    objective: Objective
    frozen: FrozenNetwork | None = None  # which gives the targets

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        views = self.objective.views
        images = self.augmented(batch)  # (B V, C, h, w)
        noise = self.objective.draw(batch.ids[::views], self.augmented.preprocessing.size, self.augmented.seed)
        parts = [images[view::views].contiguous() for view in range(views)]
        drawn = [to_device(tensor, images.device) for tensor in noise]
        targets = [] if self.frozen is None else [apply_in_chunks(self.frozen, parts[0])]
        return *parts, *drawn, *targets
