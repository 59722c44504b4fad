"""The report of a classifier: what only classifiers have, above all the most confident mistakes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from vitrail.reports.facts import SPLITS, EvaluatedRun, list_classes
from vitrail.reports.metric_names import METRICS, short_percent
from vitrail.reports.page import Cell, Table
from vitrail.reports.supervised import (
    describe_confusion,
    draw_interval,
    list_tiles,
    warn_of_few,
)
from vitrail.tasks.class_weights import find_counts
from vitrail.tasks.classification.metric import ClassMetric, LabelMetric
from vitrail.tasks.task import Task
from vitrail.tasks.user_images import to_pixels
from vitrail.text import percent, plural

Classified = ClassMetric | LabelMetric

MISCALIBRATED = 0.15  # expected calibration error
OTHERS = (
    *("top5", "mean_recall", "f1_macro", "f1_micro", "nll", "ece", "brier"),
    *("unlike", "ood_auroc", "ood_unlike"),
)


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


def find_mistakes(model: Task, source: Source, metric: Classified, most: int = 12) -> tuple[Mistake, ...]:
    """Returns the misclassified images with the highest confidence, each with the attention map of the last layer."""
    rows = {key: row for row, key in enumerate(map(str, source.keys))}
    mistakes = []
    for index in metric.worst(most):
        key = metric.keys[index]
        pixels = to_pixels(source.read(rows[key]).content, model.preprocessing)
        picture = model.preprocessing.picture(pixels)  # (C, h, w)
        attention, reach = last_attention(model, picture)
        true, predicted, confidence = metric.describe(index)
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


def describe(
    evaluated: EvaluatedRun, metric: Classified, records: Sequence[Mapping[str, Any]], mistakes: Sequence[Mistake]
) -> dict[str, Any]:
    """Returns the values of the report of a classifier; ``records`` are the lines of ``metrics.jsonl``."""
    result, multi_label, confusion = evaluated.result, isinstance(metric, LabelMetric), None
    if isinstance(metric, ClassMetric) and len(metric.classes) >= 2:
        confusion = describe_confusion(metric.confusion, metric.classes)
    reliability = reliability_chart(metric.calibration)
    best = ("val_map", METRICS["map"].label) if multi_label else ("val_top1", "validation accuracy")
    return {
        "template": "classification.html",
        "plots": plot_curves(records),
        "task": {"Classes": list_classes(metric.classes)},
        "warnings": warn(result),
        "best": curves.best(records, *best),
        "multi_label": multi_label,
        "split": result.split,
        "figure": explain(result, metric),
        "confusion": confusion,
        "classes": list_scores(evaluated, metric),
        "mistakes": [(mistake, *show(mistake)) for mistake in mistakes],
        "calibration": metric.calibration,
        "reliability": reliability,
        "error": result.figures.get("ece", metric.calibration.error),
        "drawn": {"reliability": reliability},
    }


def plot_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Markup]:
    """Returns the charts of the recorded columns against the training step."""
    share: dict[str, Any] = {"words": short_percent, "least": None, "most": 1.0}
    validation = curves.evaluated(records, "loss", "validation") or curves.evaluated(records, "nll", "validation")
    measured: dict[str, curves.Curve] = {
        "accuracy": ("Validation accuracy", curves.evaluated(records, "top1", "top-1"), share),
        "average-precision": (f"Validation {METRICS['map'].label}", curves.evaluated(records, "map", "mAP"), share),
    }
    return curves.draw_curves(records, measured, validation)


def warn(result: EvaluationResult) -> list[str]:
    """Returns sentences about results that should not be relied on: nothing learned, few images, or probabilities far off."""
    failure = result.metric.explain_failure(result.figures)
    words = [*([failure] if failure else []), *warn_of_few(len(result.keys))]
    if (error := result.figures.get("ece", math.nan)) >= MISCALIBRATED:
        words.append(
            f"The expected calibration error is {percent(error, 0)}. Do not use the confidences as probabilities before "
            "fitting a temperature with `vitrail evaluate --calibrate`."
        )
    return words


def explain(result: EvaluationResult, metric: Classified) -> dict[str, Any]:
    """Returns the values of the headline: the main metric, its interval and the counts, and the other metrics."""
    key = "map" if isinstance(metric, LabelMetric) else "top1"
    value, low, high = (result.figures.get(name, math.nan) for name in (key, f"{key}_low", f"{key}_high"))
    count = len(result.keys)
    figure: dict[str, Any] = {
        "value": percent(value),
        "name": METRICS[key].label,
        "images": plural(count, f"{SPLITS.get(result.split, result.split)} image"),
        "of": plural(len(result.classes), "class", "classes"),
        "interval": None,
        # top-5 only with more than five classes
        "tiles": list_tiles(
            result.figures,
            [name for name in OTHERS if name in result.figures and not (name == "top5" and len(result.classes) <= 5)],
        ),
    }
    commonest = None
    if isinstance(metric, ClassMetric):
        wrong = count - int(np.trace(metric.confusion))
        commonest = float(np.bincount(metric.targets).max() / count)  # of always predicting that class
        figure |= {"right": count - wrong, "wrong": wrong, "odds": count / wrong if wrong else math.inf}
    if math.isfinite(low) and math.isfinite(high):
        drawn = draw_interval(value, low, high, commonest)
        figure |= {"interval": f"{percent(low)} to {percent(high)}", "strip": drawn}
    return figure


def list_scores(evaluated: EvaluatedRun, metric: Classified) -> dict[str, Any]:
    """Returns the table of per-class metrics, the class with the fewest images first, and sentences about it.

    The images are those of the training, where they are known, else those of the evaluation.
    """
    split, shares, at, scores = evaluated.result.split, {}, "", metric.per_class()
    if isinstance(metric, LabelMetric):
        shares["AP"] = metric.average_precision
        at = f" A label is predicted if its probability is at least {percent(0.5, 0)}."
    shares |= {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
    counts = {f"{SPLITS.get(split, split)} images": scores.support}
    if "train" in evaluated.splits:
        counts["training images"] = evaluated.splits["train"].counts()
    elif (trained := find_counts(evaluated.model.provenance, len(metric.classes))) is not None:
        counts["training images"] = trained
    first, by = "AP" if "AP" in shares else "F1", [*counts][-1]
    rows = []
    for index in np.lexsort((shares[first], counts[by])):  # of as many images the worst first, NaN last
        row = [Cell(metric.classes[index], key=metric.classes[index])]
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
    table = Table("Per-class metrics", ("class", *shares, *counts), rows, sorted_by=by)
    return {"table": table, "about": f"Sorted by {by}, fewest first; click a heading to sort. {means}{at}{dash}"}


def show(mistake: Mistake) -> tuple[Picture, str | None]:
    """Returns the picture of a mistake, and the same with its attention map as a data URI."""
    if mistake.attention is None:
        return photograph(mistake.picture), None
    overlaid = overlay_attention(mistake.picture, mistake.attention, mistake.reach)
    return photograph(mistake.picture), data_uri(overlaid)
