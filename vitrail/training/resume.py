"""Checkpoints of a training: taking one, and resuming from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vitrail.config.schema import identify
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runs import checkpoint
from vitrail.runtime.distributed import is_spread, spread_like
from vitrail.training.binding import UNTRAINED
from vitrail.training.schedule import learning_rate
from vitrail.training.state import Progress, Training

FREE_FORM = (
    "model.changes",
    "model.preprocessing",
    "objective.changes",
)  # settings whose fields are not those of a class


def snapshot(training: Training) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Copies of all that a checkpoint holds: groups of named tensors, as they lie, and the plain state."""
    groups = collect_tensors(training)
    tensors = {
        group: {
            name: tensor.clone() if is_spread(tensor) else tensor.to("cpu", copy=True) for name, tensor in named.items()
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
        name: spread_like(value, own[name]) if name in own else value for name, value in groups["objective"].items()
    }
    training.trained.load_state_dict(spread)
    training.optimiser.load_tensors(groups["optimiser"])
    if training.average is not None:
        for name, tensor in training.average.tensors.items():
            tensor.copy_(spread_like(groups["average"][name], tensor))
    if training.scaler is not None:
        training.scaler.load_state_dict(saved.state["scaler"])
    training.progress, training.unread = Progress(**saved.state["progress"]), []
    training.refresh_working()


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
