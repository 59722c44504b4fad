"""Supervised learning: images with targets in, the loss to minimise out.

B images, C channels, H and W their size.
"""

from __future__ import annotations

from torch import Tensor

from vitrail.objectives.objective import Objective
from vitrail.tasks.task import Task


class Supervised(Objective):
    """The loss of a task's outputs; its forward is the training step.

    Args:
        task: what is trained, and saved for use.
        loss, binarise: which of the task's losses, as `Task.loss_options` takes them.

    Raises:
        ConfigError: a loss that the task does not have.
    """

    def __init__(self, task: Task, loss: str | None = None, *, binarise: bool = False) -> None:
        super().__init__(task.backbone)
        self.own = task.own
        self.options = task.loss_options(loss, binarise=binarise)
        # in a tuple, so that its parameters keep the names that checkpoints know: encoder.* and own.*
        self._task = (task,)

    def forward(self, images: Tensor, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of the batch in fp32, and what the task measured on the way, detached.

        Args:
            images: normalised (B, C, H, W).
            targets: as `Task.mix` gives them, the parts of a tuple one after the other.
        """
        (task,) = self._task
        outputs, given = task(images), targets[0] if len(targets) == 1 else targets
        return task.loss(outputs, given, **self.options), task.measure(outputs.detach(), given)
