"""Evaluates a model on a source: outputs batch by batch, the metric of its task over all of them, and the figures of a split
with their intervals.

N images, K classes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loader import Bad, stop_at_bad
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.evaluation.intervals import bound_percentiles, draw_weights, estimate_interval, paired_difference
from vitrail.files import replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import Change, rows_of_rank, run_model, share_bad_images
from vitrail.models.backbone import eval_mode
from vitrail.rows import Scores, Table
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.progress import ProgressBar
from vitrail.tasks.metric import Metric, Targets
from vitrail.tasks.task import Task, choose_windows
from vitrail.text import escape_formula


@dataclass(frozen=True, repr=False)
class EvaluationResult(Scores):
    """The result of evaluating a model on one split; ``metric`` is what the task kept of its images.

    ``seed`` draws the resamples of the interval; ``further`` figures come from elsewhere.
    """

    split: str
    classes: tuple[str, ...]
    metric: Metric
    seed: int = 0
    further: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def figures(self) -> dict[str, float]:
        """Every figure, the most important one first, and the 95 % intervals of those that have one, as ``ap_low``."""
        figures = self.metric.compute()
        samples, first = self.metric.samples(), next(iter(figures))
        if samples is not None:
            figures |= name_ends(first, estimate_interval(samples, seed=self.seed))
        else:
            for name, values in self.resampled.items():
                figures |= name_ends(name, bound_percentiles(values))
        return {**figures, "images": len(self.metric.keys), **self.further}

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """Figures in samples of the images with replacement, (R,) each; empty where the metric has none."""
        weights = draw_weights(len(self.metric.keys), seed=self.seed, resamples=self.metric.resamples)
        parts = [self.metric.resample(part) for part in weights]
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def difference(self, other: EvaluationResult) -> dict[str, float]:
        """Returns by how much figures with an interval exceed those of ``other``, with the 95 % interval of the difference.

        Both are resampled together, as they were evaluated on the same images. An interval without 0 is a significant
        difference.

        Raises:
            ConfigError: they were evaluated on other images, or in another order.
        """
        if self.keys != other.keys:
            raise ConfigError("the two were not evaluated on the same images", "evaluate both on the same split")
        name = next(iter(self.figures))
        own, theirs = self.metric.samples(), other.metric.samples()
        if own is not None and theirs is not None:
            mean, *ends = paired_difference(own, theirs, seed=self.seed)
            return {name: mean, **name_ends(name, ends)}
        drawn = replace(other, seed=self.seed).resampled  # the same samples of the images
        differences: dict[str, float] = {}
        for name, values in self.resampled.items():
            differences[name] = self.figures[name] - other.figures[name]
            differences |= name_ends(name, bound_percentiles(values - drawn[name]))
        return differences

    def to_dict(self) -> dict[str, Any]:
        """Returns the split and every figure; one that is undefined, as the AP of sizes without objects, is None."""
        defined = {name: None if math.isnan(value) else value for name, value in self.figures.items()}
        return {"split": self.split, **defined}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the images (N,)."""
        return tuple(self.metric.keys)

    @property
    def predictions(self) -> Table:
        """A row for each image: ``path``, ``true``, ``label`` and ``score``; empty for tasks whose answers are no classes."""
        return Table(self.metric.answers())

    def per_class(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Returns a table: its head, and a row for each class; empty where the task has none."""
        return self.metric.table()


def write_predictions(path: Path, metric: Metric) -> None:
    """Writes `Metric.answers` as CSV, where there are any. Raises `DiskError`."""
    if rows := metric.answers():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(
                escape_formula(value) if isinstance(value, str) else f"{value:.6g}" for value in row.values()
            )
        replace_file(path, text.getvalue())


def name_ends(name: str, ends: Sequence[float]) -> dict[str, float]:
    """Returns the ends of an interval under the name of its figure."""
    return {f"{name}_low": ends[0], f"{name}_high": ends[1]}


def compute_metric(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    bad: Bad = stop_at_bad,
    change: Change | None = None,
    among: Tensor | None = None,
    shift: Tensor | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_outputs: Callable[[Tensor, Targets], None] | None = None,
    progress: ProgressBar | None = None,
    ranks: Ranks = SINGLE,
) -> Metric | None:
    """Returns the metric of ``model``'s task over ``source``; None if ``stopped`` returned True on the way.

    Of several ranks each computes some of the batches, and calls ``stopped`` as often as the others; all of them get the
    metric and the bad images that one process gets, and the error of any.

    Args:
        bad: called with the key of each bad image and the reason.
        change: applied to the pictures before they are normalised, such as a corruption.
        among: (K,) true for the classes that can be predicted; None is all.
        shift: (K,) added to the logits of every image; None is nothing.
        on_outputs: called with the outputs and targets of every batch.

    Raises:
        DataError: no image could be evaluated.
    """
    size = options.batch if choose_windows(model, options.zoom) is None else 1
    rows = rows_of_rank(len(source), size, ranks)
    own = source if ranks.is_single else source.subset(rows)
    noted: dict[str, str] = {}
    computed: list[tuple[int, Metric, tuple[Tensor, Targets] | None]] = []  # of every batch, with its first row
    failure: VitrailError | None = None
    with eval_mode(model):
        on_bad = bad if ranks.is_single else noted.__setitem__
        batches = run_model(model, own, options, bad=on_bad, change=change, progress=progress)
        for _ in range(-(-len(range(0, len(source), size)) // ranks.world)):
            following = None
            try:
                following = next(batches, None)
            except VitrailError as error:
                failure = error
            if stopped():
                return None
            if following is None:  # the rest of this rank's batches had no good image
                continue
            batch, outputs = following
            if shift is not None or among is not None:
                outputs = outputs.clone()  # beside logits it may have what tells images unlike those of the training
            if shift is not None:
                outputs[:, : len(shift)] += shift.to(outputs.device)
            if among is not None:
                outputs[:, : len(among)].masked_fill_(~among.to(outputs.device), -torch.inf)
            metric = model.metric(source)
            metric.update(outputs, batch.targets, batch.keys, batch.frames)
            kept = None if on_outputs is None else (outputs.cpu(), batch.targets)
            computed.append((int(rows[batch.ids[0, 1]]), metric, kept))
    with ranks.share_errors():
        if failure is not None:
            raise failure
    share_bad_images(noted, source, bad, ranks)
    total = model.metric(source)
    for _, metric, kept in sorted((batch for each in ranks.gather(computed) for batch in each), key=itemgetter(0)):
        total.merge(metric)
        if on_outputs is not None and kept is not None:
            on_outputs(*kept)
    if not total.keys:
        what = "no image could be evaluated: the split is empty or all of it is bad"
        raise ranks.collective_error(DataError(what, "see `vitrail data check`"))
    return total


def evaluate_model(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    split: str,
    seed: int = 0,
    ranks: Ranks = SINGLE,
    **how: Any,
) -> EvaluationResult:
    """Returns every figure of ``model`` on ``source``; ``how`` are further arguments of `compute_metric`.

    Raises:
        DataError: an empty or unlabelled source.
    """
    if not source.labelled:
        what = f"the split {split!r} has no labels"
        raise ranks.collective_error(DataError(what, "use `vitrail predict` for unlabelled images"))
    model.targets.check(source, model.name)
    metric = compute_metric(model, source, options, ranks=ranks, **how)
    assert metric is not None
    return EvaluationResult(split, model.classes, metric, seed)
