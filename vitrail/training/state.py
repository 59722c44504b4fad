"""The state of a training between two steps, what a checkpoint holds of it, and how a run goes on from one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
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
from vitrail.training.callbacks import Callback
from vitrail.training.data import UNTRAINED, TrainingBatches
from vitrail.training.inputs import Inputs
from vitrail.training.optimizer import Average, Optimiser, find_head_names
from vitrail.training.schedule import learning_rate
from vitrail.training.validation import Validator

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass
class Progress:
    """What a checkpoint holds beside tensors; all of it is a function of the run and the step."""

    step: int = 0
    images: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # of what was measured since the last line of metrics.jsonl
    count: int = 0
    evaluated: int = -1  # the last step that was evaluated
    metrics_bytes: int = 0
    best: float | None = None  # the first figure of the best evaluation, where the run asks for it, and its step
    best_step: int = -1
    compared: int = 0  # evaluations
    waited: int = 0  # since the best one

    def add(self, measured: Mapping[str, float]) -> None:
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in measured.items()}
        self.count += 1

    def take_means(self) -> dict[str, float]:
        """Returns the means over the steps since the last call."""
        means = {name: total / self.count for name, total in self.sums.items()}
        self.sums, self.count = {}, 0
        return means


@dataclass(frozen=True)
class PendingMetrics:
    """The metrics of a step: scalars that stay on the device until they are read."""

    step: int
    keys: list[str]  # of the images, by which a divergence is reported
    measured: Mapping[str, Tensor]  # "loss" first
    norm: Tensor


@dataclass
class Training:
    """Everything a run works with, made by `training.prepare`.

    ``run`` is resolved. It is the only copy of the settings, because running out of memory makes the micro-batch smaller.

    ``objective`` is evaluated and saved. The optimiser updates ``trained``: the same module or, on several ranks, a copy whose
    parameters are `DTensor`. ``compute_model`` computes the gradients: ``trained``, or its copy in bf16.
    """

    run: Run
    steps: int
    objective: Objective
    trained: Objective
    inputs: Inputs
    optimiser: Optimiser
    average: Average | None
    batches: TrainingBatches
    validator: Validator
    folder: RunFolder
    device: torch.device
    scaler: torch.amp.GradScaler  # enabled for fp16
    ranks: Ranks = SINGLE
    evaluate_first: bool = False  # before the first step too
    operations: float | None = None  # floating-point operations of all steps, where they can be counted
    digests: Mapping[str, str] = field(default_factory=dict)  # of the data, see `fingerprint_data`
    progress: Progress = field(default_factory=Progress)
    pending: list[PendingMetrics] = field(default_factory=list)
    loss: float = math.nan  # of the last step that was read
    evaluated: Mapping[str, float] = field(default_factory=dict)  # the figures of the last evaluation
    callbacks: Sequence[Callback] = ()
    model: Any = None  # what callbacks are given
    warned: bool = False  # of a collapse
    best: dict[str, Tensor] = field(default_factory=dict)  # of the best evaluation, as `collect_evaluated` has them

    def __post_init__(self) -> None:
        self.saver = BackgroundSaver(self.ranks)
        # the optimiser, the average and the checkpoints see the fp32 weights
        copied = self.run.compute.precision == "bf16-weights" and self.ranks.is_single
        if copied and any(isinstance(module, BATCH_NORMS) for module in self.trained.modules()):
            what = "precision bf16-weights keeps no running statistics of batch norms, which the registered model has"
            raise ConfigError(what, "use --precision bf16")
        self.compute_model = copy.deepcopy(self.trained).to(torch.bfloat16) if copied else self.trained
        compiled = self.run.compute.compile and self.ranks.is_single  # a parallel model is compiled block by block
        self.compiled = torch.compile(self.compute_model) if compiled else self.compute_model

    def freeze_backbone(self) -> None:
        """Freezes the backbone as long as only the head is trained (`ModelSettings.head_first`); call before each step."""
        if share := self.run.model.head_first:
            for parameter in self.trained_backbone:
                parameter.requires_grad_(self.progress.step >= share * self.steps)

    @cached_property
    def trained_backbone(self) -> list[nn.Parameter]:
        """The trained parameters of the compute model except for those of the head."""
        names = self.optimiser.parameters.keys() - find_head_names(self.trained)
        return [parameter for name, parameter in self.compute_model.named_parameters() if name in names]

    @cached_property
    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """All parameters of ``trained`` by name."""
        return dict(self.trained.named_parameters())

    @property
    def defers(self) -> bool:
        """Whether metrics are read only when a step is logged, so that the host does not wait for the GPU in each step.

        Ranks exchange the loss of each step anyway, and the scaler of fp16 reads each norm.
        """
        return self.device.type == "cuda" and self.ranks.is_single and not self.scaler.is_enabled()

    @property
    def steps_an_epoch(self) -> float:
        return len(self.batches.data.train) / self.run.data.batch

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
        """Copies the weights into the compute model."""
        if self.compute_model is not self.trained:
            copied, own = ([*model.parameters(), *model.buffers()] for model in (self.compute_model, self.trained))
            copy_(copied, own)


def collect_averaged(training: Training) -> dict[str, Tensor]:
    """Returns the trained weights in the form for inference, by name, that are averaged by the run or by the objective."""
    averaged, source = {} if training.average is None else training.average.tensors, training.trained.evaluated
    if source != "encoder":
        slow = training.trained.get_submodule(source).named_parameters()
        named = {f"encoder.{name}": weight.detach() for name, weight in slow}
        averaged = averaged | {name: weight for name, weight in named.items() if name in training.optimiser.parameters}
    return averaged


def collect_evaluated(training: Training) -> dict[str, Tensor]:
    """Returns copies of all tensors for inference that training changes, by name."""
    tensors = {**training.trained.state_dict(), **collect_averaged(training)}
    changing = training.optimiser.parameters.keys() | dict(training.trained.named_buffers()).keys()
    return {name: tensor.detach().clone() for name, tensor in tensors.items() if name in changing}


@contextmanager
def use_average(training: Training, *, best: bool = False) -> Iterator[None]:
    """Inside, the objective has the weights for inference: averaged if the run or the objective averages, and whole on every
    rank. With ``best`` they are those of the best evaluation, where they were kept.
    """
    averaged = training.best if best and training.best else collect_averaged(training)
    if training.trained is not training.objective:
        weights = {**training.trained.state_dict(), **averaged}
        _load(training.objective.state_dict(), {name: gather_full(tensor) for name, tensor in weights.items()})
        yield
        return
    own = training.trained.state_dict() if averaged else {}
    before = {name: own[name].detach().clone() for name in averaged}
    _load(own, averaged)
    try:
        yield
    finally:
        _load(own, before)


@torch.no_grad()
def _load(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    if values:
        copy_([tensors[name] for name in values], list(values.values()))


# settings whose fields are not those of a class
FREE_FORM = ("model.changes", "model.preprocessing", "objective.changes", "objective.class_weights.", "optim.groups.")


def snapshot(training: Training) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Returns copies of the tensors and of the plain state of a checkpoint; shards stay on their device."""
    groups = collect_tensors(training)
    for tensors in groups.values():
        for name, tensor in tensors.items():
            tensors[name] = tensor.clone() if is_dtensor(tensor) else tensor.to("cpu", copy=True)
    return groups, collect_state(training)


