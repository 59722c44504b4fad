"""Code of the user's own that is called during a training: to watch it, to log, and to end it early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.runtime.progress import LogFunction


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """A moment of a training.

    Args:
        step: updates so far, of ``steps``.
        figures: ``epoch``, with ``loss`` and ``lr`` after a step, or validation figures such as ``val_top1`` after an evaluation.
        model: the model with its present weights, in training mode; figures and the saved model may have averaged ones (EMA).
        folder: the run directory.
        log: writes a line to the log of the run.
    """

    step: int
    steps: int
    figures: Mapping[str, float]
    model: Any
    folder: Path
    log: LogFunction


class Callback:
    """Base class of callbacks: override what is needed. Of several ranks the first calls them.

    A training is the same to the last bit as without callbacks as long as they change neither weights nor the state of random
    numbers. They are not part of a run: whoever resumes it gives them again, and they see the steps that are made from there.
    An exception ends the training, which can be resumed.
    """

    def on_step(self, event: TrainingEvent) -> bool | None:
        """Called after each update. True ends the training: it is evaluated, saved and reported as at its last step."""

    def on_evaluation(self, event: TrainingEvent) -> bool | None:
        """Called after each evaluation between steps. True ends the training here."""

    def on_end(self, result: Any) -> None:
        """Called with the `vitrail.training.train.Result` once the run is finished, with its report."""
