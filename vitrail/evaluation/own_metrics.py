"""Registered metrics of classifiers, computed from the outputs of all images of an evaluation.

N images, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.plugins import METRICS, find_own
from vitrail.tasks.metric import Targets, as_array
from vitrail.tasks.task import Task


class OwnMetrics:
    """Keeps outputs and targets (`add`), of which `compute` gives the figures of the metrics ``names``.

    Raises:
        ConfigError: a metric that is not registered, or a task whose answers are not classes with probabilities.
    """

    def __init__(self, names: Sequence[str], task: Task) -> None:
        self.functions = {name: find_own("metric", name, METRICS) for name in names}
        if not task.answers_classes:
            what = f"metrics are {', '.join(names)}, and answers of the task {task.name} are not classes with probabilities"
            raise ConfigError(what, "leave metrics out; a task of your own returns a metric of its own (Task.metric)")
        self.task = task
        self.kept: list[tuple[Tensor, Targets]] = []

    def add(self, outputs: Tensor, targets: Targets) -> None:
        self.kept.append((outputs.cpu(), targets))

    def compute(self) -> dict[str, float]:
        """Returns the figure of each metric. Raises `ConfigError` for one that returns no number."""
        outputs, targets = (torch.cat(batches) for batches in zip(*self.kept))
        values = (as_array(self.task.probabilities(outputs)).astype("float64"), as_array(targets))  # type: ignore[not-callable]
        figures: dict[str, float] = {}
        for name, function in self.functions.items():
            value = function(*values)
            try:
                figures[name] = float(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"the metric {name!r} returned {value!r:.60}", "return one number") from error
        return figures