def collect_tensors(training: Training) -> dict[str, dict[str, Tensor]]:
    """Returns the tensors of a checkpoint by group and name; they share the memory of ``training``."""
    objective = training.trained.state_dict()
    if training.run.model.adapters.rank:
        frozen = list_frozen(training)
        objective = {name: tensor for name, tensor in objective.items() if name not in frozen}
    groups = {"objective": objective, "optimiser": training.optimiser.tensors()}
    if training.average is not None:
        groups["average"] = training.average.tensors
    if training.best:
        groups["best"] = training.best
    return {group: {name: named[name].detach() for name in sorted(named)} for group, named in groups.items()}


def list_frozen(training: Training) -> dict[str, Tensor]:
    """Returns the weights of the encoder that are not trained, by name.

    With adapters a resumed run reads them from ``model.init``.
    """
    named, trained = training.trained.named_parameters(), training.optimiser.parameters
    return {name: weight.detach() for name, weight in named if name.startswith("encoder.") and name not in trained}


def collect_state(training: Training) -> dict[str, Any]:
    """Returns the plain values of a checkpoint."""
    return {
        "progress": asdict(training.progress),
        "steps": training.steps,
        "scaler": training.scaler.state_dict() or None,
        "settings": identify(training.run),
        "images": {name: digest for name, digest in training.digests.items() if not name.startswith(UNTRAINED)},
    }


