"""The report and the model card of a finished classification run, including its most confident mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrail.analysis.attention import attention_map, compute_reach
from vitrail.analysis.pictures import to_thumbnail
from vitrail.data.sources.source import Source
from vitrail.evaluation.result import EvaluationResult
from vitrail.models import device_of
from vitrail.reports.classification import card, page
from vitrail.reports.facts import ClassificationFacts, JudgedRun, Mistake
from vitrail.tasks.task import Task


def write_card(folder: Path, run: JudgedRun) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path."""
    return card.write_card(folder, describe(run))


def write_report(folder: Path, run: JudgedRun) -> Path:
    """Writes ``report.html`` into ``folder`` and returns its path."""
    mistakes = find_mistakes(run.model, run.source, run.judgement)
    return page.write_report(folder, replace(describe(run), mistakes=mistakes))


def describe(run: JudgedRun) -> ClassificationFacts:
    """Returns the facts of the card, and of the report but for the mistakes."""
    judgement = run.judgement
    return ClassificationFacts(
        **run.facts,
        classes=judgement.classes,
        class_counts={name: part.counts().tolist() for name, part in run.splits.items()},
        split=judgement.split,
        figures=judgement.figures,
        multi_label=run.model.multi_label,
        metric=judgement.metric,
    )


def find_mistakes(model: Task, source: Source, judgement: EvaluationResult, most: int = 12) -> tuple[Mistake, ...]:
    """Returns the misclassified images with the highest confidence, each with the attention map of the last layer."""
    rows = {key: row for row, key in enumerate(map(str, source.keys))}
    mistakes = []
    for index in judgement.metric.worst(most):  # type: ignore[missing-attribute]
        key = judgement.keys[index]
        picture = model.picture(source.read(rows[key]).content)  # (C, h, w)
        attention, reach = last_attention(model, picture)
        true, predicted, confidence = judgement.metric.describe(index)  # type: ignore[missing-attribute]
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
