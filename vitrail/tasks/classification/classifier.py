"""Classification: one class of several, or each a yes or no; its losses, answers and figures.

B images, C channels, H and W their size, K classes. Metrics are in `metric`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.data.to_device import to_device
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.markup import Markup, join, tag
from vitrail.models import Backbone, Config
from vitrail.tasks.answer import Answer
from vitrail.tasks.classification.metric import AcceptableMetric, ClassMetric, LabelMetric
from vitrail.tasks.classification.unlikeness import Unlikeness
from vitrail.tasks.targets import LabelTargets
from vitrail.tasks.task import Task, create_task, list_names


def softmax_loss(logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy in fp32, the mean over images, of logits (B, K) of any precision.

    ``targets`` are indices of classes (B,), or probabilities (B, K), as mixing and smoothing make them. The loss of an image is
    multiplied by the weight of its class, of ``weights`` (K,), or by the mean weight of its target. It is divided by the number
    of images, not by the sum of their weights, so it does not depend on what else is in a micro-batch.
    """
    targets = targets.float() if targets.ndim == 2 else targets
    if weights is None:
        return F.cross_entropy(logits.float(), targets)
    weights = to_device(weights, logits.device)
    of_images = (targets * weights).sum(1) if targets.ndim == 2 else weights[targets]  # (B,)
    return (of_images * F.cross_entropy(logits.float(), targets, reduction="none")).mean()


def sigmoid_loss(logits: Tensor, targets: Tensor, *, binarise: bool = False) -> Tensor:
    """Binary cross-entropy of every class in fp32, the mean over images and classes, of logits (B, K) of any precision.

    ``targets`` are indices of classes (B,), or values in [0, 1] (B, K). With ``binarise`` every target above 0 counts as 1, so a
    mixed image shows all its classes (Touvron et al. 2022, DeiT III); smoothed targets are all above 0.
    """
    if targets.ndim == 1:
        targets = F.one_hot(targets, logits.shape[1])
    targets = (targets > 0 if binarise else targets).float()
    return F.binary_cross_entropy_with_logits(logits.float(), targets)


LOSSES = {"softmax": softmax_loss, "sigmoid": sigmoid_loss}
LabelLoss = Callable[[Tensor, Tensor], Tensor]


def label_loss(loss: str = "softmax", *, binarise: bool = False, weights: Tensor | None = None) -> LabelLoss:
    """From logits (B, K) and targets to their mean loss in fp32: `softmax_loss` or `sigmoid_loss`.

    Raises `ConfigError` for an unknown loss, or ``binarise`` or ``weights`` of classes with a loss that has no use for it.
    """
    if loss not in LOSSES:
        raise ConfigError(f"unknown loss {loss!r}", nearest(loss, LOSSES))
    if binarise and loss != "sigmoid":
        raise ConfigError(f"binarise is set with the loss {loss!r}", "it belongs to the loss 'sigmoid'")
    if weights is not None:
        if loss != "softmax":
            raise ConfigError(f"classes have weights with the loss {loss!r}", "they belong to the loss 'softmax'")
        return partial(softmax_loss, weights=weights)
    return partial(sigmoid_loss, binarise=True) if binarise else LOSSES[loss]


