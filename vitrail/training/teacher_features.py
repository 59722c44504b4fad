"""What a teacher of features gives before the first step: the bank that images are compared with and, where augmentation does no
more than flip images, its outputs for all of them.

n images, m of them computed, G features of the teacher, K values of its output.
"""

from __future__ import annotations

import math
import time
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
from vitrail.training.frozen_networks import FeatureTeacher
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
    seen: float,
    *,
    is_trial: bool,
    quiet: bool,
    log: LogFunction,
) -> ViewInputs:
    """Fills the bank of ``objective``, and returns its inputs, with a cache of the teacher's outputs where that saves time.

    Args:
        student: whose preprocessing the images get, as in a step.
        seen: number of images that all steps take.
        is_trial: for a dry run, compute a few images and estimate the time of all.

    Raises `DataError` if too many images are bad.
    """
    run, source, teacher, policy = batches.run, batches.source, inputs.frozen, inputs.augmented.policy
    assert isinstance(teacher, FeatureTeacher)
    size, width = objective.bank.shape
    sides, values = 1 + (policy.flip > 0), width + math.prod(teacher.grid) * teacher.model.backbone.width
    entries = sides * len(source)
    cached = (
        policy.only_flips
        and batches.data.transform is None
        and seen > entries
        and entries * values * torch.float16.itemsize <= CACHE_BYTES
    )
    chosen = np.sort(permutation(run.seed, 0, len(source), stream="bank")[:size])
    rows = chosen[:TRIED] if is_trial else np.arange(len(source)) if cached else chosen
    started = time.perf_counter()
    how = {"sides": sides if cached else 1, "keep": values if cached else width}
    good, outputs = compute_outputs(teacher, batches, student, rows, quiet=quiet, **how)
    seconds = (time.perf_counter() - started) / len(rows) * (len(source) if cached else size)
    places = np.full(len(source), -1)
    places[good] = np.arange(len(good))
    known = places[chosen][places[chosen] >= 0]
    # bad images leave their places to good ones, so that the size of the bank depends on the settings alone
    uniformity = float(objective.fill_bank(outputs[0, known[np.arange(size) % len(known)], :width]))
    held = f", and its outputs for {plural(entries, 'view')}, which augmentation only flips" if cached else ""
    log(f"bank     the teacher's features of {plural(size, 'image')}{held}, computed in {duration(seconds)}")
    if uniformity > BLUNT and not is_trial:
        what = f"the teacher finds all images about equally alike ({uniformity:.2f} of the largest entropy)"
        log(f"warning  {what}: set objective.changes={{temperature: ...}} below {objective.temperature:g}")
    if len(source) < FEW:
        log(f"note     no gain by distillation is known below {FEW:,} images, and there are {len(source):,}")
    if not cached:
        return inputs
    places = np.arange(len(source)) % len(good) if is_trial else places
    return replace(inputs, cache=TeacherCache(values=outputs, places=places, policy=policy, seed=run.seed))


@torch.inference_mode()
def compute_outputs(
    teacher: FeatureTeacher,
    batches: TrainingBatches,
    student: Task,
    rows: NDArray[np.int64],
    *,
    sides: int,
    keep: int,
    quiet: bool,
) -> tuple[NDArray[np.int64], Tensor]:
    """Returns which of the images ``rows`` are good, (m,), and the first ``keep`` values K of the teacher's outputs for them as
    the student sees them, (sides, m, K) float16; the second of two sides is flipped. Each rank computes some of the batches.

    Raises `DataError` if no image is good.
    """
    ranks, bad = batches.ranks, batches.data.bad
    options = replace(read_options(batches.run), quiet=quiet)

    def compute(images: Tensor) -> Tensor:
        views = [images, images.flip(3)][:sides]
        return torch.stack([teacher(view)[:, :keep] for view in views], 1)  # (B, sides, K)

    own = rows[rows_of_rank(len(rows), options.batch, ranks)]
    part, noted = batches.source.subset(own), {}
    found, outputs = [np.zeros(0, np.int64)], [torch.zeros(0, sides, keep, dtype=torch.float16)]
    shown = {"processes": ranks.world, "quiet": quiet}
    with (
        ranks.share_errors(),
        eval_mode(student),
        ProgressBar("outputs of the teacher", len(rows), **shown) as progress,
    ):
        how = {"bad": bad if ranks.is_single else noted.__setitem__, "progress": progress}
        for batch, computed in run_model(student, part, options, verb=compute, **how):
            found.append(own[batch.ids[:, 1]])
            outputs.append(computed.to("cpu", torch.float16))
    share_bad_images(noted, batches.source, bad, ranks)
    gathered = ranks.gather((np.concatenate(found), torch.cat(outputs)))
    good = np.concatenate([rows for rows, _ in gathered])
    if not len(good):
        raise ranks.collective_error(DataError("no image could be read", "see `vitrail data check`"))
    return good, torch.cat([part for _, part in gathered]).transpose(0, 1)
