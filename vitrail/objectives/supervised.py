"""Supervised learning of a task, and distillation: learning from labels and from the outputs of a teacher (Touvron et al. 2021a,
DeiT).

B images, C channels, H x W image size, K classes.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.models import Backbone
from vitrail.objectives.objective import Objective
from vitrail.plugins import find_loss
from vitrail.tasks.classification.classifier import label_loss, top1
from vitrail.tasks.task import Task


class Supervised(Objective):
    """The loss of a task's outputs; its forward is the training step.

    Args:
        task: the task to train; it contains the model to save.
        loss, binarise: the loss of the task, as accepted by `Task.loss_options`; or the name of a registered loss.
        class_weights: of a classifier with the loss softmax, (K,).

    Raises:
        ConfigError: the task does not have the loss, or a registered one returns anything but a scalar.
    """

    def __init__(
        self, task: Task, loss: str | None = None, *, binarise: bool = False, class_weights: Tensor | None = None
    ) -> None:
        super().__init__(task.backbone)
        self.own = task.own
        own = find_loss(loss, task.losses)
        if own is not None and binarise:
            raise ConfigError(f"binarise is set with the loss {loss!r}", "it belongs to the loss 'sigmoid'")
        self.name, self.criterion = loss, copy.deepcopy(own)  # a module of it may have parameters
        self.options = task.loss_options(loss, binarise=binarise) if own is None else {}
        if class_weights is not None:
            self.options |= {"weights": class_weights}
        # in a tuple, so that its parameters keep their names in checkpoints: encoder.* and own.*
        self._task = (task,)

    def forward(self, images: Tensor, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the batch in fp32, and detached measurements of the task.

        Args:
            images: normalised (B, C, H, W); or the features (B, F) of images, for which the head alone is computed.
            targets: as returned by `TargetKind.mix`, with the parts of a tuple as separate arguments.
        """
        (task,) = self._task
        outputs = task(images) if images.ndim > 2 else task.backbone.head(images)
        given = targets[0] if len(targets) == 1 else targets
        measured = task.measure(outputs.detach(), given)
        if self.criterion is None:
            return task.loss(outputs, given, **self.options), measured
        loss = self.criterion(outputs, given)
        if not isinstance(loss, Tensor) or loss.ndim:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ConfigError(
                f"the loss {self.name!r} returned {what}", "return the mean over the images, a scalar tensor"
            )
        if outputs.requires_grad and not loss.requires_grad:
            remedy = "compute it with torch from the outputs, without detach() or item()"
            raise ConfigError(f"the loss {self.name!r} has no gradient", remedy)
        return loss, measured

    def after_step(self, share: float) -> None:
        for module in self.own.values():
            if callable(after_step := getattr(module, "after_step", None)):
                after_step(share)


# of the teacher's loss (DeiT, section 4; the soft loss is from Hinton et al. 2015)
WEIGHTS = {"hard": 0.5, "soft": 0.1}


class Distillation(Objective):
    """(1 - w) times the loss on the labels plus w times the loss on the teacher's outputs (DeiT, equations 2 and 3).

    With a distillation token, that token learns only from the teacher and the class token only from the labels; with one
    head, that head learns from both.

    Args:
        encoder: a backbone with a head.
        kind: ``hard``, the cross-entropy with the teacher's top class; or ``soft``, tau^2 KL(teacher || student), both at the
            temperature tau.
        weight: w; by default 0.5 for hard and 0.1 for soft.
        temperature: tau of ``soft``.
        loss, binarise, class_weights: of the labels, as for `vitrail.tasks.classification.classifier.label_loss`.

    Raises:
        ConfigError: an invalid value.
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
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__(encoder)
        if kind not in WEIGHTS:
            raise ConfigError(f"unknown kind of distillation {kind!r}", nearest(kind, WEIGHTS))
        weight = WEIGHTS[kind] if weight is None else weight
        if not 0 <= weight <= 1:
            raise ConfigError(f"the weight of the teacher is {weight}", "give a number from 0 to 1")
        if temperature <= 0:
            raise ConfigError(f"the temperature is {temperature}", "give a number above 0, such as 3.0")
        self.kind = kind
        self.weight = weight
        self.temperature = temperature
        self.on_labels = label_loss(loss, binarise=binarise, weights=class_weights)

    def forward(self, images: Tensor, targets: Tensor, answers: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the batch in fp32; ``top1`` of the head that learns from the labels; and ``agreement``, the
        fraction of images for which the head that learns from the teacher predicts the teacher's top class.

        Args:
            images: normalised (B, C, H, W).
            targets: (B,) indices of classes, or (B, K) values in [0, 1].
            answers: the teacher's logits (B, K).
        """
        heads = self.encoder.heads(self.encoder.features(images))
        taught = heads.pop("dist", None)  # (B, K)
        (labelled,) = heads.values()  # (B, K)
        taught = labelled if taught is None else taught
        loss = torch.lerp(self.on_labels(labelled, targets), self.from_teacher(taught, answers), self.weight)
        agreement = top1(taught.detach(), answers.argmax(1))
        return loss, {"top1": top1(labelled.detach(), targets), "agreement": agreement}

    def from_teacher(self, logits: Tensor, answers: Tensor) -> Tensor:
        """Returns the loss on the teacher's outputs, from logits and answers (B, K)."""
        logits, answers = logits.float(), answers.float()
        if self.kind == "hard":
            return F.cross_entropy(logits, answers.argmax(1))
        student, teacher = ((scores / self.temperature).log_softmax(1) for scores in (logits, answers))
        return self.temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
