"""One update: a function of (run, weights, step number) and of nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from vitrail.config.units import largest_divisor
from vitrail.data.loader import Batch
from vitrail.errors import ConfigError, DivergedError, is_out_of_memory
from vitrail.files import dump_json, replace_file
from vitrail.objectives.contrastive import ContrastiveObjective, cached_backward
from vitrail.runtime.distributed import collect_gradients
from vitrail.torch_private import multiply_
from vitrail.training.schedule import learning_rate
from vitrail.training.state import PendingMetrics, Training


def take_step(training: Training, batch: Batch) -> float:
    """Makes one update; returns the loss of the last step that was read, which is this one unless the training defers."""
    run, progress, optimiser, scaler = training.run, training.progress, training.optimiser, training.scaler
    inputs = training.inputs(batch.to(training.device))
    optimiser.set_rate(learning_rate(run.schedule, run.optim.lr, progress.step, training.steps))
    measured, images = add_over_ranks(training, backward(training, inputs), len(inputs[0]))
    if any(value.ndim for value in measured.values()):
        measured = training.trained.summarise(measured)
    for part in optimiser.parts:
        scaler.unscale_(part)
    norm = optimiser.gradient_norm()
    measured = {name: value.detach() for name, value in measured.items()}
    training.pending.append(PendingMetrics(progress.step, batch.keys[batch.halo :], measured, norm))
    if not training.defers:
        read_pending(training)
    # clipping spreads one part's overflow to the gradients of all parts: none of them takes this step
    if not scaler.is_enabled() or math.isfinite(float(norm)):
        for part in optimiser.parts:
            scaler.step(part)
    scaler.update()
    if training.average is not None:
        training.average.update(optimiser.parameters, progress.step)
    progress.step += 1
    progress.images += images
    training.trained.after_step(progress.step / training.steps)
    training.refresh_compute_model()
    return training.loss


def read_pending(training: Training) -> None:
    """Adds the pending metrics to the progress. Raises `DivergedError` if a loss is not finite."""
    pending, training.pending = training.pending, []
    for metrics in pending:
        measured = {name: float(value) for name, value in metrics.measured.items()}
        training.loss, norm = measured["loss"], float(metrics.norm)
        if not math.isfinite(training.loss) or not (training.scaler.is_enabled() or math.isfinite(norm)):
            _raise_diverged(training, metrics, norm)
        training.progress.add(measured)


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
            smaller = largest_divisor(training.run.data.batch, min(micro, len(inputs[0])) // 2)
            if not training.ranks.is_single:  # the others are in the middle of an exchange
                what = f"out of memory with micro-batches of {min(micro, len(inputs[0]))} images on this rank"
                raise ConfigError(what, f"resume with --set data.micro_batch={smaller}") from error
        micro = smaller
        run = training.run = replace(training.run, data=replace(training.run.data, micro_batch=micro))
        training.folder.write_config(run)
        training.folder.log(
            f"out of memory at step {training.progress.step}: {run.accumulate} micro-steps of {micro} images from here on; "
            "the run is no longer bit-comparable with one that never ran out"
        )
        if training.device.type == "cuda":
            torch.cuda.empty_cache()


def _backward(training: Training, inputs: tuple[Tensor, ...], micro: int) -> dict[str, Tensor]:
    training.optimiser.zero_grad()
    training.compute_model.zero_grad(set_to_none=True)  # left by an attempt that ran out of memory
    ranks, images = training.ranks, len(inputs[0]) if training.ranks.is_single else training.run.data.batch
    objective, is_cut = training.compute_model, micro < images or not ranks.is_single
    if isinstance(objective, ContrastiveObjective) and objective.compares_images and is_cut:
        return _backward_contrastive(training, objective, inputs, micro)
    totals: dict[str, Tensor] = {}
    micro_batches = split_batch(training, inputs, micro)
    for count, (chunk, counted) in enumerate(micro_batches):
        seed(training, ranks.rank * len(micro_batches) + count)
        if not ranks.is_single and training.run.compute.parallel == "replicate":
            # once an update; the gradients of shards are exchanged at once, since whole ones would not fit in memory
            training.trained.set_requires_gradient_sync(count == len(micro_batches) - 1)  # type: ignore[attr-defined]
        with training.autocast:
            loss, measured = training.compiled(*chunk)
        share = counted / images
        training.scaler.scale(loss * share).backward()
        for name, value in {"loss": loss, **measured}.items():
            totals[name] = totals.get(name, 0) + value.detach() * share
        _collect_gradients(training)
    return totals


def split_batch(training: Training, inputs: tuple[Tensor, ...], micro: int) -> list[tuple[tuple[Tensor, ...], int]]:
    """Returns the micro-batches of this rank's part of a batch, and the number of images that count in each.

    All ranks have the same number of micro-batches, because collectives need all ranks. Where bad images leave too few for that,
    an image is repeated, and does not count.
    """
    ranks, images = training.ranks, len(inputs[0])
    if ranks.is_single:
        return [(chunk, len(chunk[0])) for chunk in zip(*(tensor.split(micro) for tensor in inputs))]
    batch = training.run.data.batch
    smaller, larger = batch // ranks.world, -(-batch // ranks.world)  # parts of a batch
    steps = min(-(-larger // micro), smaller)
    micro_batches = list(zip(*(tensor.tensor_split(steps) for tensor in inputs)))
    blank = tuple(tensor[:1] for tensor in inputs)
    assert images, "the loader refuses a part without a good image"
    return [(chunk, len(chunk[0])) if len(chunk[0]) else (blank, 0) for chunk in micro_batches]


@torch.no_grad()
def add_over_ranks(training: Training, measured: dict[str, Tensor], images: int) -> tuple[dict[str, Tensor], int]:
    """Returns the means over the images of all ranks, and the number of these images.

    The parts are weighted for a whole batch; where images were bad, means and gradients are scaled to those that are left.
    """
    ranks = training.ranks
    if ranks.is_single:
        return measured, images
    parts = [value.float().cpu() for value in measured.values()] + [torch.tensor(float(images))]
    added = ranks.add(torch.cat([part.flatten() for part in parts])).split([part.numel() for part in parts])
    *means, total = (values.view(part.shape) for values, part in zip(added, parts))
    batch = training.run.data.batch
    if total != batch:
        gradients = [p.grad for p in training.optimiser.parameters.values() if p.grad is not None]
        multiply_(gradients, batch / float(total))
        means = [mean * (batch / total) for mean in means]
    return dict(zip(measured, means)), int(total)


def _backward_contrastive(
    training: Training, objective: ContrastiveObjective, inputs: tuple[Tensor, ...], micro: int
) -> dict[str, Tensor]:
    """Computes, where images are compared with one another, the gradient of the whole batch, in the memory of a micro-step."""
    ranks, batch = training.ranks, training.run.data.batch
    (total,) = (len(inputs[0]),) if ranks.is_single else ranks.add(torch.tensor([len(inputs[0])])).tolist()
    # `add_over_ranks` weights for a whole batch: this loss is one of all images that are there
    missing, share = (1.0, 1.0) if ranks.is_single else (total / batch, len(inputs[0]) / batch)
    with training.autocast:
        loss, measured = cached_backward(
            objective,
            inputs,
            micro,
            seed=partial(seed, training),
            scale=lambda loss: training.scaler.scale(loss * missing),
            ranks=ranks,
        )
    _collect_gradients(training)
    return {name: value * share for name, value in {"loss": loss, **measured}.items()}


def seed(training: Training, count: int) -> None:
    """Seeds torch's generator for micro-step number ``count`` with 63 bits from the counters (the finaliser of splitmix64)."""
    value = 0
    for part in (training.run.seed, training.progress.step, 0, count):
        value = (value ^ part) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    torch.manual_seed(value >> 1)


