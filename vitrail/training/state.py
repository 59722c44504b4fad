"""The state of a training between two steps, what a checkpoint holds of it, and how a run goes on from one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config.schema import Run, identify
from vitrail.errors import CheckpointError, ConfigError
from vitrail.objectives.objective import Objective
from vitrail.runs import checkpoint
from vitrail.runs.checkpoint import BackgroundSaver
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import in_precision
from vitrail.runtime.distributed import SINGLE, Ranks, distribute_like, gather_full, is_dtensor
from vitrail.torch_private import copy_
from vitrail.training.data import TrainingBatches
from vitrail.training.fingerprint import UNTRAINED
from vitrail.training.inputs import Inputs
from vitrail.training.optimizer import Average, Optimiser, find_head_names
from vitrail.training.schedule import learning_rate
from vitrail.training.validation import Validator


@dataclass
class Progress:
    """What a checkpoint holds beside tensors; all of it is a function of the run and the step."""

    step: int = 0
    images: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # of what was measured since the last line of metrics.jsonl
    count: int = 0
    evaluated: int = -1  # the last step that was evaluated
    metrics_bytes: int = 0

    def add(self, measured: Mapping[str, float]) -> None:
        """Adds the measurements of one step."""
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in measured.items()}
        self.count += 1

    def means(self) -> dict[str, float]:
        """Returns the means over the steps since the last call."""
        means = {name: total / self.count for name, total in self.sums.items()}
        self.sums, self.count = {}, 0
        return means


@dataclass(frozen=True)
class PendingMetrics:
    """What a step measured, on the device until it is read: scalars, and the images by which a divergence is named."""

    step: int
    keys: list[str]
    measured: Mapping[str, Tensor]  # "loss" first
    norm: Tensor


@dataclass
class Training:
    """Everything a run works with, made by `training.prepare`.

    ``run`` is resolved. It is the only copy of the settings: what reads them between steps reads them here, for running out of
    memory makes the micro-batch smaller.

    ``objective`` is what is evaluated and saved. The optimiser moves ``trained``, which is the same or, on several ranks, a copy
    whose parameters are spread over them; what computes is ``compute_model``.
    """

    run: Run
    steps: int
    images: int  # of the training split
    objective: Objective
    trained: Objective
    inputs: Inputs
    optimiser: Optimiser
    average: Average | None
    batches: TrainingBatches
    validator: Validator
    folder: RunFolder
    device: torch.device
    ranks: Ranks = SINGLE
    evaluate_first: bool = False  # before the first step too
    scaler: torch.amp.GradScaler | None = None
    operations: float | None = None  # floating-point operations of all steps, where they can be counted
    digests: Mapping[str, str] = field(default_factory=dict)  # of the data, see `fingerprint_data`
    progress: Progress = field(default_factory=Progress)
    pending: list[PendingMetrics] = field(default_factory=list)
    loss: float = math.nan  # of the last step that was read

    def __post_init__(self) -> None:
        self.saver = BackgroundSaver(self.ranks)
        # the working copy computes in bf16; the optimiser, the average and the checkpoints see the fp32 weights
        copied = self.run.compute.precision == "bf16-weights" and self.ranks.is_single
        self.compute_model = copy.deepcopy(self.trained).to(torch.bfloat16) if copied else self.trained
        compiled = self.run.compute.compile and self.ranks.is_single  # what is spread is compiled block by block
        self.step_module = torch.compile(self.compute_model) if compiled else self.compute_model

    def freeze_backbone(self) -> None:
        """Leaves the backbone as it is as long as the head learns alone (`ModelSettings.head_first`); call before each step."""
        if share := self.run.model.head_first:
            for parameter in self.trained_backbone:
                parameter.requires_grad_(self.progress.step >= share * self.steps)

    @cached_property
    def trained_backbone(self) -> list[nn.Parameter]:
        """What the working copy trains but the head."""
        names = self.optimiser.parameters.keys() - find_head_names(self.trained)
        return [parameter for name, parameter in self.compute_model.named_parameters() if name in names]

    @cached_property
    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """All parameters of what is trained, by name."""
        return dict(self.trained.named_parameters())

    @property
    def defers(self) -> bool:
        """Whether steps are read together, when one is logged: reading would make the host wait for a GPU in each of them.

        Ranks exchange the loss of each step anyway, and the scaler of fp16 reads each norm.
        """
        return self.device.type == "cuda" and self.ranks.is_single and self.scaler is None

    @property
    def steps_an_epoch(self) -> float:
        return self.images / self.run.data.batch

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations, which are spread evenly; the last one falls on the last step."""
        return max(math.ceil(self.steps / self.run.save.evaluations), 1)

    def evaluate(self, stopped: Callable[[], bool]) -> dict[str, float] | None:
        """Returns the figures of the validator; None if it was stopped."""
        return self.validator(self.run, stopped, self.ranks)

    @property
    def autocast(self) -> AbstractContextManager:
        return in_precision(self.run.compute.precision or "fp32", self.device)

    @torch.no_grad()
    def refresh_compute_model(self) -> None:
        """Brings the working copy up to the weights."""
        if self.compute_model is not self.trained:
            copy_(list(self.compute_model.parameters()), list(self.trained.parameters()))


