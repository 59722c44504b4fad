"""Distillation: learning from labels and from what a teacher says of the same images (Touvron et al. 2021a, DeiT).

B images, K classes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.models import Backbone
from vitrail.objectives.objective import Objective
from vitrail.tasks.classification import label_loss, top1

KINDS = ("hard", "soft")
# of the teacher's part (DeiT, section 4; its soft loss is that of Hinton et al. 2015)
WEIGHTS = {"hard": 0.5, "soft": 0.1}


class Distillation(Objective):
    """(1 - w) times the loss on the labels and w times that on the teacher's answers (DeiT, equations 2 and 3).

    A distillation token learns from the teacher alone and the class token from the labels; an encoder with one head learns
    from both with it.

    Args:
        encoder: a backbone with a head.
        kind: ``hard``, the cross-entropy with the teacher's best class; or ``soft``, tau^2 KL(teacher || student), both
            softened by the temperature.
        weight: w; by default 0.5 for hard and 0.1 for soft.
        temperature: tau of ``soft``.
        loss, binarise: of the labels, as for `vitrail.tasks.classification.label_loss`.

    Raises:
        ConfigError: a value that cannot be meant.
    """

    def __init__(
        self,
        encoder: Backbone,
        kind: Literal["hard", "soft"] = "hard",
        *,
        weight: float | None = None,
        temperature: float = 3.0,
        loss: Literal["softmax", "sigmoid"] = "softmax",
        binarise: bool = False,
    ) -> None:
        super().__init__(encoder)
        if kind not in KINDS:
            raise ConfigError(f"unknown kind of distillation {kind!r}", nearest(kind, KINDS))
        weight = WEIGHTS[kind] if weight is None else weight
        if not 0 <= weight <= 1:
            raise ConfigError(f"the teacher's weight is {weight}", "give a share, 0 to 1")
        if temperature <= 0:
            raise ConfigError(f"the temperature is {temperature}", "give a number above 0, such as 3.0")
        self.kind = kind
        self.weight = weight
        self.temperature = temperature
        self.on_labels = label_loss(loss, binarise=binarise)

    def forward(self, images: Tensor, targets: Tensor, answers: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the batch in fp32, and what was measured on the way, detached.

        Args:
            images: normalised (B, C, H, W).
            targets: (B,) indices of classes, or (B, K) values in [0, 1].
            answers: the teacher's logits (B, K).

        Returns:
            The loss; ``top1`` as `Supervised` has it, of the head that learns from the labels; and ``agreement``, the part of
            the images to which the head that is taught gives the teacher's best class.
        """
        heads = self.encoder.heads(self.encoder.features(images))
        taught = heads.pop("dist", None)  # (B, K)
        (labelled,) = heads.values()  # (B, K)
        taught = labelled if taught is None else taught
        loss = torch.lerp(self.on_labels(labelled, targets), self.from_teacher(taught, answers), self.weight)
        agreement = top1(taught.detach(), answers.argmax(1))
        return loss, {"top1": top1(labelled.detach(), targets), "agreement": agreement}

    def from_teacher(self, logits: Tensor, answers: Tensor) -> Tensor:
        """The teacher's part of the loss, of logits and answers (B, K)."""
        logits, answers = logits.float(), answers.float()
        if self.kind == "hard":
            return F.cross_entropy(logits, answers.argmax(1))
        student, teacher = ((each / self.temperature).log_softmax(1) for each in (logits, answers))
        return self.temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
