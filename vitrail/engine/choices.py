"""Every automatic choice of a run but the steps that a length of time buys (`engine.budget`): made once, and said aloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Literal

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.source import Source
from vitrail.engine.machine import cores
from vitrail.engine.recipes import RECIPES
from vitrail.engine.reporting.wording import plural
from vitrail.engine.run import Run, largest_divisor
from vitrail.engine.smallest import model_for_images
from vitrail.errors import ConfigError
from vitrail.models import Config

Say = Callable[[str], None]
# fields of configs that leave what a network answers as it is
ONLY_TRAINING = ("drop_path", "dropout", "attention_dropout", "patch_dropout", "checkpoint")


def choose_model(run: Run, size: tuple[int, int], images: int) -> Run:
    """``run`` with a network: the one that it names, or one that follows the pictures' size and number."""
    if run.model.name is not None:
        return run
    name, changes = model_for_images(size, images=images)
    return replace(run, model=replace(run.model, name=name, changes={**changes, **run.model.changes}))


def without_foreign_changes(run: Run, config: Config, say: Say) -> Run:
    """``run`` without what its recipe changes in a ViT and the network of ``config`` has no field for.

    What a person asked for stays, and is refused by name where it cannot be meant.
    """
    known = {field.name: getattr(config, field.name) for field in fields(config)}
    # a field of the same name may be another thing: positions are a choice in a ViT, and a yes or no in BEiT
    foreign = [
        name
        for name in _of_recipe(run)
        if name not in known or isinstance(known[name], bool) != isinstance(run.model.changes[name], bool)
    ]
    return _without(run, foreign, f"which {config.about} does not have", say)


def without_another_network(run: Run, say: Say) -> Run:
    """``run``, which starts from weights, without what its recipe makes of a fresh network: these bring their own."""
    return _without(run, [name for name in _of_recipe(run) if name not in ONLY_TRAINING], "which the weights say", say)


def without_what_was_left_out(run: Run, stored: Run) -> Run:
    """``run`` without what its recipe changes in a network and ``stored``, as it began, does not."""
    left_out = [name for name in _of_recipe(run) if name not in stored.model.changes]
    return _without(run, left_out, "which the run began without", lambda line: None)


def _of_recipe(run: Run) -> list[str]:
    """Names of what the recipe changes in the network, where the run has it so."""
    changes = RECIPES[run.recipe].run.model.changes if run.recipe in RECIPES else {}
    return [name for name, value in run.model.changes.items() if name in changes and changes[name] == value]


def _without(run: Run, names: Sequence[str], why: str, say: Say) -> Run:
    if not names:
        return run
    say(f"recipe   {run.recipe} changes {', '.join(names)}, {why}: left out")
    kept = {name: value for name, value in run.model.changes.items() if name not in names}
    return replace(run, model=replace(run.model, changes=kept))


def settle(
    run: Run, preprocessing: Preprocessing, train: Source, device: torch.device, say: Say, *, width: int, saved: float
) -> Run:
    """``run`` with nothing automatic left in it but the length that ``schedule.time`` buys.

    Args:
        width: of the network.
        saved: bytes of activations that one image leaves for the backward pass.
    """
    compute, data, model = run.compute, run.data, run.model
    precision = compute.precision or default_precision(device, width)
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("fp16 training needs a GPU", "use --precision bf16 or fp32")
    compute = replace(
        compute,
        device=str(device),
        precision=precision,
        compile=compute.compile if compute.compile is not None else device.type == "cuda",
        threads=compute.threads or cores(),
    )
    files = train.kind == "files"
    workers = data.workers if data.workers is not None else (max((compute.threads or 1) - 1, 1) if files else 0)
    data = replace(
        data,
        micro_batch=data.micro_batch or default_micro_batch(saved, data.batch, device),
        workers=workers,
        channels=preprocessing.channels,
    )
    steps = len_in_steps(run, len(train))
    save = replace(run.save, log_every=run.save.log_every or (max(1, min(50, steps // 100)) if steps else 10))
    loss = run.objective.loss or ("sigmoid" if train.multi_label else "softmax")
    model = replace(model, size=preprocessing.size)
    run = replace(run, compute=compute, data=data, model=model, save=save, objective=replace(run.objective, loss=loss))
    say(
        f"compute  {device}, {precision}, compile {'on' if compute.compile else 'off'}, "
        f"{plural(compute.threads or 1, 'thread')}, {plural(workers, 'worker')}, "
        f"batch {data.batch} = {run.accumulate} x {data.micro_batch}"
    )
    return run


def find_device(name: str | None) -> torch.device:
    """The device asked for, else cuda, mps or cpu, whichever is there first. Raises `ConfigError`."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return torch.device(next(kind for kind, present in there.items() if present))
    if not there.get(name.split(":")[0], False):
        present = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise ConfigError(f"the device {name!r} is not on this machine", f"choose one of: {present}")
    return torch.device(name)


def default_precision(device: torch.device, width: int) -> Literal["fp32", "bf16", "fp16"]:
    """bf16 where the hardware multiplies it natively and the network is wide enough to gain; see docs/decisions.md."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu" and torch.cpu._is_avx512_bf16_supported() and width >= 128:
        return "bf16"
    return "fp32"


def default_micro_batch(saved: float, batch: int, device: torch.device) -> int:
    """The largest divisor of ``batch`` whose saved activations stay under 6 GB on a CPU; on a GPU the whole batch is tried."""
    if device.type == "cuda":
        return batch
    return largest_divisor(batch, int(6e9 // saved))


def len_in_steps(run: Run, images: int) -> int:
    """Updates in the run; 0 where only a measurement can tell (``schedule.time``)."""
    schedule = run.schedule
    if schedule.steps is not None:
        return schedule.steps
    if schedule.epochs is None:
        return 0
    return TrainStream(images=images, batch=run.data.batch, seed=run.seed).steps_for(schedule.epochs)
