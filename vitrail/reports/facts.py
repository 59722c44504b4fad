"""The contents of a report as plain data.

N judged images, K classes; n pictures shown, C channels, h and w their size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.sources.source import Source, Splits
from vitrail.evaluation.feature_health import Health
from vitrail.evaluation.judgement import Judgement
from vitrail.tasks.task import Task

SPLITS = {"val": "validation", "train": "training"}


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An image that the model got wrong, as it is shown: uint8 (H, W[, C]) and, where known, attention (gh, gw), which is
    ``reach`` times as high and as wide as the picture.
    """

    key: str
    true: str
    predicted: str
    confidence: float
    picture: np.ndarray
    attention: np.ndarray | None = None
    reach: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the report and the card of any run say; only ``title`` is needed.

    ``records`` are the lines of ``metrics.jsonl``. ``images`` counts each split. ``base`` names the weights that training
    started from and ``base_license`` their licence. ``provenance`` is whatever says where the model comes from (seed, date,
    versions, commit, ...); it, ``preprocessing`` and ``recipe_settings`` are shown as they are. ``location`` is the model's
    place in the examples.
    """

    title: str
    command: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    layout: str = ""
    images: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    parameters: int | None = None
    multiply_adds: int | None = None
    image_size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    recipe_settings: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    base_license: str = ""
    license: str = ""
    records: Sequence[Mapping[str, Any]] = ()
    seconds: float | None = None
    images_per_second: float | None = None
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    location: str = "path/to/this/folder"
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ClassificationFacts(RunFacts):
    """What is said of a classifier; beside the title only ``classes`` are needed.

    ``metric`` is what judging ``split`` gathered; None where nothing was judged.
    ``figures`` has ``top1`` (or ``map``) with its ends ``top1_low`` and ``top1_high``, and whichever of
    ``top5 nll ece brier f1_macro f1_micro`` are known, shares as fractions. ``class_counts`` are the images of each class
    (K,) in each split.
    """

    classes: Sequence[str]
    class_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    split: str = "val"
    figures: Mapping[str, float] = field(default_factory=dict)
    multi_label: bool = False
    metric: Any = None  # a `ClassMetric`, with several labels an image a `LabelMetric`
    mistakes: Sequence[Mistake] = ()

    @property
    def judged(self) -> bool:
        return self.metric is not None and len(self.metric.keys) > 0

    @property
    def split_name(self) -> str:
        return SPLITS.get(self.split, self.split)


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """A finished run that was judged, as the documents of its task are written from it.

    ``facts`` are the fields of `RunFacts`; ``source`` are the images of ``splits`` that ``judgement`` is on.
    """

    facts: Mapping[str, Any]
    model: Task
    splits: Splits
    source: Source
    judgement: Judgement


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What an objective sees or answers: its name and meaning, and pictures (n, C, h, w), uint8 or float in [0, 1]."""

    name: str
    caption: str
    pictures: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PretrainingFacts(RunFacts):
    """What is said of an encoder trained without labels, or a tokenizer; beside the title only ``objective`` is needed.

    The records of an evaluation have ``knn`` and ``chance``, shares, where there are labels to ask, ``effective_rank`` and
    ``spread``; a record of step 0 is of the weights before training. Any other column of numbers is a measurement of the
    objective. ``panels`` show the same images in the same order, the original first. ``before`` and ``after`` are the
    health of the features on either side of training, and ``diagnosis`` names a collapse.
    """

    objective: str
    about_objective: str = ""  # one sentence
    panels: Sequence[Panel] = ()
    before: Health | None = None
    after: Health | None = None
    diagnosis: str | None = None

    @property
    def tokenizes(self) -> bool:
        """Whether a tokenizer was trained, which has codes in place of features."""
        return self.objective == "tokenizer"

    def last(self, column: str) -> float | None:
        """The value of a column that was recorded last."""
        return next((record[column] for record in reversed(self.records) if record.get(column) is not None), None)

    def untrained(self, column: str) -> float | None:
        """The value of a column before training."""
        values = (record.get(column) for record in self.records if record.get("step") == 0)
        return next((value for value in values if value is not None), None)
