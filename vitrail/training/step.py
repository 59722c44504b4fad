"""One update: a function of (run, weights, step number) and of nothing else.

B images of an update, K classes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from vitrail.config.units import largest_divisor
from vitrail.data.loader import Batch
from vitrail.errors import DivergedError, is_out_of_memory
from vitrail.files import dump_json, replace_file
from vitrail.objectives.gradient_cache import ContrastiveObjective, cached_backward
from vitrail.training.schedule import learning_rate
from vitrail.training.state import Training


def take_step(training: Training, batch: Batch) -> float:
    """One update from one batch; returns its loss. Progress is counted, the average follows."""
    run, progress = training.run, training.progress
    inputs = training.inputs(batch.to(training.device))
    rate = learning_rate(run.schedule, run.optim.lr, progress.step, training.steps)
    training.optimiser.set_rate(rate)
    measured = backward(training, inputs)
    loss = float(measured.pop("loss"))
    scaler = training.scaler
    if scaler is not None:
        for part in training.optimiser.parts:
            scaler.unscale_(part)
    norm = float(training.optimiser.gradient_norm())
    if not math.isfinite(loss) or (scaler is None and not math.isfinite(norm)):
        _raise_diverged(training, batch, loss, norm)
    if scaler is None:
        training.optimiser.step()
    else:
        # clipping spreads one part's overflow to the gradients of all parts: none of them takes this step
        for part in training.optimiser.parts if math.isfinite(norm) else ():
            scaler.step(part)
        scaler.update()
    if training.average is not None:
        training.average.update(training.optimiser.parameters, progress.step)
    progress.step += 1
    progress.images += len(inputs[0])
    training.objective.after_step(progress.step / training.steps)
    training.refresh_working()
    progress.add({"loss": loss, **{name: float(value) for name, value in measured.items()}})
    return loss


def backward(training: Training, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Accumulates the gradient of the batch's mean loss over micro-steps; returns that ``loss`` and what was measured.

    Each micro-step seeds torch's generator from (seed, step, micro-step), so dropout and drop path need no saved state.
    Out of memory takes the next smaller divisor of the batch, at most half, and starts the batch again.
    """
    micro = training.run.data.micro_batch or len(inputs[0])
    while True:
        try:
            return _backward(training, inputs, micro)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or micro == 1:
                raise
        micro = largest_divisor(training.run.data.batch, micro // 2)
        _shrink(training, micro)


def _backward(training: Training, inputs: tuple[Tensor, ...], micro: int) -> dict[str, Tensor]:
    training.optimiser.zero_grad()
    training.working.zero_grad(set_to_none=True)  # what an attempt that ran out of memory left
    images = len(inputs[0])
    if isinstance(training.working, ContrastiveObjective) and micro < images:
        return _backward_contrastive(training, training.working, inputs, micro)
    totals: dict[str, Tensor] = {}
    for count, chunk in enumerate(zip(*(tensor.split(micro) for tensor in inputs))):
        seed(training, count)
        with training.autocast:
            loss, measured = training.step_module(*chunk)
        share = len(chunk[0]) / images
        scale_loss(training, loss * share).backward()
        for name, value in {"loss": loss, **measured}.items():
            totals[name] = totals.get(name, 0) + value.detach() * share
        _collect_gradients(training)
    return totals


def _backward_contrastive(
    training: Training, objective: ContrastiveObjective, inputs: tuple[Tensor, ...], micro: int
) -> dict[str, Tensor]:
    """The same where images are compared with one another: the gradient of the whole batch, in the memory of a micro-step."""
    with training.autocast:
        loss, measured = cached_backward(
            objective, inputs, micro, seed=partial(seed, training), scale=partial(scale_loss, training)
        )
    _collect_gradients(training)
    return {"loss": loss, **measured}


def seed(training: Training, count: int) -> None:
    """Seeds torch's generator for micro-step number ``count``."""
    torch.manual_seed(_mix_seed(training.run.seed, training.progress.step, count))


def scale_loss(training: Training, loss: Tensor) -> Tensor:
    return loss if training.scaler is None else training.scaler.scale(loss)


def _mix_seed(seed: int, step: int, micro: int, rank: int = 0) -> int:
    """One 63-bit seed from four counters (the finaliser of splitmix64)."""
    value = 0
    for part in (seed, step, rank, micro):
        value = (value ^ part) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value >> 1


def _collect_gradients(training: Training) -> None:
    """Adds the working copy's gradients to those of the fp32 weights, and clears them."""
    if training.working is training.objective:
        return
    for master, worker in zip(training.objective.parameters(), training.working.parameters()):
        if worker.grad is not None:
            gradient = worker.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            worker.grad = None


def _shrink(training: Training, micro: int) -> None:
    run = training.run = replace(training.run, data=replace(training.run.data, micro_batch=micro))
    training.folder.write_config(run)
    training.folder.log(
        f"out of memory at step {training.progress.step}: {run.accumulate} micro-steps of {micro} images from here on; "
        "the run is no longer bit-comparable with one that never ran out"
    )
    if training.device.type == "cuda":
        torch.cuda.empty_cache()


def _raise_diverged(training: Training, batch: Batch, loss: float, norm: float) -> None:
    step = training.progress.step
    facts = {"step": step, "loss": str(loss), "gradient_norm": str(norm), "keys": batch.keys}
    replace_file(training.folder.path / "diverged.json", dump_json(facts))
    raise DivergedError(
        f"the loss is {loss} and the gradient's norm {norm} at step {step}; this update was not applied",
        f"lower --lr (now {training.run.optim.lr:g}) or set optim.clip=1; the batch is named in "
        f"{training.folder.path / 'diverged.json'}",
    )
