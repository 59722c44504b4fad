"""Supervised learning: images with targets in, the loss to minimise out.

B images, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.models import Backbone
from vitrail.objectives.objective import Objective
from vitrail.tasks.classification import sigmoid_loss, softmax_loss

LOSSES = {"softmax": softmax_loss, "sigmoid": sigmoid_loss}
LabelLoss = Callable[[Tensor, Tensor], Tensor]


def label_loss(name: str, *, binarise: bool = False) -> LabelLoss:
    """From logits (B, K) and targets to their mean loss in fp32.

    Args:
        name: ``softmax``, one choice among all classes; or ``sigmoid``, a yes or no for each.
        binarise: with ``sigmoid``, every target above 0 counts as 1; see `vitrail.tasks.classification.sigmoid_loss`.

    Raises:
        ConfigError: an unknown loss, or ``binarise`` with a loss that has no use for it.
    """
    if name not in LOSSES:
        raise ConfigError(f"unknown loss {name!r}", nearest(name, LOSSES))
    if binarise and name != "sigmoid":
        raise ConfigError(f"binarise is set with the loss {name!r}", "it belongs to the loss 'sigmoid'")
    return partial(sigmoid_loss, binarise=True) if binarise else LOSSES[name]


class Supervised(Objective):
    """The loss of a classifier's logits; its forward is the training step.

    Args:
        encoder: a backbone: what is trained, and saved for use.
        loss, binarise: as for `label_loss`.

    Raises:
        ConfigError: as `label_loss` has it.
    """

    def __init__(
        self, encoder: Backbone, loss: Literal["softmax", "sigmoid"] = "softmax", *, binarise: bool = False
    ) -> None:
        super().__init__(encoder)
        self.loss = label_loss(loss, binarise=binarise)

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the batch in fp32, and what was measured on the way, detached.

        Args:
            images: normalised (B, C, H, W).
            targets: (B,) indices of classes, or (B, K) values in [0, 1].

        Returns:
            The loss, and ``top1``: the part of the images whose best class is (one of) the target's largest.
        """
        logits = self.encoder(images)  # (B, K)
        return self.loss(logits, targets), {"top1": top1(logits.detach(), targets)}


@torch.no_grad()
def top1(logits: Tensor, targets: Tensor) -> Tensor:
    """The part of the images whose best class is the target, or one of the largest of a soft target, as a scalar."""
    best = logits.argmax(1)  # (B,)
    if targets.ndim == 1:
        return (best == targets).float().mean()
    given = targets.gather(1, best[:, None])[:, 0]  # (B,)
    return (given == targets.amax(1)).float().mean()
