"""What a classifier answered on a split, and how good that was.

N images, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.intervals import bootstrap
from vitrail.tasks import metrics
from vitrail.tasks.classification import Classifier


@dataclass(frozen=True)
class Judgement:
    """What a classifier answered on one split, and how good that was."""

    split: str
    classes: tuple[str, ...]
    logits: np.ndarray  # (N, K) float32, before the temperature
    targets: np.ndarray  # (N,) int64, or (N, K) for multi-label
    keys: tuple[str, ...]
    multi_label: bool
    temperature: float
    figures: dict[str, float]

    @property
    def probabilities(self) -> np.ndarray:
        """(N, K), after the temperature."""
        return metrics.probabilities(self.logits, multi_label=self.multi_label, temperature=self.temperature)

    def per_class(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """A table: its head, and a row for each class with precision, recall, F1 and the number of images."""
        if self.multi_label:
            found = metrics.per_label(self.logits, self.targets)
        else:
            found = metrics.per_class(metrics.confusion(self.logits.argmax(1), self.targets, len(self.classes)))
        rows: list[tuple[str, ...]] = []
        for name, count, *shares in zip(self.classes, found.support, found.precision, found.recall, found.f1):
            rows.append((name, *(f"{100 * value:.1f}" for value in shares), str(int(count))))
        return ["class", "precision %", "recall %", "F1 %", "images"], rows


def from_logits(
    classifier: Classifier, logits: np.ndarray, targets: np.ndarray, keys: tuple[str, ...], *, split: str, seed: int = 0
) -> Judgement:
    """The judgement that stored answers amount to."""
    many, temperature = classifier.multi_label, classifier.temperature
    figures = metrics.summary(logits, targets, classifier.classes, multi_label=many, temperature=temperature)
    if not many:
        right = (logits.argmax(1) == targets).astype(np.float64)
        figures["top1_low"], figures["top1_high"] = bootstrap(right, seed=seed)
    figures["images"] = len(keys)
    return Judgement(split, classifier.classes, logits, targets, keys, many, temperature, figures)
