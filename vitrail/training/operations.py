"""The floating-point operations of a whole training, counted without computing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from vitrail.models.cost import step_operations
from vitrail.objectives.contrastive import ContrastiveObjective, cached_backward
from vitrail.runtime.distributed import SINGLE
from vitrail.runtime.process import keep_generators
from vitrail.training.optimizer import find_head_names
from vitrail.training.state import Training

READ = 2  # images, from which the shapes of a batch are known: some objectives compare images


def run_operations(training: Training) -> float | None:
    """Counts the operations that all steps of a run execute, over all ranks: forward and backward passes of the objective as
    `step_operations` counts them, and those of a teacher, a momentum encoder or a tokenizer; not those of evaluations.

    Two images are read. None where the objective cannot be counted, because it looks at the values of tensors.
    """
    inputs = _read_inputs(training)
    try:
        counted = [_operations_an_update(training, inputs)]
        if share := training.run.model.head_first:
            counted.insert(0, _operations_an_update(training, inputs, head_only=True))
    except RuntimeError:
        return None
    frozen, size = training.inputs.frozen, (inputs[0].shape[-2], inputs[0].shape[-1])
    given = 0 if frozen is None else training.run.data.batch * frozen.operations(size)
    first = math.ceil(share * training.steps)  # steps in which the head learns alone
    return float(counted[0] * first + counted[-1] * (training.steps - first) + given * training.steps)


def _read_inputs(training: Training) -> tuple[Tensor, ...]:
    """Returns the inputs of the objective for a few images."""
    images = min(READ * training.run.data.repeats, training.run.data.batch)
    few = replace(training.batches, batch=images, workers=0, ranks=SINGLE)
    with keep_generators(), closing(few(0, 1)) as batches:
        return training.inputs(next(batches).to(training.device))


def _operations_an_update(training: Training, few: Sequence[Tensor], *, head_only: bool = False) -> int:
    """Counts one update, over its micro-steps and ranks; with ``head_only`` the backbone is left as it is."""
    data, ranks, objective = training.run.data, training.ranks, training.objective
    micro = min(data.micro_batch or data.batch, -(-data.batch // ranks.world))
    together = isinstance(objective, ContrastiveObjective) and micro < data.batch
    images = data.batch if together else micro
    inputs = [torch.empty((images, *part.shape[1:]), dtype=part.dtype, device="meta") for part in few]
    frozen = training.optimiser.parameters.keys() - find_head_names(objective) if head_only else ()
    if together:
        backward = partial(cached_backward, micro=micro, seed=lambda index: None)
        return step_operations(objective, inputs, backward=backward)
    return round(step_operations(objective, inputs, frozen=frozen) * data.batch / images)
