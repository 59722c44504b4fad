"""From a run as it was asked for to a training that can start: data, network, optimiser, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from vitrail.config.schema import Run
from vitrail.data.loader import Batch
from vitrail.objectives.objective import Objective
from vitrail.runs.folder import RunFolder
from vitrail.training.auto import len_in_steps
from vitrail.training.inputs import Feed
from vitrail.training.optimizer import Average, Optimiser, trainable
from vitrail.training.state import Training


def assemble(
    run: Run,
    objective: Objective,
    feed: Feed,
    *,
    batches: Callable[[int, int], Generator[Batch, None, None]],
    evaluate: Callable[[Callable[[], bool]], dict[str, float] | None],
    images: int,
    folder: RunFolder,
    device: torch.device,
    evaluate_first: bool = False,
) -> Training:
    """The `Training` of a settled run on so many ``images``."""
    parameters = trainable(objective, head_only=run.model.head_only)
    return Training(
        run=run,
        steps=len_in_steps(run, images) or 1_000_000,
        steps_an_epoch=images / run.data.batch,
        objective=objective,
        feed=feed,
        optimiser=Optimiser(objective, run.optim, parameters),
        average=Average(parameters, run.optim.ema) if run.optim.ema else None,
        batches=batches,
        evaluate=evaluate,
        folder=folder,
        device=device,
        evaluate_every=1,
        evaluate_first=evaluate_first,
        scaler=torch.amp.GradScaler(device.type) if run.compute.precision == "fp16" else None,
    )