def restore(training: Training, saved: checkpoint.Checkpoint) -> None:
    """Restores the state that a checkpoint was taken of."""
    groups = saved.tensors or _read_own_part(training, saved)
    own = training.trained.state_dict()
    weights = {
        name: distribute_like(value, own[name]) if name in own else value for name, value in groups["objective"].items()
    }
    if training.run.model.adapters.rank:
        weights = list_frozen(training) | weights
    training.trained.load_state_dict(weights)
    training.optimiser.load_tensors(groups["optimiser"])
    if training.average is not None:
        for name, tensor in training.average.tensors.items():
            tensor.copy_(distribute_like(groups["average"][name], tensor))
    save, kept = training.run.save, groups.get("best", {})
    training.best = {name: distribute_like(value, own[name]) for name, value in kept.items() if save.best}
    if training.scaler.is_enabled():
        training.scaler.load_state_dict(saved.state["scaler"])
    training.progress, training.pending = Progress(**saved.state["progress"]), []
    is_kept = bool(training.best) if save.best else save.patience is not None
    if training.progress.best is not None and not is_kept:  # it was not asked for then, or is no longer
        training.progress = replace(training.progress, best=None, best_step=-1, compared=0, waited=0)
    if training.steps > saved.state.get("steps", training.steps):
        training.progress.waited = 0
    training.refresh_compute_model()


def _read_own_part(training: Training, saved: checkpoint.Checkpoint) -> dict[str, dict[str, Tensor]]:
    """Returns the groups of a checkpoint of several ranks, sharded as ``training`` is: a rank reads only its own part."""
    from vitrail.runs.tensor_shards import list_tensors, read_shards

    assert saved.shards is not None
    groups = collect_tensors(training)
    groups["optimiser"], own = {}, training.trained.state_dict()
    for path, (shape, dtype) in list_tensors(saved.shards).items():
        group, _, name = path.partition("/")
        if group == "optimiser":  # which has no state yet
            like = training.optimiser.parameters[name.rpartition("/")[0]].detach()
            like = like if shape == like.shape else torch.empty(shape)
            groups[group][name] = torch.empty_like(like, dtype=dtype)
        elif group == "best":
            groups.setdefault(group, {})[name] = torch.empty_like(own[name])
    flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    read_shards(saved.shards, flat, training.ranks)
    return groups


def check_same_run(training: Training, saved: checkpoint.Checkpoint) -> None:
    """Raises `CheckpointError` with the differences if the checkpoint was saved by a run with other settings or images.

    Settings that only one of them has belong to another version of vitrail, except for fields of a model or an objective.
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


def resume(training: Training, saved: checkpoint.Checkpoint, log: Callable[[str], None]) -> None:
    """Continues from a checkpoint; logs which damaged ones were skipped. Raises `CheckpointError` for one of another run."""
    for line in saved.refused:
        log(f"skipped a damaged checkpoint: {line}")
    check_same_run(training, saved)
    restore(training, saved)
    run, step = training.run, saved.step
    before = saved.state.get("steps", training.steps)
    if step > training.steps:
        raise ConfigError(
            f"the run is at step {step}, beyond the requested {training.steps}",
            "train for more steps, or choose another --out",
        )
    rate = learning_rate(run.schedule, run.optim.lr, step, training.steps)
    log(f"resuming at step {step} of {training.steps}; learning rate {rate:.3g}")
    if before != training.steps:
        was = learning_rate(run.schedule, run.optim.lr, step, before)
        log(f"the schedule is stretched from {before} to {training.steps} steps: the rate at this step was {was:.3g}")
