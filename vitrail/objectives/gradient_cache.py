"""Objectives that compare all images of a batch, and gradient caching for batches that do not fit in memory.

The loss of an image depends on all others, so the losses of micro-batches would be a different objective. Gradient caching
(Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup") computes the gradient of the
whole batch with the memory of a micro-batch: first the features of all images without a graph; then the loss of all
features and its gradient with respect to them; then for each micro-batch the features again, with a graph, and the
backward pass with the cached gradient.

B images.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.errors import DataError
from vitrail.models.layers import by_hand
from vitrail.objectives.objective import Objective
from vitrail.runtime.distributed import SINGLE, Ranks


class ContrastiveObjective(Objective):
    """An objective in two parts: the features of each image, and a loss that compares the features of all images.

    Backbones use no batch statistics, so `features` and `references` can be computed for a few images at a time. Batch norm
    belongs in `compare`, which sees the whole batch and must be deterministic.
    """

    views: ClassVar[int] = 2

    @abstractmethod
    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the features through which the encoder gets its gradient; the first axis of every tensor is the batch."""

    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns features without a gradient, such as those of a momentum encoder."""
        return ()

    @abstractmethod
    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and measurements, as of `forward`, from the `features` and then the `references` of the whole batch."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the batch in fp32, and measurements: detached scalars by name."""
        return self.compare(*self.features(*inputs), *self.references(*inputs))


def cached_backward(
    objective: ContrastiveObjective,
    inputs: Sequence[Tensor],
    micro: int,
    *,
    seed: Callable[[int], object],
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    ranks: Ranks = SINGLE,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Adds the gradient of the loss of the whole batch to ``.grad``, with the activations of ``micro`` images in memory.

    Features are computed twice, references once. The caller's autocast applies to the forward passes.

    On several ranks every rank has a part of the batch, computes the features of it, and compares those of all ranks. The
    gradients of the ranks add up to that of the batch: that of what compares is in W equal parts, that of the features comes from
    the rank that has the images. Nothing is differentiated across ranks.

    Args:
        inputs: the inputs of `ContrastiveObjective.forward`.
        micro: size of a micro-batch; if the batch is not larger, this is a plain forward and backward pass.
        seed: called with the index of a micro-batch before each computation of its features, so that dropout and drop
            path draw the same numbers both times.
        scale: scales the loss before the backward pass, such as ``GradScaler.scale``.
        ranks: the processes that have the other parts of the batch.

    Returns:
        The detached, unscaled loss, and the measurements.

    Raises:
        DataError: too few images of this rank's part are good.
    """
    micro_batches = list(zip(*(tensor.split(micro) for tensor in inputs)))
    if not ranks.is_single:
        (count,) = ranks.largest(len(micro_batches))  # an exchange of one rank needs one of each other
        if len(inputs[0]) < count:
            raise DataError(f"{len(inputs[0])} images are left for {count} micro-steps", "see `vitrail data check`")
        micro_batches = list(zip(*(tensor.tensor_split(count) for tensor in inputs)))
    elif len(micro_batches) == 1:
        seed(0)
        loss, measurements = objective(*inputs)
        with by_hand(loss):
            scale(loss).backward()
        return loss.detach(), measurements
    seeds = range(ranks.rank * len(micro_batches), (ranks.rank + 1) * len(micro_batches))
    own, references = _compute_without_graph(objective, micro_batches, seeds, seed)
    gathered = [ranks.gather_rows(part) for part in own]
    features = [torch.cat(parts).requires_grad_() for parts in gathered]  # leaves of a new graph
    loss, measurements = objective.compare(*features, *(torch.cat(ranks.gather_rows(part)) for part in references))
    with by_hand(loss):
        scale(loss / ranks.world).backward()
    start = sum(map(len, gathered[0][: ranks.rank]))
    sizes = [len(micro_batch[0]) for micro_batch in micro_batches]
    gradients = zip(*(_gradient(leaf)[start : start + sum(sizes)].mul(ranks.world).split(sizes) for leaf in features))
    for index, micro_batch, gradient in zip(seeds, micro_batches, gradients):
        seed(index)
        again = objective.features(*micro_batch)
        with by_hand(loss):
            torch.autograd.backward(again, gradient)
    return loss.detach(), measurements


@torch.no_grad()
def _compute_without_graph(
    objective: ContrastiveObjective,
    micro_batches: Sequence[tuple[Tensor, ...]],
    seeds: Sequence[int],
    seed: Callable[[int], object],
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the features of all micro-batches, and the references."""
    features, references = [], []
    for index, micro_batch in zip(seeds, micro_batches):
        seed(index)
        features.append(objective.features(*micro_batch))
        references.append(objective.references(*micro_batch))
    return [torch.cat(parts) for parts in zip(*features)], [torch.cat(parts) for parts in zip(*references)]


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None, "compare did not use a feature"
    return leaf.grad
