"""The inputs of an objective: from a batch as it was read to the tensors of its forward pass, batch axis first.

B images, V views of each, K classes, C channels, h x w pixels as the network takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from vitrail.data.augment.apply import augment_and_place
from vitrail.data.augment.placement import Placement, place
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.transfer import send
from vitrail.objectives.objective import Objective
from vitrail.tasks.task import Task

Inputs = Callable[[Batch], tuple[Tensor, ...]]


class FrozenNetwork(Protocol):
    """A network that is not trained, and whose outputs for the images of a batch an objective takes."""

    def __call__(self, images: Tensor) -> Tensor: ...

    def operations(self, size: tuple[int, int]) -> int:
        """Floating-point operations for one image of ``size`` (height, width)."""
        ...


CHUNK = 128  # images that a frozen network sees at once, whatever the batch: it has no micro-steps to save memory by


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
        """The images, and where their pixels come from."""
        images, size = batch.images, self.preprocessing.size
        read = images.shape[-2], images.shape[-1]
        made, matrices = augment_and_place(
            images, batch.ids, self.policy, size=size, seed=self.seed, cropped=self.cropped
        )
        return self.preprocessing.normalise(made), place(batch.frames, read, matrices, size)


@dataclass(frozen=True)
class TaskInputs:
    """Images (B, C, h, w) and their targets: moved with the pixels, and mixed and smoothed as the policy says."""

    augmented: Augmented
    task: Task

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        images, placement = self.augmented.place(batch)
        targets = self.task.move(batch.targets, placement)
        policy, seed = self.augmented.policy, self.augmented.seed
        ids = batch.lead if batch.lead is not None and policy.mix_each == "batch" else batch.ids
        images, targets = self.task.mix(images, targets, ids, policy, seed=seed)
        parts = targets if isinstance(targets, tuple) else (targets,)
        # the halo has been mixed into its neighbour; it belongs to another part of the batch
        return images[batch.halo :], *(send(part[batch.halo :], images.device) for part in parts)


@dataclass(frozen=True)
class TaughtInputs:
    """The tensors of ``inputs``, and the outputs of ``teacher`` (B, K) for the same images."""

    inputs: Inputs
    teacher: FrozenNetwork

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        images, *rest = self.inputs(batch)
        return images, *rest, apply_in_chunks(self.teacher, images)


@dataclass(frozen=True)
class ViewInputs:
    """The views of each image, V times (B, C, h, w), what the objective draws for it, and the output of ``target_network`` for
    the first view, where there is one. The views of an image lie next to one another in the batch.
    """

    augmented: Augmented
    objective: Objective
    target_network: FrozenNetwork | None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        views = self.objective.views
        images = self.augmented(batch)  # (B V, C, h, w)
        noise = self.objective.draw(batch.ids[::views], self.augmented.preprocessing.size, self.augmented.seed)
        parts = [images[view::views].contiguous() for view in range(views)]
        drawn = [send(tensor, images.device) for tensor in noise]
        targets = [] if self.target_network is None else [apply_in_chunks(self.target_network, parts[0])]
        return *parts, *drawn, *targets


def frozen_network(inputs: Inputs) -> FrozenNetwork | None:
    """The network that computes a part of these inputs, where there is one."""
    match inputs:
        case TaughtInputs():
            return inputs.teacher
        case ViewInputs():
            return inputs.target_network
    return None


def renormalise(images: Tensor, source: Preprocessing, target: Preprocessing, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) that were normalised as ``given`` says, scaled to ``size`` and normalised as ``wanted`` says."""
    pictures = source.denormalise(images)
    if pictures.shape[2:] != size:
        pictures = nn.functional.interpolate(pictures, size, mode="bilinear", antialias=True, align_corners=False)
    return target.normalise(pictures)


def apply_in_chunks(network: FrozenNetwork, images: Tensor) -> Tensor:
    """The outputs of ``network`` for images (B, ...), computed `CHUNK` images at a time."""
    return torch.cat([network(chunk) for chunk in images.split(CHUNK)])
