"""Supervised learning: images with targets in, the loss to minimise out.

B images, C channels, H and W their size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitrail.objectives.objective import Objective
from vitrail.tasks.task import Targets, Task


class Supervised(Objective):
    """The loss of a task's outputs; its forward is the training step.

    Args:
        task: what is trained, and saved for use.
        options: arguments of the task's loss, as `Task.loss_options` gives them.
    """

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task.backbone)
        self.own = task.own
        self.options = options
        # in a tuple, so that its parameters keep the names that checkpoints know: encoder.* and own.*
        self._task = (task,)

    def forward(self, images: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the batch in fp32, and what the task measured on the way, detached.

        Args:
            images: normalised (B, C, H, W).
            targets: as `Task.collate` and `Task.mix` make them.
        """
        (task,) = self._task
        outputs = task(images)
        return task.loss(outputs, targets, **self.options), task.measure(outputs.detach(), targets)
