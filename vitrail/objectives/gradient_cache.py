"""Objectives that compare the images of a batch with one another, and their gradient, however the batch is split.

The loss of an image depends on all others, so that losses of parts of the batch would make another objective. Gradient
caching (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup") finds the gradient of
the whole batch with the memory of a part: the features of all images without a graph; the loss of all features, and its
gradient by each of them; then part by part the features again, now with a graph, which that gradient is sent through.

B images.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.models.layers import by_hand
from vitrail.objectives.objective import Objective


class ContrastiveObjective(Objective):
    """An objective in two halves: features, each image's own, and the comparison of all images by their features.

    Backbones use no statistics of the batch, so that `features` and `references` may be computed for some images at a time.
    Batch norm belongs to `compare`, which sees the whole batch and leaves nothing to chance.
    """

    views: ClassVar[int] = 2

    @abstractmethod
    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the gradient reaches the encoder through; every tensor has the images first, as the inputs have."""

    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Features that no gradient is sent through, such as a momentum encoder's."""
        return ()

    @abstractmethod
    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and measurements, as of `forward`, from `features` and then `references` of the whole batch."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the batch in fp32, and what was measured on the way, detached scalars by name."""
        return self.compare(*self.features(*inputs), *self.references(*inputs))


def cached_backward(
    objective: ContrastiveObjective,
    inputs: Sequence[Tensor],
    micro: int,
    *,
    seed: Callable[[int], object],
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Adds the gradient of the whole batch's loss to ``.grad``, with the activations of ``micro`` images in memory.

    Features are computed twice, references once. Autocast, where the caller has it on, holds for what goes forward.

    Args:
        inputs: those of `ContrastiveObjective.forward`.
        micro: images of a piece; as many as the batch has, or more, is the plain way.
        seed: called with the number of a piece before its features, both times, so that dropout and drop path draw the
            same numbers again.
        scale: what of the loss the gradient is taken, such as ``GradScaler.scale``.

    Returns:
        The loss, detached and not scaled, and the measurements.
    """
    pieces = list(zip(*(each.split(micro) for each in inputs)))
    if len(pieces) == 1:
        seed(0)
        loss, measurements = objective(*inputs)
        with by_hand(loss):
            scale(loss).backward()
        return loss.detach(), measurements
    features, references = _without_graph(objective, pieces, seed)
    loss, measurements = objective.compare(*features, *references)
    with by_hand(loss):
        scale(loss).backward()
    gradients = zip(*(_gradient(each).split(micro) for each in features))
    for count, (some, gradient) in enumerate(zip(pieces, gradients)):
        seed(count)
        again = objective.features(*some)
        with by_hand(loss):
            torch.autograd.backward(again, gradient)
    return loss.detach(), measurements


@torch.no_grad()
def _without_graph(
    objective: ContrastiveObjective, pieces: Sequence[tuple[Tensor, ...]], seed: Callable[[int], object]
) -> tuple[list[Tensor], list[Tensor]]:
    """The features of all pieces as leaves of a new graph, and the references."""
    features, references = [], []
    for count, some in enumerate(pieces):
        seed(count)
        features.append(objective.features(*some))
        references.append(objective.references(*some))
    return [torch.cat(each).requires_grad_() for each in zip(*features)], [torch.cat(each) for each in zip(*references)]


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None, "compare left a feature out"
    return leaf.grad
