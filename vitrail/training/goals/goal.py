"""A goal: the kind of a run. It determines the data, the model that is trained, and the files that are written."""

from __future__ import annotations

from typing import Any, Protocol

from vitrail.config.schema import Run
from vitrail.data.sources.source import Source
from vitrail.objectives.objective import Objective
from vitrail.runs.folder import RunFolder
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.training.data import RunData, Transform
from vitrail.training.inputs import Inputs
from vitrail.training.monitors import Monitor
from vitrail.training.network import Kept, NetworkPlan
from vitrail.training.provenance import Ending, Outcome
from vitrail.training.state import Training


class Goal(Protocol):
    """The verbs that differ between kinds of runs, in the order in which a run needs them.

    A goal has no state. ``run`` is the requested run until `plan` is called, and resolved from `build` on.
    """

    evaluate_first: bool  # also before the first step, to compare with the untrained model

    def check(self, run: Run) -> None:
        """Raises `ConfigError` for settings that are invalid for any data."""
        ...

    def start(self, run: Run, say: Say) -> Task | None:
        """The weights to start from, where the run names some. Raises `CheckpointError`."""
        ...

    def open(self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, start: Task | None) -> RunData:
        """The images, with as many training images as this goal needs. Raises `DataError`."""
        ...

    def plan(self, run: Run, train: Source, start: Task | None, say: Say) -> NetworkPlan:
        """The network for these images."""
        ...

    def build(self, run: Run, data: RunData, start: Task | None, say: Say) -> Kept:
        """The model that is trained and saved, on the CPU."""
        ...

    def objective(self, run: Run, kept: Kept, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        """The objective, and the function that makes its inputs from a batch."""
        ...

    def monitor(self, run: Run, kept: Kept, data: RunData) -> Monitor:
        """The figures of an evaluation between steps."""
        ...

    def finish(self, training: Training, kept: Kept, data: RunData, ending: Ending) -> Outcome:
        """Evaluates the model and writes ``model/``, ``report.html`` and ``card.md``; every rank evaluates, the first writes."""
        ...
