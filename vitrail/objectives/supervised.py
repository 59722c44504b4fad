"""Supervised learning.

B images, C channels, H x W image size.
"""

from __future__ import annotations

from torch import Tensor

from vitrail.objectives.objective import Objective
from vitrail.tasks.task import Task


class Supervised(Objective):
    """The loss of a task's outputs; its forward is the training step.

    Args:
        task: the task to train; it contains the model to save.
        loss, binarise: the loss of the task, as accepted by `Task.loss_options`.

    Raises:
        ConfigError: the task does not have the loss.
    """

    def __init__(self, task: Task, loss: str | None = None, *, binarise: bool = False) -> None:
        super().__init__(task.backbone)
        self.own = task.own
        self.options = task.loss_options(loss, binarise=binarise)
        # in a tuple, so that its parameters keep their names in checkpoints: encoder.* and own.*
        self._task = (task,)

    def forward(self, images: Tensor, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the batch in fp32, and detached measurements of the task.

        Args:
            images: normalised (B, C, H, W).
            targets: as returned by `TargetKind.mix`, with the parts of a tuple as separate arguments.
        """
        (task,) = self._task
        outputs, given = task(images), targets[0] if len(targets) == 1 else targets
        return task.loss(outputs, given, **self.options), task.measure(outputs.detach(), given)
