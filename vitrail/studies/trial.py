"""Trains and evaluates one trial, measures attention, positions and shift equivariance, and stores a small result."""

from __future__ import annotations

import importlib.metadata
import math
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.analysis.embeddings import compute_neighbour_rate, compute_position_similarity, extract_position_embeddings
from vitrail.analysis.equivariance import measure_shift_response
from vitrail.analysis.head_statistics import HeadFigures, HeadStatistics
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source, Splits, take_part
from vitrail.errors import DivergedError
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.models import create_backbone
from vitrail.runtime.machine import describe
from vitrail.runtime.process import keep_generators
from vitrail.studies.design import SAMPLE
from vitrail.studies.plan import RUNS, Trial, TrialResult, write_result
from vitrail.training.prepare import Prepared
from vitrail.training.train import train

WATCHED = 128  # images, as in the paper (section 4.5: figure 11)
# of the distance of uniform attention, below and above which a head is called local and global
LOCAL, GLOBAL = 0.5, 0.9
SHIFTS = (1, 2, 4)  # pixels
CURVE = {"validation_accuracy": "val_top1", "validation_nll": "val_nll", "train_accuracy": "train_top1"}


@dataclass(frozen=True)
class Trainer:
    """Computes the trials of the study in ``folder``, and keeps the images over many of them."""

    folder: Path
    splits: Splits
    measure: tuple[str, ...]

    def compute(self, trial: Trial, rate: float, attempt: int) -> None:
        """Trains a trial at a learning rate and writes its result, which its settings alone determine: one that was stopped
        resumes from its last checkpoint to the same bits. A training that diverged is a result too.

        Raises the classes of `vitrail.errors`.
        """
        save = replace(trial.run.save, train_images=len(self.watched.val or ()))  # the curve watches as many of either
        run = replace(trial.run, optim=replace(trial.run.optim, lr=rate), save=save)
        started, place = time.perf_counter(), self.folder / RUNS / trial.key
        result = TrialResult(
            key=trial.key, kind=trial.kind, seed=run.seed, rate=rate, limit=int(run.data.limit or 0),
            steps=run.schedule.steps or 0, attempts=attempt, host=socket.gethostname(), device=describe(),
            version=importlib.metadata.version("vitrail"),
        )  # fmt: skip

        def keep(**figures: Any) -> None:
            write_result(self.folder, replace(result, **figures, seconds=time.perf_counter() - started))

        def end(prepared: Prepared) -> dict[str, float]:
            keep(**self._evaluate(trial, prepared))
            return {}

        try:
            train(run, out=place, data=self.watched, quiet=True, end=end)
        except DivergedError as error:
            keep(state="diverged", error=error.what)
        shutil.rmtree(place, ignore_errors=True)

    @cached_property
    def watched(self) -> Splits:
        """What a training sees: without the test images, and with `SAMPLE` validation images for the curve."""
        return replace(self.splits, val=_sample(self.splits.val, seed=0), test=None)

    def _evaluate(self, trial: Trial, prepared: Prepared) -> dict[str, Any]:
        """Returns the figures of a result."""
        training, built = prepared.training, prepared.built
        seed, train_images = training.run.seed, prepared.data.train
        assert self.splits.test is not None and self.splits.val is not None, "a study has all splits"
        final = trial.kind == "final"
        sources = {"validation": self.splits.val, "train": _sample(train_images, seed=seed)}
        evaluated = prepared.evaluate({**sources, **({"test": self.splits.test} if final else {})})
        figures = {name: each.metric.summarize() for name, each in evaluated.items()}
        right = evaluated["test" if final else "validation"].metric.samples()
        assert right is not None, "a classifier is right or wrong"
        return {
            **{name: {"accuracy": each["top1"], "nll": each["nll"]} for name, each in figures.items()},
            "limit": len(train_images),
            "right": right > 0.5,
            "curve": tuple(
                {"step": record["step"], **{name: record[column] for name, column in CURVE.items()}}
                for record in training.folder.metrics()
                if "val_top1" in record
            ),
            "flops": training.operations or 0.0,
            "macs6": 6.0 * (built.multiply_adds or 0) * training.steps * training.run.data.batch,
            "parameters": built.parameters,
            "findings": measure_findings(self.measure, built.model, self.splits.test, seed) if final else {},
        }


