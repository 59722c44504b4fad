"""The report of a classifier: what only classifiers have, above all the most confident mistakes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.analysis.attention import attention_map, compute_reach
from vitrail.analysis.render import to_thumbnail
from vitrail.data.sources.source import Source
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.markup import Markup
from vitrail.models import device_of
from vitrail.reports import training_curves as curves
from vitrail.reports.charts import reliability_chart
from vitrail.reports.data_uris import Picture, data_uri, overlay_attention, photograph
from vitrail.reports.facts import SPLITS, EvaluatedRun, RunFacts, list_classes
from vitrail.reports.metric_names import METRICS, short_percent
from vitrail.reports.page import Cell, Table
from vitrail.reports.supervised import (
    SORTED,
    describe_confusion,
    draw_interval,
    list_tiles,
    warn_of_few,
    write_supervised,
)
from vitrail.tasks.task import Task
from vitrail.tasks.user_images import to_pixels
from vitrail.text import percent, plural

MISCALIBRATED = 0.15  # expected calibration error
OTHERS = ("top5", "f1_macro", "f1_micro", "nll", "ece", "brier")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A misclassified image: uint8 (H, W[, C]) and, if known, its attention map (gh, gw). The map covers ``reach`` times the
    height and width of the image.
    """

    key: str
    true: str
    predicted: str
    confidence: float
    picture: np.ndarray
    attention: np.ndarray | None = None
    reach: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class ClassificationFacts(RunFacts):
    """The data about a classifier; only ``title``, ``classes`` and ``metric`` are required.

    ``metric``, a `ClassMetric` or for multi-label tasks a `LabelMetric`, was computed on ``split``. ``figures`` has ``top1`` (or
    ``map``) with the ends of its confidence interval, ``top1_low`` and ``top1_high``, and those of ``top5 nll ece brier f1_macro
    f1_micro`` that are known; shares are fractions. ``class_counts`` are the images per class (K,) of each split.
    """

    classes: Sequence[str]
    metric: Any
    class_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    split: str = "val"
    figures: Mapping[str, float] = field(default_factory=dict)
    multi_label: bool = False
    mistakes: Sequence[Mistake] = ()

    @property
    def split_name(self) -> str:
        return SPLITS.get(self.split, self.split)


def describe(run: EvaluatedRun) -> ClassificationFacts:
    """Returns the facts of the card, and of the report but for the mistakes."""
    result = run.result
    return ClassificationFacts(
        **run.facts,
        classes=result.classes,
        class_counts={name: part.counts().tolist() for name, part in run.splits.items()},
        split=result.split,
        figures=result.figures,
        multi_label=run.model.multi_label,
        metric=result.metric,
    )


def find_mistakes(model: Task, source: Source, result: EvaluationResult, most: int = 12) -> tuple[Mistake, ...]:
    """Returns the misclassified images with the highest confidence, each with the attention map of the last layer."""
    rows = {key: row for row, key in enumerate(map(str, source.keys))}
    mistakes = []
    for index in result.metric.worst(most):  # type: ignore[missing-attribute]
        key = result.keys[index]
        pixels = to_pixels(source.read(rows[key]).content, model.preprocessing)
        picture = model.preprocessing.picture(pixels)  # (C, h, w)
        attention, reach = last_attention(model, picture)
        true, predicted, confidence = result.metric.describe(index)  # type: ignore[missing-attribute]
        mistakes.append(
            Mistake(
                key=key,
                true=true,
                predicted=predicted,
                confidence=confidence,
                picture=to_thumbnail(picture),
                attention=attention,
                reach=reach,
            )
        )
    return tuple(mistakes)


def last_attention(model: Task, picture: np.ndarray) -> tuple[np.ndarray | None, tuple[float, float]]:
    """Returns the attention map of the last layer, (h, w) or None without attention, and its `compute_reach`."""
    size = picture.shape[1], picture.shape[2]
    if not (grids := model.attention_grids(size)):
        return None, (1.0, 1.0)
    images = model.preprocessing.normalise(torch.from_numpy(picture)[None].to(device_of(model)))
    attention = attention_map(model, images)[0].cpu().numpy()
    return attention, compute_reach(attention.shape, grids[-1].cell, size)


