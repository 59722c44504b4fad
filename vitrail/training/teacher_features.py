"""What a teacher of features gives before the first step: the bank that images are compared with and, where augmentation does no
more than flip images, its outputs for all of them.

n images, m of them good, K values of a teacher's output.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.rng import permutation
from vitrail.errors import DataError
from vitrail.inference.outputs import rows_of_rank, run_model, share_bad_images
from vitrail.models.backbone import eval_mode
from vitrail.objectives.features import FeatureDistillation
from vitrail.runtime.progress import LogFunction, ProgressBar, duration
from vitrail.tasks.task import Task
from vitrail.text import plural
from vitrail.training.data import TrainingBatches
from vitrail.training.frozen_networks import FeatureTeacher, apply_in_chunks
from vitrail.training.inputs import TeacherCache, ViewInputs
from vitrail.training.validation import read_options

CACHE_BYTES = 4 << 30  # of memory that the outputs of a teacher may take
TRIED = 64  # images of a dry run
BLUNT = 0.95  # uniformity of the bank above which a teacher tells images apart too little
FEW = 2_000  # images below which no gain by distillation is known


def prepare_teacher(
    objective: FeatureDistillation,
    inputs: ViewInputs,
    batches: TrainingBatches,
    student: Task,
    *,
    is_trial: bool,
    quiet: bool,
    log: LogFunction,
) -> ViewInputs:
    """Fills the bank of ``objective``, and returns its inputs, with a cache in place of the teacher if a single process trains,
    the policy only flips images, and the outputs fit; whatever the length of the run, so that it is resumed as it began.

    Args:
        student: whose preprocessing the images get.
        is_trial: for a dry run, compute a few images and estimate the time of all.

    Raises `DataError` if too many images are bad.
    """
    run, source, teacher, policy = batches.run, batches.source, inputs.frozen, inputs.augmented.policy
    assert isinstance(teacher, FeatureTeacher)
    size, width = objective.bank.shape
    rows = np.sort(permutation(run.seed, 0, len(source), stream="bank")[:size])
    tried, started = rows[:TRIED] if is_trial else rows, time.perf_counter()
    bank = compute_bank(teacher, batches, student, tried, quiet=quiet)[:, :width]
    seconds = (time.perf_counter() - started) / len(tried)
    # bad images leave their places to good ones, so that the size of the bank depends on the settings alone
    uniformity = float(objective.fill_bank(bank[torch.arange(size) % len(bank)]))
    log(f"bank     the teacher's features of {plural(size, 'image')}, computed in {duration(seconds * size)}")
    if uniformity > BLUNT and not is_trial:
        what = f"the teacher finds all images about equally alike ({uniformity:.2f} of the largest entropy)"
        log(f"warning  {what}: set objective.changes={{temperature: ...}} below {objective.temperature:g}")
    if len(source) < FEW:
        log(f"note     no gain by distillation is known below {FEW:,} images, and there are {len(source):,}")
    views = len(source) * (1 + (policy.flip > 0))
    values = width + math.prod(teacher.grid) * teacher.model.backbone.width
    fits = views * values * torch.float16.itemsize <= CACHE_BYTES
    if not (fits and policy.only_flips and batches.data.transform is None and batches.ranks.is_single):
        return inputs
    log(
        f"cache    the teacher's outputs for {plural(views, 'view')} are computed once, in about {duration(seconds * views)}"
    )
    cache = fill_cache(inputs, batches, values, most=TRIED if is_trial else len(source), quiet=quiet)
    return replace(inputs, frozen=None, cache=cache)


@torch.inference_mode()
def compute_bank(
    teacher: FeatureTeacher, batches: TrainingBatches, student: Task, rows: NDArray[np.int64], *, quiet: bool
) -> Tensor:
    """Returns the teacher's outputs (m, K) for those of the images ``rows`` that are good, as the student evaluates them. Each
    rank computes some of the batches.

    Raises `DataError` if no image is good.
    """
    ranks, bad = batches.ranks, batches.data.bad
    options, noted, parts = replace(read_options(batches.run), quiet=quiet), {}, []
    own = batches.source.subset(rows[rows_of_rank(len(rows), options.batch, ranks)])
    shown = {"processes": ranks.world, "quiet": quiet}
    with ranks.share_errors(), eval_mode(student), ProgressBar("bank of the teacher", len(rows), **shown) as progress:
        how = {"bad": bad if ranks.is_single else noted.__setitem__, "progress": progress}
        for _, outputs in run_model(student, own, options, verb=teacher, **how):
            parts.append(outputs.cpu())
    share_bad_images(noted, batches.source, bad, ranks)
    found = [part for gathered in ranks.gather(parts) for part in gathered]
    if not found:
        raise ranks.collective_error(DataError("no image could be read", "see `vitrail data check`"))
    return torch.cat(found)


@torch.inference_mode()
def fill_cache(inputs: ViewInputs, batches: TrainingBatches, values: int, *, most: int, quiet: bool) -> TeacherCache:
    """Computes the teacher's outputs, K ``values`` each, for the images of an epoch as steps read them, flipped and not; for a
    trial only for ``most`` of them, which then stand for all.
    """
    made, source, teacher = inputs.augmented, batches.source, inputs.frozen
    assert teacher is not None
    plain, sides = replace(made.policy, flip=0.0), 1 + (made.policy.flip > 0)
    # with repeats an epoch would not have all images
    once = replace(batches.run, augment=plain, data=replace(batches.run.data, repeats=1))
    read = replace(batches, run=once, batch=min(batches.batch, len(source)))
    outputs, places = torch.empty(sides, most, values, dtype=torch.float16), np.full(len(source), -1)
    known = 0
    steps = closing(read(0, -(-len(source) // read.batch)))
    with steps as step_batches, ProgressBar("outputs of the teacher", most, quiet=quiet) as progress:
        for batch in step_batches:
            fresh = np.flatnonzero(places[batch.ids[:, 1]] < 0)[: most - known]
            if not len(fresh):
                break
            images, _ = replace(made, policy=plain)(batch.to(batches.device))
            chosen = images[torch.from_numpy(fresh).to(images.device)]
            for side, view in enumerate((chosen, chosen.flip(3))[:sides]):
                outputs[side, known : known + len(fresh)] = apply_in_chunks(teacher, view).cpu()
            places[batch.ids[fresh, 1]] = np.arange(known, known + len(fresh))
            known += len(fresh)
            progress.update(known)
    if most < len(source):
        places = np.arange(len(source)) % known
    return TeacherCache(values=outputs, places=places, policy=made.policy, seed=batches.run.seed)