@torch.no_grad()
def top1(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of images whose best class is the target, or one of the largest of a soft target, as a scalar."""
    best = logits.argmax(1)  # (B,)
    if targets.ndim == 1:
        return (best == targets).float().mean()
    given = targets.gather(1, best[:, None])[:, 0]  # (B,)
    return (given == targets.amax(1)).float().mean()


@dataclass(frozen=True)
class Prediction(Answer):
    """The answer for one picture: the best label, its probability, and the best few as (label, probability).

    ``unlikeness`` says how unlike the training images the picture is; None where no distance was fitted (`Unlikeness`).
    """

    label: str
    score: float
    top: tuple[tuple[str, float], ...]
    unlikeness: float | None = None

    @property
    def unknown(self) -> bool:
        """Whether the picture is unlike the training images, so that no label need be right."""
        return self.unlikeness is not None and self.unlikeness > 1

    def row(self) -> dict[str, Any]:
        """label, score, then label_2, score_2 and so on; then unknown and unlikeness, where the latter is known."""
        row: dict[str, Any] = {"label": self.label, "score": round(self.score, 6)}
        for place, (label, score) in enumerate(self.top[1:], start=2):
            row |= {f"label_{place}": label, f"score_{place}": round(score, 6)}
        return row | self._describe_unlikeness()

    def to_json(self) -> dict[str, Any]:
        ranked = [{"label": label, "score": score} for label, score in self.top]
        return {**ranked[0], "top": ranked, **self._describe_unlikeness()}

    def _describe_unlikeness(self) -> dict[str, Any]:
        return {} if self.unlikeness is None else {"unknown": self.unknown, "unlikeness": round(self.unlikeness, 4)}

    def show(self) -> Markup:
        """A line for each label: its name, its probability as a bar, and the number; before them whether it is unknown."""
        lines = []
        for label, score in self.top:
            # in a colour that is visible on light and on dark
            bar = tag("div", style=f"height:.7em;background:#4a78c8;width:{100 * score:.1f}%")
            track = tag("div", bar, style="background:rgba(128,128,128,.25)")
            lines.append(join(tag("span", label), track, tag("span", f"{score:.1%}")))
        style = "display:grid;grid-template-columns:auto 120px auto;gap:2px 10px;align-items:center;text-align:left"
        bars = tag("div", *lines, style=style)
        return join(tag("div", tag("strong", "unlike the training images")), bars) if self.unknown else bars


class Classifier(Task):
    """A model that names what is on a picture. Calling it gives logits (B, K); with a fitted `Unlikeness` that is column K.

    Args:
        backbone, classes, preprocessing, provenance: as `Task` has them.
        multi_label: each output is a yes or no of its own, not one choice among all.
        temperature: what logits are divided by before they become probabilities (Guo et al. 2017); 1 is none.
        false_alarms: the share of held-out images that ``own["unlikeness"]`` calls unlike; None is without it.

    Raises:
        ConfigError: as `Task` has it; a temperature that is no positive number, false alarms that are no share.
    """

    name = "classification"
    reply = {  # noqa: RUF012
        **{"label": str, "score": float, "top": list[dict[str, str | float]]},
        **{"unknown": bool, "unlikeness": float},
    }
    targets = LabelTargets()
    losses = ("softmax", "sigmoid")
    views = ("flip", "5crop")
    temperature: float  # type: ignore[bad-override-mutable-attribute]

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        multi_label: bool = False,
        temperature: float = 1.0,
        false_alarms: float | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(backbone, classes, preprocessing, provenance=provenance)
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature is {temperature}", "give a number above 0; 1 leaves the logits as they are")
        self.targets = LabelTargets(len(self.classes))
        self.multi_label = multi_label
        self.answers_classes = bool(self.classes)
        self.learns_from_teacher = not multi_label
        self.temperature = temperature
        self.graph_outputs = ("logits", "features") if self.classes else ("features",)
        if false_alarms is not None:
            self.set_unlikeness(Unlikeness(backbone.width, len(classes)), false_alarms)

    def set_unlikeness(self, unlikeness: Unlikeness | None, false_alarms: float | None = None) -> None:
        """Adds a fitted ``unlikeness`` to the outputs, or takes it away. Raises `ConfigError` for no share, or without a head."""
        if unlikeness is not None and (false_alarms is None or not 0 < false_alarms < 1 or not self.classes):
            what = f"false alarms are {false_alarms}, of a model with {len(self.classes)} classes"
            raise ConfigError(what, "give a share above 0 and below 1, such as 0.05, for a model with a head")
        self.own = nn.ModuleDict({} if unlikeness is None else {"unlikeness": unlikeness})
        self.false_alarms = false_alarms
        self.graph_outputs = ("logits", "features") if unlikeness is None else ("logits", "features", "unlikeness")

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        if len(train.classes) < 2:
            raise DataError(
                f"the data have {len(train.classes)} class: {', '.join(train.classes) or 'none'}",
                "put the images of each class in a folder of its own, or give a manifest with labels",
            )
        return {"classes": train.classes, "multi_label": train.multi_label}

    def describe(self) -> dict[str, Any]:
        fitted = {} if self.false_alarms is None else {"false_alarms": self.false_alarms}
        return {"multi_label": self.multi_label, "temperature": self.temperature, **fitted}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        # the text "false" would count as true
        if not isinstance(multi_label := description["multi_label"], bool):
            raise ValueError(f"multi_label is {multi_label!r:.40}, and not true or false")
        fitted = {name: float(description[name]) for name in ("false_alarms",) if name in description}
        return {"multi_label": multi_label, "temperature": float(description["temperature"]), **fitted}

    def loss_options(self, loss: str | None, *, binarise: bool) -> dict[str, Any]:
        loss = loss or ("sigmoid" if self.multi_label else "softmax")
        label_loss(loss, binarise=binarise)
        return {"loss": loss, "binarise": binarise}

    def loss(self, outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """``options`` are those of `label_loss`."""
        return label_loss(**options)(self.split(outputs)[0], targets)

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"top1": top1(self.split(outputs)[0], targets)}

    def metric(self, source: Source | None = None) -> ClassMetric | LabelMetric | AcceptableMetric:
        if source is not None and source.multi_label and not self.multi_label:
            return AcceptableMetric()
        return (LabelMetric if self.multi_label else ClassMetric)(self.classes, self.temperature)

    def forward(self, images: Tensor) -> Tensor:
        if self.training or "unlikeness" not in self.own:  # losses take the logits alone
            return self.backbone(images)
        return self.read_graph(self.graph(images))

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns logits (B, K), and how unlike the training images each image is (B,), None where that is not fitted."""
        classes = len(self.classes)
        return outputs[:, :classes], outputs[:, classes] if outputs.shape[1] > classes > 0 else None

    def probabilities(self, outputs: Tensor) -> Tensor:
        """(B, K) in fp32: softmax of logits / temperature; with several labels the sigmoid of each."""
        scaled = self.split(outputs)[0].float() / self.temperature
        return scaled.sigmoid() if self.multi_label else scaled.softmax(1)

    def decode(self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5) -> list[Prediction]:
        scores, places = self.probabilities(outputs).topk(min(top, len(self.classes)), dim=1)  # (B, top) each
        labels = [[self.classes[place] for place in row] for row in places.tolist()]
        ranked = [tuple(zip(*rows)) for rows in zip(labels, scores.tolist())]
        unlikeness = self.split(outputs)[1]
        values = [None] * len(ranked) if unlikeness is None else unlikeness.tolist()
        return [Prediction(*best[0], best, value) for best, value in zip(ranked, values)]

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        labels = [prediction.label for prediction in self.decode(outputs, top=1)]
        logits, unlikeness = self.split(outputs)
        arrays = {"logits": logits.numpy(), "probabilities": self.probabilities(outputs).numpy(), "label": labels}
        return arrays if unlikeness is None else {**arrays, "unlikeness": unlikeness.numpy()}

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        features = self.backbone.features(images)
        logits = {"logits": self.backbone.head(features)} if self.classes else {}
        fitted = {"unlikeness": self.own["unlikeness"](features)} if "unlikeness" in self.own else {}
        return {**logits, "features": features, **fitted}

    def name_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        logits, unlikeness = self.split(outputs)
        named = {self.graph_outputs[0]: logits if self.classes else outputs}
        return named if unlikeness is None else {**named, "unlikeness": unlikeness}

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        first, unlikeness = outputs[self.graph_outputs[0]], outputs.get("unlikeness")
        return first if unlikeness is None else torch.cat([first.float(), unlikeness[:, None]], 1)  # (B, K + 1)

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """The share of images whose best class is the same; with several labels the share of each yes and no that is.

        An image that only one of them calls unlike the training images does not count. Without a head the mean cosine between
        the features.
        """
        if "logits" not in expected:
            return float(F.cosine_similarity(expected["features"].double(), given["features"].double()).mean())
        one, other = expected["logits"], given["logits"]
        same = (one > 0) == (other > 0) if self.multi_label else one.argmax(1) == other.argmax(1)
        if "unlikeness" in expected:
            alike = (expected["unlikeness"] > 1) == (given["unlikeness"] > 1)  # (B,)
            same = same & (alike if same.ndim == 1 else alike[:, None])
        return float(same.double().mean())


def create_classifier(
    name: str | Config,
    *,
    classes: int | Sequence[str] = 1000,
    preprocessing: Preprocessing | None = None,
    multi_label: bool = False,
    **changes: Any,
) -> Classifier:
    """A freshly initialised classifier.

    Args:
        name: a name of `vitrail.MODELS`, or a config.
        classes: the names of the outputs, or their number.
        preprocessing: by default the paper's, at the model's image size.
        changes: fields of the model's config, such as ``image_size=384`` or ``in_channels=5``.

    Raises:
        ConfigError: an unknown model or field, with the nearest names; a value that cannot be meant.
    """
    arguments = {"classes": list_names(classes), "multi_label": multi_label}
    return create_task(Classifier, name, arguments, preprocessing=preprocessing, **changes)
