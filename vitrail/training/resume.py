"""Checkpoints of a training: taking one, and resuming from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from vitrail.config.schema import identify
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runs import checkpoint
from vitrail.runtime.distributed import gather_full, spread_like
from vitrail.training.schedule import learning_rate
from vitrail.training.state import Progress, Training

FREE_FORM = (
    "model.changes",
    "model.preprocessing",
    "objective.changes",
)  # settings whose fields are not those of a class


def snapshot(training: Training) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Copies of all that a checkpoint holds: groups of named tensors, whole ones, and the plain state."""
    groups = {"objective": training.trained.state_dict(), "optimiser": training.optimiser.tensors()}
    if training.average is not None:
        groups["average"] = training.average.tensors
    # in one order on all ranks, since each call gathers; that of a state that was loaded is the file's, which is arbitrary
    tensors = {
        group: {name: gather_full(named[name]).to("cpu", copy=True) for name in sorted(named)}
        for group, named in groups.items()
    }
    scaler = training.scaler.state_dict() if training.scaler is not None else None
    return tensors, {
        "progress": asdict(training.progress),
        "steps": training.steps,
        "scaler": scaler,
        "settings": identify(training.run),
        "images": dict(training.fingerprints),
    }


def restore(training: Training, saved: checkpoint.Checkpoint) -> None:
    """Puts ``training`` where the checkpoint was taken."""
    own = training.trained.state_dict()
    spread = {
        name: spread_like(value, own[name]) if name in own else value
        for name, value in saved.tensors["objective"].items()
    }
    training.trained.load_state_dict(spread)
    training.optimiser.load_tensors(saved.tensors["optimiser"])
    if training.average is not None:
        for name, tensor in training.average.tensors.items():
            tensor.copy_(spread_like(saved.tensors["average"][name], tensor))
    if training.scaler is not None:
        training.scaler.load_state_dict(saved.state["scaler"])
    training.progress = Progress(**saved.state["progress"])
    training.refresh_working()


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
    if saved.state.get("images", training.fingerprints) != training.fingerprints:
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