def write_report(folder: Path, facts: ClassificationFacts) -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page.

    Raises `DiskError` if the folder cannot be written.
    """
    calibration, confusion = facts.metric.calibration, None
    if not facts.multi_label and len(facts.classes) >= 2:
        confusion = describe_confusion(facts.metric.confusion, facts.classes)
    reliability = reliability_chart(calibration)
    best = ("val_map", METRICS["map"].label) if facts.multi_label else ("val_top1", "validation accuracy")
    return write_supervised(
        folder,
        facts,
        facts.figures,
        "classification.html",
        plot_curves(facts.records),
        task={"Classes": list_classes(facts.classes)},
        warnings=warn(facts),
        best=curves.best(facts.records, *best),
        figure=explain(facts),
        confusion=confusion,
        classes=list_scores(facts),
        mistakes=[(mistake, *show(mistake)) for mistake in facts.mistakes],
        calibration=calibration,
        reliability=reliability,
        error=facts.figures.get("ece", calibration.error),
        drawn={"reliability": reliability},
    )


def plot_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """Returns the charts of the recorded columns against the training step."""
    share: dict[str, Any] = {"words": short_percent, "least": None, "most": 1.0}
    validation = curves.evaluated(records, "loss", "validation") or curves.evaluated(records, "nll", "validation")
    measured: dict[str, curves.Curve] = {
        "accuracy": ("Validation accuracy", curves.evaluated(records, "top1", "top-1"), share),
        "average-precision": (f"Validation {METRICS['map'].label}", curves.evaluated(records, "map", "mAP"), share),
    }
    return curves.draw_curves(records, measured, validation)


def warn(facts: ClassificationFacts) -> list[str]:
    """Returns sentences about results that should not be relied on: nothing learned, few images, or probabilities far off."""
    failure = facts.metric.explain_failure(facts.figures)
    words = [*([failure] if failure else []), *warn_of_few(len(facts.metric.keys))]
    if (error := facts.figures.get("ece", math.nan)) >= MISCALIBRATED:
        words.append(
            f"The expected calibration error is {percent(error, 0)}. Do not use the confidences as probabilities before "
            "fitting a temperature with `vitrail evaluate --calibrate`."
        )
    return words


def explain(facts: ClassificationFacts) -> dict[str, Any]:
    """Returns the values of the headline: the main metric, its interval and the counts, and the other metrics."""
    key = "map" if facts.multi_label else "top1"
    value, low, high = (facts.figures.get(name, math.nan) for name in (key, f"{key}_low", f"{key}_high"))
    count = len(facts.metric.keys)
    figure: dict[str, Any] = {
        "value": percent(value),
        "name": METRICS[key].label,
        "images": plural(count, f"{facts.split_name} image"),
        "of": plural(len(facts.classes), "class", "classes"),
        "interval": None,
        # top-5 only with more than five classes
        "tiles": list_tiles(
            facts.figures,
            [name for name in OTHERS if name in facts.figures and not (name == "top5" and len(facts.classes) <= 5)],
        ),
    }
    commonest = None
    if not facts.multi_label:
        wrong = count - int(np.trace(facts.metric.confusion))
        commonest = float(np.bincount(facts.metric.targets).max() / count)  # of always predicting that class
        figure |= {"right": count - wrong, "wrong": wrong, "odds": count / wrong if wrong else math.inf}
    if math.isfinite(low) and math.isfinite(high):
        drawn = draw_interval(value, low, high, commonest)
        figure |= {"interval": f"{percent(low)} to {percent(high)}", "strip": drawn}
    return figure


def list_scores(facts: ClassificationFacts) -> dict[str, Any]:
    """Returns the table of per-class metrics, the worst class first, and sentences about it."""
    shares, at, scores = {}, "", facts.metric.per_class()
    if facts.multi_label:
        shares["AP"] = facts.metric.average_precision
        at = f" A label is predicted if its probability is at least {percent(0.5, 0)}."
    shares |= {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
    counts = {f"{facts.split_name} images": scores.support}
    if "train" in facts.class_counts and facts.split != "train":
        counts["training images"] = np.asarray(facts.class_counts["train"])
    first = next(iter(shares)) if facts.multi_label else "F1"
    rows = []
    for index in np.argsort(shares[first], kind="stable"):  # NaN last
        row = [Cell(facts.classes[index], key=facts.classes[index])]
        for key, values in shares.items():
            value = float(values[index])
            known = math.isfinite(value)
            bar = value if known and key == first else None
            row.append(Cell(percent(value), key=f"{value:.6f}" if known else "", share=bar))
        rows.append([*row, *(Cell(f"{values[index]:,}", key=values[index]) for values in counts.values())])
    undefined = np.isnan([*shares.values()]).any()
    dash = " A dash is an undefined value: no such images, or no such predictions." if undefined else ""
    means = (
        "Precision: share of the predictions of a class that are correct. Recall: share of its images predicted as it."
    )
    table = Table("Per-class metrics", ("class", *shares, *counts), rows, sorted_by=first)
    return {"table": table, "about": f"{SORTED} {means}{at}{dash}"}


def show(mistake: Mistake) -> tuple[Picture, str | None]:
    """Returns the picture of a mistake, and the same with its attention map as a data URI."""
    if mistake.attention is None:
        return photograph(mistake.picture), None
    overlaid = overlay_attention(mistake.picture, mistake.attention, mistake.reach)
    return photograph(mistake.picture), data_uri(overlaid)