class use_average:
    """While entered, the objective holds the weights as they are used: averaged where the run averages, whole on every rank."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.kept: list[Tensor] = []

    def __enter__(self) -> None:
        training = self.training
        averaged: Mapping[str, Tensor] = {} if training.average is None else training.average.tensors
        if training.trained is not training.objective:
            own = training.objective.state_dict()
            moved = {**training.trained.state_dict(), **averaged}
            self._put(own, {name: gather_full(tensor) for name, tensor in moved.items()})
        elif averaged:
            parameters = training.optimiser.parameters
            self.kept = [parameter.detach().clone() for parameter in parameters.values()]
            self._put(parameters, averaged)

    def __exit__(self, *error: object) -> None:
        if self.kept:
            self._put(self.training.optimiser.parameters, dict(zip(self.training.optimiser.parameters, self.kept)))

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        copy_(list(tensors.values()), [values[name] for name in tensors])


# settings whose fields are not those of a class
FREE_FORM = ("model.changes", "model.preprocessing", "objective.changes")


def snapshot(training: Training) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Copies of all that a checkpoint holds: groups of named tensors, as they lie, and the plain state."""
    groups = collect_tensors(training)
    tensors = {
        group: {
            name: tensor.clone() if is_dtensor(tensor) else tensor.to("cpu", copy=True)
            for name, tensor in named.items()
        }
        for group, named in groups.items()
    }
    return tensors, collect_state(training)


def collect_tensors(training: Training) -> dict[str, dict[str, Tensor]]:
    """Groups of all named tensors that a checkpoint holds: those with which the training computes, not copies."""
    groups = {"objective": training.trained.state_dict(), "optimiser": training.optimiser.tensors()}
    if training.average is not None:
        groups["average"] = training.average.tensors
    return {group: {name: named[name].detach() for name in sorted(named)} for group, named in groups.items()}


def collect_state(training: Training) -> dict[str, Any]:
    """Returns the plain values of a checkpoint."""
    return {
        "progress": asdict(training.progress),
        "steps": training.steps,
        "scaler": training.scaler.state_dict() if training.scaler is not None else None,
        "settings": identify(training.run),
        "images": {name: digest for name, digest in training.digests.items() if not name.startswith(UNTRAINED)},
    }


def restore(training: Training, saved: checkpoint.Checkpoint) -> None:
    """Puts ``training`` where the checkpoint was taken."""
    groups = saved.tensors or _read_own_part(training, saved)
    own = training.trained.state_dict()
    spread = {
        name: distribute_like(value, own[name]) if name in own else value for name, value in groups["objective"].items()
    }
    training.trained.load_state_dict(spread)
    training.optimiser.load_tensors(groups["optimiser"])
    if training.average is not None:
        for name, tensor in training.average.tensors.items():
            tensor.copy_(distribute_like(groups["average"][name], tensor))
    if training.scaler is not None:
        training.scaler.load_state_dict(saved.state["scaler"])
    training.progress, training.pending = Progress(**saved.state["progress"]), []
    training.refresh_compute_model()


def _read_own_part(training: Training, saved: checkpoint.Checkpoint) -> dict[str, dict[str, Tensor]]:
    """Returns the groups of a checkpoint of several ranks, spread as this training is: a rank reads no more than it holds."""
    from vitrail.runs.tensor_shards import list_tensors, read_shards

    assert saved.shards is not None
    groups = collect_tensors(training)
    groups["optimiser"] = {}
    for path, (shape, dtype) in list_tensors(saved.shards).items():
        group, _, name = path.partition("/")
        if group == "optimiser":  # which has no state yet
            like = training.optimiser.parameters[name.rpartition("/")[0]].detach()
            groups[group][name] = (
                torch.empty_like(like, dtype=dtype) if shape == like.shape else torch.empty(shape, dtype=dtype)
            )
    flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    read_shards(saved.shards, flat, training.ranks)
    return groups


def check_same_run(training: Training, saved: checkpoint.Checkpoint) -> None:
    """Raises `CheckpointError` with the differences if the checkpoint was saved by a run with other settings or images.

    Settings that only one of them has are those of another version of vitrail, except for fields of a model or an objective.
    """
    then, now = saved.state.get("settings", {}), identify(training.run)
    wrong = [
        f"{path}: {then.get(path)!r} when it was saved, {now.get(path)!r} in the run"
        for path in sorted(then.keys() | now.keys() if then else ())
        if then.get(path) != now.get(path) and ((path in then and path in now) or path.startswith(FREE_FORM))
    ]
    images = saved.state.get("images", {})
    if any(training.digests.get(name, digest) != digest for name, digest in images.items()):
        wrong.append("images: others than those of the run")
    if wrong:
        what = f"the checkpoint {saved.path} belongs to another run than {training.folder.path}"
        remedy = "put its own checkpoints and config.yaml back, or start a new run with another --out"
        raise CheckpointError(what, remedy, value="\n".join(wrong))


def resume(training: Training, saved: checkpoint.Checkpoint, say: Callable[[str], None]) -> None:
    """Continues from a checkpoint; says which damaged ones were skipped and what a longer schedule changes.

    Raises `CheckpointError` for a checkpoint of another run.
    """
    for line in saved.refused:
        say(f"skipped a damaged checkpoint: {line}")
    check_same_run(training, saved)
    restore(training, saved)
    run, step = training.run, saved.step
    before = saved.state.get("steps", training.steps)
    if step > training.steps:
        raise ConfigError(f"the run is at step {step}, beyond the requested {training.steps}", "train for more steps")
    rate = learning_rate(run.schedule, run.optim.lr, step, training.steps)
    say(f"resuming at step {step} of {training.steps}; learning rate {rate:.3g}")
    if before != training.steps:
        was = learning_rate(run.schedule, run.optim.lr, step, before)
        say(f"the schedule is stretched from {before} to {training.steps} steps: the rate at this step was {was:.3g}")
