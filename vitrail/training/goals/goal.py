"""A goal is the kind of a run: it determines the data, the model that is trained, its objective, and the files it writes."""

from __future__ import annotations

from typing import Any, Protocol

from vitrail.config.schema import Run
from vitrail.objectives.objective import Objective
from vitrail.runs.folder import RunFolder
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.training.data import RunData, Transform
from vitrail.training.goals.pretraining import EncoderGoal, TokenizerGoal
from vitrail.training.goals.supervised import SupervisedGoal
from vitrail.training.inputs import Inputs
from vitrail.training.monitors import Monitor
from vitrail.training.network import BuiltModel, NetworkPlan
from vitrail.training.provenance import Ending, Outcome
from vitrail.training.state import Training


class Goal(Protocol):
    """The steps that differ between kinds of runs, in the order in which a run needs them.

    A goal has no state. ``run`` is the requested run until `plan` is called, and resolved from `build` on.
    """

    evaluate_first: bool  # also before the first step, to compare with the untrained model

    def check(self, run: Run) -> None:
        """Raises `ConfigError` for settings that are invalid for any data."""
        ...

    def open(
        self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, channels: int | None = None
    ) -> RunData:
        """Opens the images, with as many training images as this goal needs, and chooses the arguments of the task.

        ``channels`` are those of the weights to start from. Raises `DataError`.
        """
        ...

    def plan(self, run: Run, data: RunData, start: Task | None, say: Say) -> NetworkPlan:
        """Chooses the network for these images."""
        ...

    def build(self, run: Run, data: RunData, plan: NetworkPlan, start: Task | None, say: Say) -> BuiltModel:
        """Builds the model that is trained and saved, on the CPU."""
        ...

    def objective(self, run: Run, built: BuiltModel, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        """Creates the objective, and the function that makes its inputs from a batch."""
        ...

    def monitor(self, run: Run, built: BuiltModel, data: RunData) -> Monitor:
        """Creates the function that gives the figures of an evaluation between steps."""
        ...

    def finish(self, training: Training, built: BuiltModel, data: RunData, ending: Ending) -> Outcome:
        """Evaluates the model and writes ``model/``, ``report.html`` and ``card.md``; every rank evaluates, the first writes."""
        ...


# by the name of the objective
GOALS: dict[str, Goal] = {
    "supervised": SupervisedGoal(),
    "masked-patch": EncoderGoal(),
    "mae": EncoderGoal(),
    "beit": EncoderGoal(),
    "moco": EncoderGoal(),
    "simclr": EncoderGoal(),
    "tokenizer": TokenizerGoal(),
}
