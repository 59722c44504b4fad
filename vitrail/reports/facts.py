"""The contents of a report as plain data.

N judged images, K classes; n pictures shown, C channels, h and w their size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from vitrail.config.parse import plain
from vitrail.data.sources.source import Source
from vitrail.evaluation.feature_health import Health
from vitrail.evaluation.result import EvaluationResult
from vitrail.tasks.task import Task
from vitrail.text import large

SPLITS = {"val": "validation", "train": "training"}


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
class RunFacts:
    """The data of the report and the model card of any run; only ``title`` is required.

    ``records`` are the lines of ``metrics.jsonl``. ``images`` counts the images of each split. ``base`` names the initial
    weights and ``base_license`` their licence. ``provenance`` holds seed, date, versions, commit and the like; it,
    ``preprocessing`` and ``recipe_settings`` are shown unchanged. ``location`` is the path of the model in the examples.
    ``operations`` are the floating-point operations of all training steps, ``device_hours`` the time of all devices for them.
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
    operations: float | None = None
    device_hours: float | None = None
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
    """The data about a classifier; only ``title`` and ``classes`` are required.

    ``metric`` is the metric computed on ``split``, or None without an evaluation. ``figures`` has ``top1`` (or ``map``) with
    the ends of its confidence interval, ``top1_low`` and ``top1_high``, and those of ``top5 nll ece brier f1_macro
    f1_micro`` that are known; shares are fractions. ``class_counts`` are the images per class (K,) of each split.
    """

    classes: Sequence[str]
    class_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    split: str = "val"
    figures: Mapping[str, float] = field(default_factory=dict)
    multi_label: bool = False
    metric: Any = None  # `ClassMetric`, or `LabelMetric` for multi-label tasks
    mistakes: Sequence[Mistake] = ()

    @property
    def judged(self) -> bool:
        return self.metric is not None and len(self.metric.keys) > 0

    @property
    def split_name(self) -> str:
        return SPLITS.get(self.split, self.split)


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """A finished run with its evaluation, from which the report and the model card are written.

    ``facts`` are the fields of `RunFacts`; ``source`` holds the images of ``splits`` that ``judgement`` was computed on.
    """

    facts: Mapping[str, Any]
    model: Task
    splits: Mapping[str, Source]
    source: Source
    judgement: EvaluationResult


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Inputs or outputs of an objective: a name, a caption, and images (n, C, h, w), uint8 or float in [0, 1]."""

    name: str
    caption: str
    pictures: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PretrainingFacts(RunFacts):
    """The data about a self-supervised encoder or a tokenizer; only ``title`` and ``objective`` are required.

    Evaluation records have ``effective_rank`` and ``spread``, and with labels ``knn`` and ``chance`` as fractions; the record
    of step 0 is of the weights before training. Any other numeric column is a measurement of the objective. ``panels`` show
    the same images in the same order, the original first. ``before`` and ``after`` are the feature health before and after
    training, and ``diagnosis`` describes a collapse.
    """

    objective: str
    about_objective: str = ""  # one sentence
    panels: Sequence[Panel] = ()
    before: Health | None = None
    after: Health | None = None
    diagnosis: str | None = None

    @property
    def tokenizes(self) -> bool:
        """Whether the run trained a tokenizer, which has codes instead of features."""
        return self.objective == "tokenizer"

    def last(self, column: str) -> float | None:
        """Returns the last recorded value of a column."""
        return next((record[column] for record in reversed(self.records) if record.get(column) is not None), None)

    def untrained(self, column: str) -> float | None:
        """Returns the value of a column before training."""
        values = (record.get(column) for record in self.records if record.get("step") == 0)
        return next((value for value in values if value is not None), None)


def describe_compute(operations: float | None, device_hours: float | None) -> str:
    """Describes what the training took in one line, as far as it is known."""
    work = f"{large(operations, 'FLOP')} in all training steps" if operations else None
    hours = f"{device_hours:.3g} device-hours" if device_hours else None
    return ", ".join(filter(None, (work, hours)))


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Formats settings as YAML in their own order; values that YAML cannot represent are converted to strings."""
    simple = json.loads(json.dumps(plain(tree), default=str))
    return yaml.safe_dump(simple, sort_keys=False, allow_unicode=True, width=100)
