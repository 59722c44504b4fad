"""`vitrail explain --faithfulness`: which method explains the predictions of a model best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.explanation import METHODS, NEEDS_ATTENTION, ExplainOptions, resolve_options
from vitrail.analysis.faithfulness import BASELINE, Faithfulness, compare
from vitrail.data.imagenet import index_classes
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.intervals import paired_difference
from vitrail.inference.inputs import find_inputs
from vitrail.inference.options import InferenceOptions
from vitrail.runtime.precision import in_precision
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks import Task
from vitrail.verbs.explain.pictures import prepare_inputs


@dataclass(frozen=True)
class MethodScore:
    """The faithfulness of a method: areas of deletion (less is better) and insertion (more is better),
    and by how much they differ from those of random maps, with the ends of a 95 % bootstrap interval over images. A single
    image has no interval, and the random maps no difference.
    """

    HEAD: ClassVar = ("method", "deletion", "against random", "insertion", "against random")

    method: str
    deletion: float
    insertion: float
    deletion_gain: tuple[float, float, float] | None
    insertion_gain: tuple[float, float, float] | None

    def row(self) -> tuple[str, ...]:
        """Returns the cells of a table below `HEAD`."""
        gains = (
            "" if gain is None else "{:+.4f} [{:+.4f}, {:+.4f}]".format(*gain)
            for gain in (self.deletion_gain, self.insertion_gain)
        )
        return self.method, f"{self.deletion:.4f}", next(gains), f"{self.insertion:.4f}", next(gains)

    def figures(self) -> dict[str, float]:
        """Flat, for JSON: ``rollout_deletion``, ``rollout_deletion_gain``, its ends ``..._low`` and ``..._high``, and so on."""
        flat = {f"{self.method}_deletion": self.deletion, f"{self.method}_insertion": self.insertion}
        for name, gain in (("deletion", self.deletion_gain), ("insertion", self.insertion_gain)):
            if gain is not None:
                ends = ("gain", "gain_low", "gain_high")
                flat |= {f"{self.method}_{name}_{end}": value for end, value in zip(ends, gain)}
        return flat


def measure_faithfulness(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    options: ExplainOptions = ExplainOptions(),
    steps: int = 14,
    draws: int = 2,
    classes: Path | None = None,
    inference: InferenceOptions = InferenceOptions(),
    say: Say = to_stderr,
) -> tuple[int, list[MethodScore]]:
    """Returns every method judged on the same images by deletion and insertion; how many images, and the scores.

    Args:
        steps: of the curves; fewer where the maps have fewer cells.
        draws: random maps of each image.
    """
    task = inference.load(model, classes, say)
    if not task.answers_classes:
        what = f"faithfulness is measured by the probability of a class, and the task of the model is {task.name}"
        raise ConfigError(what, "take a classifier")
    resolve_options(task, ExplainOptions(method="occlusion", layer=options.layer, target=options.target))
    source = find_inputs(inputs).source
    has_attention = bool(task.attention_grids(task.preprocessing.size))
    methods = [name for name in METHODS if has_attention or name not in NEEDS_ATTENTION]
    bad = inference.record_bad(source)
    curves: dict[str, list[tuple[float, float]]] = {}
    with ProgressBar("evaluating methods", len(source), quiet=inference.quiet) as show:
        for number, (_, prepared) in enumerate(prepare_inputs(task, source, bad, inference.max_pixels)):
            with in_precision(inference.precision, prepared.images.device):
                curves_of_image = _compare_methods(
                    task, prepared.images, methods, options, steps, draws, inference.batch, seed=number
                )
            for name, faithful in curves_of_image.items():
                curves.setdefault(name, []).append((float(faithful.deletion_area), float(faithful.insertion_area)))
            show.update(number + 1)
    if not curves:
        raise DataError("none of the images could be read", "see `vitrail data check`")
    return len(curves[BASELINE]), [_score(name, curves) for name in curves]


def _compare_methods(
    model: Task,
    images: Tensor,
    methods: Sequence[str],
    options: ExplainOptions,
    steps: int,
    draws: int,
    batch: int,
    seed: int,
) -> dict[str, Faithfulness]:
    """Returns the curves of every method for one image, of at most ``steps`` steps."""
    if options.target is None:
        with torch.no_grad():
            targets = model(images).argmax(1)
    else:
        targets = torch.tensor([index_classes(model.classes)[options.target]])
    heats = {name: METHODS[name](model, images, targets, options, batch) for name in methods}
    return compare(model, images, heats, targets, steps=steps, draws=draws, batch=batch, seed=seed)


def _score(name: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> MethodScore:
    own, random = np.array(curves[name]), np.array(curves[BASELINE])  # (N, 2)
    has_interval = name != BASELINE and len(own) > 1
    gains = [paired_difference(own[:, axis], random[:, axis]) if has_interval else None for axis in (0, 1)]
    return MethodScore(name, *own.mean(0).tolist(), *gains)