def _sample(source: Source | None, *, seed: int) -> Source:
    """Returns `SAMPLE` of the images, stratified; of training images those that its curve watches."""
    assert source is not None, "a study has all splits"
    return take_part(source, count=min(SAMPLE, len(source)), seed=seed)


@torch.inference_mode()
def measure_findings(measures: Sequence[str], model: Any, source: Source, seed: int) -> dict[str, Any]:
    """Returns the findings by measure, as far as the network has them; ``seed`` is that of its untrained twin."""
    found: dict[str, Any] = {}
    if not measures:
        return found
    has_heads = "heads" in measures and bool(model.attention_grids(model.preprocessing.size))
    batches = []
    if has_heads or "shifts" in measures:
        watched = source.subset(choose_evenly(len(source), WATCHED))
        batches = [images for _, images in read_inputs(model, watched, InferenceOptions(batch=32))]
    if has_heads:
        statistics = HeadStatistics(model)
        for images in batches:
            statistics.add(images)
        found["heads"] = summarise_heads(statistics.figures())
    if "positions" in measures and (excess := _compare_positions(model, seed)) is not None:
        found["positions"] = {"neighbour_excess": excess}
    if "shifts" in measures:
        found["shifts"] = _measure_shifts(model, torch.cat(batches))
    return found


def summarise_heads(layers: Sequence[HeadFigures]) -> dict[str, Any]:
    """Of the lowest third of the layers the ``share_mixed`` that has both local and global heads (section 4.5: "attention heads
    attend to most of the image already in the lowest layers ... other attention heads have consistently small attention
    distances"), and the ``share_local`` of their heads; and ``distance_by_depth``, Spearman's correlation of a layer's mean
    distance with its number.
    """
    from scipy.stats import spearmanr

    lowest = layers[: math.ceil(len(layers) / 3)]
    shares = [layer.distance / layer.uniform for layer in lowest]
    mixed = [bool((share < LOCAL).any() and (share > GLOBAL).any()) for share in shares]
    means = [float(layer.distance.mean()) for layer in layers]
    ordered = float(spearmanr(np.arange(len(means)), means).statistic) if len(set(means)) > 2 else None
    return {
        "share_mixed": sum(mixed) / len(mixed),
        "share_local": (torch.cat(shares) < LOCAL).double().mean().item(),
        **({} if ordered is None else {"distance_by_depth": ordered}),
        "layers": [{"distance": layer.distance.tolist(), "uniform": layer.uniform} for layer in layers],
    }


def _compare_positions(model: Any, seed: int) -> float | None:
    """Returns how much more often the most similar position of a patch is adjacent to it than in the untrained network; None for
    a network that adds no position embeddings.
    """
    with keep_generators():
        torch.manual_seed(seed)
        twin = create_backbone(model.config)
    trained, untrained = (extract_position_embeddings(each) for each in (model, twin))
    # in grids smaller than 3 x 3 most positions are adjacent
    if trained is None or untrained is None or min(trained.shape[:2]) < 3:
        return None
    of_both = (compute_neighbour_rate(compute_position_similarity(each)) for each in (trained, untrained))
    return next(of_both) - next(of_both)


def _measure_shifts(model: Any, images: Tensor) -> dict[str, float]:
    """For shifts by 1, 2 and 4 pixels, borders reflected: how far the features ``moved``, relative to the distance of different
    images, mean over the shifts.
    """
    room = F.pad(images, (0, max(SHIFTS), 0, max(SHIFTS)), mode="reflect")
    responses = measure_shift_response(model, room, SHIFTS).values()
    return {"moved": float(np.mean([each.moved / each.apart if each.apart else 0.0 for each in responses]))}
