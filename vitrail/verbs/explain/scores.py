"""How well the methods of `vitrail explain` explain a model: by deletion and insertion (--faithfulness), or by how much of its
attention lies inside the objects of images (--masks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.explanation import METHODS, NEEDS_ATTENTION, OF_PREDICTIONS, ExplainOptions, resolve_options
from vitrail.analysis.faithfulness import BASELINE, Faithfulness, compare
from vitrail.analysis.localisation import find_mask, measure_shares, read_mask
from vitrail.data.imagenet import index_classes
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.intervals import paired_difference
from vitrail.files import dump_json, make_folder, replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.inference.results import open_inputs
from vitrail.runtime.device import in_precision
from vitrail.runtime.progress import LogFunction, ProgressBar, to_stderr
from vitrail.tables import open_table
from vitrail.tasks import Task
from vitrail.text import plural
from vitrail.verbs.explain.write import prepare_inputs

Gain = tuple[float, float, float]  # a mean difference and the ends of its interval
OVERLAP = " overlap"  # after the name of a method, in rows


@dataclass(frozen=True)
class MethodScore:
    """The faithfulness of a method: areas of deletion (less is better) and insertion (more is better).

    A gain is how much they differ from those of random maps, with the ends of a 95 % bootstrap interval over images. A single
    image has no interval, and the random maps no difference.
    """

    HEAD: ClassVar = ("method", "deletion", "against random", "insertion", "against random")

    method: str
    deletion: float
    insertion: float
    deletion_gain: Gain | None
    insertion_gain: Gain | None

    def row(self) -> tuple[str, ...]:
        """Returns the cells of a table below `HEAD`."""
        deletion, insertion = (_format_gain(gain, 4) for gain in (self.deletion_gain, self.insertion_gain))
        return self.method, f"{self.deletion:.4f}", deletion, f"{self.insertion:.4f}", insertion

    def figures(self) -> dict[str, float]:
        """Flat, for JSON: ``rollout_deletion``, ``rollout_deletion_gain``, its ends ``..._low`` and ``..._high``, and so on."""
        flat = {f"{self.method}_deletion": self.deletion, f"{self.method}_insertion": self.insertion}
        flat |= _name_gain(f"{self.method}_deletion", self.deletion_gain)
        return flat | _name_gain(f"{self.method}_insertion", self.insertion_gain)


def _format_gain(gain: Gain | None, digits: int) -> str:
    if gain is None:
        return ""
    mean, low, high = (f"{value:+.{digits}f}" for value in gain)
    return f"{mean} [{low}, {high}]"


def _name_gain(name: str, gain: Gain | None) -> dict[str, float]:
    return dict(zip((f"{name}_gain", f"{name}_gain_low", f"{name}_gain_high"), gain or ()))


def measure_faithfulness(
    model: str | Path | Task,
    inputs: Sequence[str],
    *,
    options: ExplainOptions = ExplainOptions(),
    steps: int = 14,
    draws: int = 2,
    inference: InferenceOptions = InferenceOptions(),
    log: LogFunction = to_stderr,
) -> tuple[int, list[MethodScore]]:
    """Returns how many images every method was evaluated on by deletion and insertion, and the scores.

    The curves have ``steps`` steps, fewer where the maps have fewer cells; there are ``draws`` random maps of each image.
    """
    task = inference.load(model, log)
    if not task.answers_classes:
        what = f"faithfulness is measured by the probability of a class, and the task of the model is {task.name}"
        raise ConfigError(what, "take a classifier")
    resolve_options(task, ExplainOptions(method="occlusion", layer=options.layer, target=options.target))
    source = open_inputs(inputs, "evaluated", log)
    has_attention = bool(task.attention_grids(task.preprocessing.size))
    methods = [name for name in OF_PREDICTIONS if has_attention or name not in NEEDS_ATTENTION]
    bad = inference.record_bad(source)
    curves: dict[str, list[tuple[float, float]]] = {}
    with ProgressBar("evaluating methods", len(source), quiet=inference.quiet) as show:
        for number, (_, prepared) in enumerate(prepare_inputs(task, source, bad, inference.max_pixels)):
            how = {"steps": steps, "draws": draws, "batch": inference.batch, "seed": number}
            with in_precision(inference.precision, prepared.images.device):
                compared = _compare_methods(task, prepared.images, methods, options, **how)
            for name, faithful in compared.items():
                curves.setdefault(name, []).append((float(faithful.deletion_area), float(faithful.insertion_area)))
            show.update(number + 1)
    if not curves:
        raise DataError("none of the images could be read", "see `vitrail data check`")
    return len(curves[BASELINE]), [_compute_score(name, curves) for name in curves]


def _compare_methods(
    model: Task, images: Tensor, methods: Sequence[str], options: ExplainOptions, *, batch: int, **how: int
) -> dict[str, Faithfulness]:
    """Returns the curves of every method for one image."""
    if options.target is None:
        with torch.no_grad():
            targets = model.backbone(images).argmax(1)
    else:
        targets = torch.tensor([index_classes(model.classes)[options.target]])
    heats = {name: METHODS[name](model, images, targets, options, batch) for name in methods}
    return compare(model, images, heats, targets, batch=batch, **how)


def _compute_score(name: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> MethodScore:
    own, random = np.array(curves[name]), np.array(curves[BASELINE])  # (N, 2)
    has_interval = name != BASELINE and len(own) > 1
    gains = [paired_difference(own[:, axis], random[:, axis]) if has_interval else None for axis in (0, 1)]
    return MethodScore(name, *own.mean(0).tolist(), *gains)


@dataclass(frozen=True)
class MaskScore:
    """The share of a method's attention that lies inside masks: its mean over images, and in how many it exceeds the area.

    ``gain`` is by how much it exceeds the share of the area, with the ends of a 95 % bootstrap interval; a single image has
    none. ``overlap`` is the mean of `compute_overlap`.
    """

    HEAD: ClassVar = ("method", "inside", "against area", "images above area", "overlap")

    method: str
    inside: float
    gain: Gain | None
    above: float
    overlap: float

    def row(self) -> tuple[str, ...]:
        """Returns the cells of a table below `HEAD`."""
        return self.method, f"{self.inside:.3f}", _format_gain(self.gain, 3), f"{self.above:.0%}", f"{self.overlap:.3f}"


@dataclass(frozen=True)
class Localisation:
    """The result of `measure_localisation`.

    Args:
        area: mean share of the model's input that the masks cover, the expected share of a map that ignores the image.
        scores: of each method of `measure_shares`.
        rows: for each image ``path``, ``area``, the share of each method, and the overlap of its mask as ``METHOD overlap``.
    """

    CLAIM: ClassVar = (
        "the model attends to regions that are semantically relevant (rollout lies in the masks, section 4.5)"
    )

    area: float
    scores: Sequence[MaskScore]
    rows: Sequence[dict[str, Any]] = field(repr=False)

    @property
    def holds(self) -> bool | None:
        """Whether `CLAIM` holds: the interval of rollout is above the area, not above it; None if it contains it."""
        gain = next(score.gain for score in self.scores if score.method == "rollout")
        if gain is None or gain[1] <= 0 <= gain[2]:
            return None
        return gain[1] > 0

    def figures(self) -> dict[str, Any]:
        """Flat, for JSON: ``images``, ``area``, ``rollout_inside``, ``rollout_gain``, its ends ``..._low`` and ``..._high``."""
        flat: dict[str, Any] = {"images": len(self.rows), "area": self.area, "holds": self.holds}
        for score in self.scores:
            name = score.method.replace(" ", "_")
            flat |= {f"{name}_inside": score.inside, f"{name}_above": score.above}
            flat |= {f"{name}_overlap": score.overlap, **_name_gain(name, score.gain)}
        # JSON has no NaN: a share that no image has is null
        return {name: None if value != value else value for name, value in flat.items()}


def measure_localisation(
    model: str | Path | Task,
    inputs: Sequence[str],
    masks: Path,
    *,
    out: Path | None = None,
    inference: InferenceOptions = InferenceOptions(),
    log: LogFunction = to_stderr,
) -> Localisation:
    """Measures every layer and method on all images that have a mask in the folder ``masks``, see `find_mask`.

    An image whose mask covers nothing or everything of what the model sees is left out, as is one without a mask.
    """
    task = inference.load(model, log)
    resolve_options(task, ExplainOptions(method="rollout"))
    source = open_inputs(inputs, "measured", log)
    found = _find_masks(masks, [str(key) for key in source.keys])
    if out is not None:
        make_folder(out)
    have = np.flatnonzero([str(key) in found for key in source.keys])
    if len(have) < len(source):
        log(f"{plural(len(source) - len(have), 'image')} without a mask in {masks} left out")
    source, rows = source.subset(have), []
    bad = inference.record_bad(source)
    trivial = 0
    with ProgressBar("measuring", len(source), quiet=inference.quiet) as show:
        for number, (place, prepared) in enumerate(prepare_inputs(task, source, bad, inference.max_pixels), 1):
            key = str(source.keys[place])
            mask = read_mask(found[key], prepared.picture.shape[:2], task.preprocessing)
            if 0 < float(mask.mean()) < 1:
                with in_precision(inference.precision, prepared.images.device):
                    measured = measure_shares(task, prepared.images, mask)
                row: dict[str, Any] = {"path": key, "area": float(mask.double().mean())}
                for name, (inside, overlap) in measured.items():
                    row |= {name: inside, f"{name}{OVERLAP}": overlap}
                rows.append(row)
            else:
                trivial += 1
            show.update(number)
    if trivial:
        log(f"{plural(trivial, 'image')} left out: the mask covers nothing or everything of what the model sees")
    if not rows:
        what = "no image with a mask could be measured"
        raise DataError(what, "see `vitrail data check`, and the sizes of the objects")
    result = _summarise_shares(rows)
    if out is not None:
        with open_table(out / "masks.csv") as write:
            for row in rows:
                write({name: value if isinstance(value, str) else round(value, 6) for name, value in row.items()})
        replace_file(out / "masks.json", dump_json(result.figures()))
    return result


def _find_masks(folder: Path, keys: Sequence[str]) -> dict[str, Path]:
    """Returns the mask of each image that has one."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder of masks", "give one with a PNG for each image, by the image's name")
    found = {key: path for key in keys if (path := find_mask(folder, key)) is not None}
    if not found:
        what = f"none of {plural(len(keys), 'image')} has a mask in {folder}"
        raise DataError(what, f"name masks as their images: {Path(keys[0]).stem}.png" if keys else "")
    taken: dict[Path, str] = {}
    for key, path in found.items():
        if taken.setdefault(path, key) != key:
            what = f"the mask {path} stands for {taken[path]} and {key}"
            raise ConfigError(what, "put masks into subfolders named as those of the images")
    return found


def _summarise_shares(rows: Sequence[dict[str, Any]]) -> Localisation:
    areas = np.array([row["area"] for row in rows])
    scores = []
    for method in (name.removesuffix(OVERLAP) for name in rows[0] if name.endswith(OVERLAP)):
        shares = np.array([row[method] for row in rows])
        known = np.isfinite(shares)  # a map of zeros, as the gradient of a saturated answer, is nowhere
        own, chance = shares[known], areas[known]
        gain = paired_difference(own, chance) if len(own) > 1 else None
        inside, above = (float(own.mean()), float((own > chance).mean())) if len(own) else (math.nan, math.nan)
        overlap = float(np.nanmean([row[method + OVERLAP] for row in rows])) if len(own) else math.nan
        scores.append(MaskScore(method, inside, gain, above, overlap))
    return Localisation(float(areas.mean()), scores, rows)