def _collect_gradients(training: Training) -> None:
    """Moves the gradients to where the optimiser takes them: from a bf16 copy to the fp32 weights, from `DTensor` to plain."""
    if not training.ranks.is_single:
        collect_gradients(training.optimiser.parameters, training.trained_parameters)
    if training.compute_model is training.trained:
        return
    for master, worker in zip(training.trained.parameters(), training.compute_model.parameters()):
        if worker.grad is not None:
            gradient = worker.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            worker.grad = None


def _raise_diverged(training: Training, metrics: PendingMetrics, norm: float) -> None:
    step, loss, ranks = metrics.step, training.loss, training.ranks
    keys = [key for part in ranks.gather(metrics.keys) for key in part]
    facts = {"step": step, "loss": str(loss), "gradient_norm": str(norm), "keys": keys}
    seen = "this update was not applied" if step == training.progress.step else "nothing was saved since"
    if ranks.first:
        replace_file(training.folder.path / "diverged.json", dump_json(facts))
    error = DivergedError(
        f"the loss is {loss} and the gradient's norm {norm} at step {step}; {seen}",
        f"lower --lr (now {training.run.optim.lr:g}) or set optim.clip=1; the batch is named in "
        f"{training.folder.path / 'diverged.json'}",
    )
    raise ranks.collective_error(error)
